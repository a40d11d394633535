"""The usual JPEG, decoded by libjpeg-turbo itself where simplejpeg is installed: the bytes that Pillow gives, sooner.

Pillow feeds its decoder piece by piece and keeps four bytes for three; that is a third of its time. Here a file is
decoded in one call, which no clock can stop. So only those are taken whose work is bounded by their area: one scan of
all components, Huffman coded, with the size that was looked at. Whatever else there is, Pillow decodes.
"""

import struct
from typing import Any

import numpy as np
from PIL import Image

from pellucid.data.opener import orientation

try:
    import simplejpeg
except ImportError:  # an extra; without it Pillow decodes everything
    simplejpeg = None

SEQUENTIAL = (0xC0, 0xC1)  # markers of frames that are coded in one pass
OTHER_FRAMES = (0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
SCAN = 0xDA
LONE = (0x01, *range(0xD0, 0xD9))  # markers without a length, and the image's start


def decode_plain(image: Image.Image, channels: int, shrink: int = 1) -> np.ndarray | None:
    """The bytes (y x c) of an opened JPEG with its sides divided by `shrink`; None of one that Pillow is to decode."""
    wanted = "L" if channels == 1 else "RGB"
    if simplejpeg is None or image.format != "JPEG" or image.mode != wanted or orientation(image) not in (0, 1):
        return None
    stream: Any = getattr(image, "fp")  # noqa: B009 (Pillow's types don't know it)
    place = stream.tell()
    stream.seek(0)
    data = stream.read()
    stream.seek(place)
    if not is_plain(data, image.size, 1 if wanted == "L" else 3):
        return None
    width, height = (-(-side // shrink) for side in image.size)
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "GRAY" if wanted == "L" else "RGB", min_height=height, min_width=width, min_factor=1
        )
    except ValueError:  # it is damaged; what becomes of that is Pillow's to say
        return None
    return pixels if pixels.shape[:2] == (height, width) else None


def is_plain(data: bytes, size: tuple[int, int], components: int) -> bool:
    """Whether it has one frame of this size (width, height), of 8 bits, and its first scan holds all of its components.

    A decoder refuses a second scan then, so no file can make it go over the picture again and again.
    """
    place, frame = 2, None
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or marker in LONE or marker in OTHER_FRAMES:
            return False
        length = int.from_bytes(data[place + 2 : place + 4])
        if marker in SEQUENTIAL:
            if frame is not None or place + 10 > len(data):
                return False
            bits, height, width, count = struct.unpack(">BHHB", data[place + 4 : place + 10])
            frame = (bits, width, height, count)
        if marker == SCAN:
            return frame == (8, *size, components) and place + 5 <= len(data) and data[place + 4] == components
        place += 2 + length
    return False
