"""The one place where pictures are opened. Nothing in a file is trusted: each format's header is read first, and bounds
hold before anything is decoded.

What is bounded: the file's bytes, each side, the area, how often and how long the file is read, and what it says beside
its pixels. Of several frames or pages only the first is decoded.
"""

import io
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from pellucid.data.metered import Metered
from pellucid.data.sentences import one_line, reason

File = str | Path | bytes | BinaryIO

# The formats that are read. Each tells its size before its pixels, and none runs another program (as EPS does, with
# Ghostscript) or holds files of other formats (as icons do). MPO, several JPEGs in one file, is opened as JPEG.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_PIXELS = 1 << 26  # 8192 × 8192: below the size at which Pillow warns
MAX_SIDE = 1 << 16  # a JPEG has no longer one; Pillow keeps some bytes for every row, however short
MAX_BYTES = 1 << 28  # of a file: as much as 8192 × 8192 pixels of four bytes take
MAX_EXIF = 1 << 17  # bytes; cameras write up to 64 KB
MAX_TABLE = 1 << 18  # numbers in one field of a TIFF: a strip for every row and channel of the longest side
MAX_SECONDS = 10.0  # of the processor, between opening a picture and its last byte
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
ORIENTATION = 0x0112
NOT_THIS = (SyntaxError, IndexError, TypeError, struct.error)  # how a plugin says that the file isn't its own

Image.init()  # without it, Pillow knows six formats until one of the others is met
# What the names of pictures end in, also of formats that aren't read: such a file is told, and not passed over.
OTHERS = ("EPS", "WMF", "IPTC", "MPEG", "BUFR", "GRIB", "HDF5")  # films, drawings, measurements
SUFFIXES = tuple(
    suffix
    for suffix, kind in Image.registered_extensions().items()
    if (kind in Image.OPEN and kind not in OTHERS) or kind == "MPO"
)


@contextmanager
def opened(file: File, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """The picture with only its header read. Whatever goes wrong inside becomes one sentence that names the file.

    >>> with opened(b"GIF89a" + bytes(7)) as image:
    ...     image.size
    Traceback (most recent call last):
    ValueError: the image can't be read: it is 0×0 pixels
    """
    name = name or str(file if isinstance(file, (str, Path)) else getattr(file, "name", "the image"))
    with ExitStack() as stack:
        try:
            stream = Metered(stack.enter_context(_stream(file)), seconds=MAX_SECONDS)
            if stream.size > MAX_BYTES:
                raise ValueError(f"it has {stream.size:,} bytes, more than the limit of {MAX_BYTES:,}; make it smaller")
            image = stack.enter_context(_identified(stream, max_pixels))
            check_sides(image.width, image.height, max_pixels)
            _check_tiles(image, max_pixels)
            yield image
        except Exception as error:  # Pillow raises anything on broken bytes: SyntaxError, struct.error, IndexError…
            raise ValueError(one_line(f"{name} can't be read: {reason(error)}")) from error


def check_sides(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """A picture that is too large to decode is told so by its header."""
    size = f"{height:,}×{width:,}"
    if width < 1 or height < 1:
        raise ValueError(f"it is {size} pixels")
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"it is {size} pixels, with a side longer than the limit of {MAX_SIDE:,}; make it smaller")
    if width * height > max_pixels:
        raise ValueError(f"it is {size} pixels, more than the limit of {max_pixels:,}; make it smaller")


def orientation(image: Image.Image) -> int:
    """How the picture is to be turned, as EXIF counts it: 1, or nothing, for upright."""
    if image.format == "TIFF":  # which Pillow turns by itself
        return 1
    info = image.info
    length = len(info.get("exif") or info.get("Raw profile type exif") or b"")
    if length > MAX_EXIF:
        raise ValueError(f"its EXIF has {length:,} bytes, more than the limit of {MAX_EXIF:,}; save it without")
    return Image.Image.getexif(image).get(ORIENTATION, 1)  # a PNG's own method would decode its pixels


@contextmanager
def _stream(file: File) -> Iterator[BinaryIO]:
    if isinstance(file, (str, Path)):
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would never end, a device neither
            raise ValueError("it is a folder, a pipe or a device; expected a file")
        with open(file, "rb") as stream:
            yield stream
    else:
        yield io.BytesIO(file) if isinstance(file, bytes) else file


def _identified(stream: Metered, max_pixels: int) -> Image.Image:
    """Opened by what its first bytes say; names say nothing.

    `Image.open` would do, but above its own limit it raises without telling the size, or warns, which threads share.
    """
    prefix = stream.read(30)
    if not prefix:
        raise ValueError("it is empty")
    kind = next((kind for kind in FORMATS if kind in Image.OPEN and _has_signature(kind, prefix)), None)
    if kind is None:
        raise ValueError(f"it is no image in a format that is read here ({', '.join(FORMATS)}); save it as PNG")
    _check_header(kind, prefix, stream, max_pixels)
    stream.seek(0)
    return Image.OPEN[kind][0](stream, "")  # pyright: ignore[reportArgumentType]


def _has_signature(kind: str, prefix: bytes) -> bool:
    accept = Image.OPEN[kind][1]
    try:
        return accept is not None and accept(prefix) is True  # or a text: what this build of Pillow lacks for it
    except NOT_THIS:
        return False


def _check_header(kind: str, prefix: bytes, stream: Metered, max_pixels: int) -> None:
    """Bounds what Pillow makes of a file when it opens it, before its size can be asked."""
    if kind == "WEBP":
        check_sides(*_webp_size(prefix), max_pixels)
    elif kind == "GIF":
        check_sides(*struct.unpack("<HH", prefix[6:10]), max_pixels)
    elif kind == "TIFF":
        _check_tables(prefix, stream)


def _webp_size(start: bytes) -> tuple[int, int]:
    """Width and height from the first 30 bytes of a WebP file: RIFF header, then a chunk of one of three kinds."""

    def number(first: int, last: int) -> int:
        return int.from_bytes(start[first:last], "little")

    match start[12:16]:
        case b"VP8X":
            return number(24, 27) + 1, number(27, 30) + 1
        case b"VP8L":
            return (number(21, 25) & 0x3FFF) + 1, (number(21, 25) >> 14 & 0x3FFF) + 1
        case _:
            return number(26, 28) & 0x3FFF, number(28, 30) & 0x3FFF


def _check_tables(start: bytes, stream: Metered) -> None:
    """The fields of a TIFF's first page: Pillow makes a Python object of every number, and of every strip four."""
    order, big = "<" if start[:2] == b"II" else ">", 43 in start[2:4]
    place, count, field = ("8xQ", "Q", "HHQ8x") if big else ("4xL", "H", "HHL4x")
    try:
        stream.seek(*struct.unpack_from(order + place, start))
        number_of_fields = struct.unpack(order + count, stream.read(struct.calcsize(order + count)))[0]
        fields = stream.read(min(number_of_fields, 1 << 16) * struct.calcsize(order + field))
        table = list(struct.iter_unpack(order + field, fields))
    except struct.error:
        raise ValueError("it is cut short") from None
    for tag, kind, length in table:
        if length > MAX_TABLE and kind not in (1, 2, 6, 7):  # bytes and text stay as they are
            raise ValueError(f"its field {tag} says that it holds {length:,} numbers; expected {MAX_TABLE:,} at most")


def _check_tiles(image: Image.Image, max_pixels: int) -> None:
    """Tiles of a TIFF are decoded whole, however little of them lies in the picture."""
    tags: Any = getattr(image, "tag_v2", {})
    tile = tags.get(322), tags.get(323)  # width, height
    if all(isinstance(side, int) and side > 0 for side in tile):
        width, height = (-(-side // its) * its for side, its in zip(image.size, tile, strict=True))
        try:
            check_sides(width, height, max_pixels)
        except ValueError as error:
            raise ValueError(f"its tiles are {tile[1]:,}×{tile[0]:,} pixels; together {error}") from None
