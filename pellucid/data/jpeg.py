"""The usual JPEG, decoded by libjpeg-turbo itself where simplejpeg is installed: the bytes that Pillow gives, sooner.

Pillow feeds its decoder piece by piece and keeps four bytes for three; that is a third of its time. Here a file is
decoded in one call, which no clock can stop. So only those are taken whose work is bounded by their area: one scan of
all components, Huffman coded, with the size that was looked at. Whatever else there is, Pillow decodes. Pillow doesn't
even open a file that says nothing of a camera: that is a tenth of a small picture's time, and Python's lock is held.
"""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from pellucid.data.opener import MAX_BYTES, File, check_sides, orientation

try:
    import simplejpeg
except ImportError:  # an extra; without it Pillow decodes everything
    simplejpeg = None

START = b"\xff\xd8\xff"
SEQUENTIAL = (0xC0, 0xC1)  # markers of frames that are coded in one pass
OTHER_FRAMES = (0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
SCAN = 0xDA
CAMERA = (0xE1, 0xE2)  # markers of EXIF, and of several pictures in one file
LONE = (0x01, *range(0xD0, 0xD9))  # markers without a length, and the image's start


class PlainFrame(NamedTuple):
    """What a usual JPEG says of its picture, and whether there may be more to know: which side is up."""

    height: int
    width: int
    components: int
    camera: bool


def decode_alone(
    file: File, channels: int, max_pixels: int, choose: Callable[[int, int], int]
) -> np.ndarray[Any, Any] | None:
    """The bytes (y x c) of a usual JPEG file that no camera wrote into; None of one that is to be opened by Pillow.

    choose: by what the sides are divided, 1, 2, 4 or 8, of a picture of this height and width.
    """
    if simplejpeg is None or (data := _read(file)) is None:
        return None
    frame = find_frame(data)
    if frame is None or frame.camera or frame.components != (1 if channels == 1 else 3):
        return None
    try:
        check_sides(frame.width, frame.height, max_pixels)
    except ValueError:  # which is Pillow's to say, of the file by its name
        return None
    return _decode(data, frame, choose(frame.height, frame.width))


def decode_plain(image: Image.Image, channels: int, shrink: int = 1) -> np.ndarray[Any, Any] | None:
    """The bytes (y x c) of an opened JPEG with its sides divided by `shrink`; None of one that Pillow is to decode."""
    wanted = "L" if channels == 1 else "RGB"
    if simplejpeg is None or image.format != "JPEG" or image.mode != wanted or orientation(image) not in (0, 1):
        return None
    stream: Any = getattr(image, "fp")  # noqa: B009 (Pillow's types don't know it)
    place = stream.tell()
    stream.seek(0)
    data = stream.read()
    stream.seek(place)
    frame = find_frame(data)
    if frame is None or frame[:3] != (image.height, image.width, 1 if wanted == "L" else 3):
        return None
    return _decode(data, frame, shrink)


def find_frame(data: bytes) -> PlainFrame | None:
    """The frame of a file that has one, of 8 bits, and whose first scan holds all of its components; else None.

    A decoder refuses a second scan then, so no file can make it go over the picture again and again.
    """
    place, frame, camera = 2, None, False
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or marker in LONE or marker in OTHER_FRAMES:
            return None
        length = int.from_bytes(data[place + 2 : place + 4])
        if marker in SEQUENTIAL:
            if frame is not None or place + 10 > len(data):
                return None
            bits, height, width, components = struct.unpack(">BHHB", data[place + 4 : place + 10])
            if bits != 8:
                return None
            frame = (height, width, components)
        if marker == SCAN:
            whole = frame is not None and place + 5 <= len(data) and data[place + 4] == frame[2]
            return PlainFrame(*frame, camera) if frame is not None and whole else None
        camera = camera or marker in CAMERA
        place += 2 + length
    return None


def _read(file: File) -> bytes | None:
    """A file that begins as a JPEG, whole."""
    if isinstance(file, bytes):
        return file if file.startswith(START) and len(file) <= MAX_BYTES else None
    if not isinstance(file, (str, Path)):
        return None
    try:
        about = os.stat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            return None
        with open(file, "rb", buffering=0) as stream:
            first = stream.read(len(START))
            return first + stream.readall() if first == START else None
    except (OSError, ValueError):  # which Pillow's opener tells
        return None


def _decode(data: bytes, frame: PlainFrame, shrink: int) -> np.ndarray[Any, Any] | None:
    height, width = (-(-side // shrink) for side in frame[:2])
    try:
        pixels = simplejpeg.decode_jpeg(  # pyright: ignore[reportOptionalMemberAccess]
            data, "GRAY" if frame.components == 1 else "RGB", min_height=height, min_width=width, min_factor=1
        )
    except ValueError:  # it is damaged; what becomes of that is Pillow's to say
        return None
    return pixels if pixels.shape[:2] == (height, width) else None
