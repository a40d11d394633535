"""Labelled images in memory, and the way from an image file to pixels: checked and bounded before it is decoded."""

import io
import operator
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

Size = tuple[int, int]  # (height, width)
File = str | Path | bytes | BinaryIO
Fit = Literal["cover", "stretch"]

MAX_PIXELS = 1 << 26  # 8192 × 8192: 200 MB once decoded, and below the size at which Pillow warns
GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L", "I;16N")
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap height and width
# What Pillow registers and can't turn into pixels by itself: EPS is run by Ghostscript, WMF drawn by Windows, IPTC
# holds a file of any other format (EPS too), MPEG is only recognised, and the others wait for somebody's handler.
REFUSED = ("EPS", "WMF", "IPTC", "MPEG", "BUFR", "GRIB", "HDF5")
# The two sides of a PNG; of a JPEG 2000 by its file header; and by its code.
EMBEDDED = re.compile(rb"(?:\x89PNG\r\n\x1a\n.{4}IHDR|\0\0\0\x16ihdr|\xff\x4f\xff\x51.{4})(.{8})", re.DOTALL)
NOT_THIS = (SyntaxError, IndexError, TypeError, struct.error)  # how a plugin says that the file isn't its own

Image.init()  # without it, Pillow knows six formats until one of the others is met
SUFFIXES = tuple(
    suffix
    for suffix, kind in Image.registered_extensions().items()
    if (kind in Image.OPEN and kind not in REFUSED) or kind == "MPO"  # several JPEGs in one file, opened as JPEG
)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory: `images` uint8 (n c y x), `labels` int64 (n), and what the labels are called.

    >>> pair = ImageSet(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([1, 0]), ("cat", "dog"))
    >>> len(pair), pair.shape, pair.read(torch.tensor([1, 1, 0])).shape
    (2, (1, 8, 8), torch.Size([3, 1, 8, 8]))
    >>> image, label = pair[-1]
    >>> image.shape, pair.classes[label]
    (torch.Size([1, 8, 8]), 'cat')
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(f"images must be uint8 (n c y x); got {self.images.dtype} {tuple(self.images.shape)}")
        check_labels(self.labels, len(self.images), self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[UInt8[Tensor, "c y x"], int]:
        """An image and its label, as PyTorch's datasets give them."""
        place = range(len(self))[operator.index(index)]  # as lists take it
        return self.images[place], int(self.labels[place])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image."""
        c, y, x = self.images.shape[1:]
        return c, y, x

    def read(self, indices: Tensor) -> UInt8[Tensor, "b c y x"]:
        """The images at these indices."""
        return self.images[indices]

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, as a set of their own."""
        return ImageSet(self.images[indices], self.labels[indices], self.classes)


def check_labels(labels: Tensor, n_images: int, classes: tuple[str, ...]) -> None:
    """One label an image, each of them the index of a class; or a sentence."""
    if labels.dtype != torch.int64 or labels.shape != (n_images,):
        raise ValueError(f"labels must be int64 ({n_images}); got {labels.dtype} {tuple(labels.shape)}")
    if n_images and (int(labels.min()) < 0 or int(labels.max()) >= len(classes)):
        lowest, highest = int(labels.min()), int(labels.max())
        raise ValueError(f"labels must lie in 0…{len(classes) - 1}; got {lowest}…{highest}")


class ImageHeader(NamedTuple):
    """What a file says of its image before any pixel is decoded."""

    height: int
    width: int
    grey: bool


def decode(
    file: File,
    size: Size | None = None,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    *,
    name: str | None = None,
    fit: Fit = "cover",
) -> UInt8[Tensor, "c y x"]:
    """The pixels of an image file, upright, on white where it is transparent; one sentence if it can't be read.

    With a `size` of (height, width) the image is scaled (bicubic, antialiased): to cover it, and its centre is kept;
    or, with fit="stretch", to be all of it. `name` is what messages call it.

    >>> stream = io.BytesIO()
    >>> Image.new("RGBA", (30, 20), (255, 0, 0, 0)).save(stream, "PNG")
    >>> decode(stream.getvalue()).shape, decode(stream.getvalue(), size=(8, 8), channels=1).unique()
    (torch.Size([3, 20, 30]), tensor([255], dtype=torch.uint8))
    """
    check_size(size)
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}; expected 1 (grey) or 3 (colour)")
    if fit not in ("cover", "stretch"):
        raise ValueError(f"fit is {fit!r}; expected 'cover' or 'stretch'")
    with _opened(file, name, max_pixels) as image:
        return to_tensor(to_grey_or_rgb(ImageOps.exif_transpose(image), channels), size, fit)


def probe(file: File, max_pixels: int = MAX_PIXELS, *, name: str | None = None) -> ImageHeader:
    """Height, width (upright) and whether it is grey, from the header alone."""
    with _opened(file, name, max_pixels) as image:
        width, height = image.size
        if image.getexif().get(0x0112) in TURNED and image.format != "TIFF":  # whose size Pillow has turned already
            width, height = height, width
        return ImageHeader(height, width, image.mode in GREY)


def check_size(size: Size | None) -> None:
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size is {size}; expected (height, width), one or more pixels each")


def to_tensor(image: Image.Image, size: Size | None = None, fit: Fit = "cover") -> UInt8[Tensor, "c y x"]:
    """A grey or RGB picture as a tensor, brought to `size` if one is given."""
    if size is not None:
        height, width = size
        if fit == "stretch":
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        else:
            image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    pixels = np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def to_picture(image: Any, name: str) -> Image.Image:
    """Pillow's picture, grey or RGB, of one of Pillow's, an array (y x) or (y x c), or a tensor (c y x), of bytes or of
    floats in 0…1; else one sentence, in which it has this name."""
    if isinstance(image, Image.Image):
        return to_grey_or_rgb(ImageOps.exif_transpose(image), 1 if image.mode in GREY else 3)
    if not isinstance(image, (Tensor, np.ndarray)):
        raise ValueError(f"{name} is a {type(image).__name__}; expected a Pillow image, an array or a tensor")
    axes, pixels = "(y x c)", image
    if isinstance(pixels, Tensor):
        axes, pixels = "(c y x)", pixels.detach().cpu()
        pixels = (pixels.float() if pixels.is_floating_point() else pixels).numpy()
        pixels = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels
    if not pixels.size or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (1,), (3,)):
        raise ValueError(f"{name} is {tuple(image.shape)}; expected (y x) or {axes} with 1 or 3 channels")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN neither
            values = f"{pixels.min():g}…{pixels.max():g}"
            raise ValueError(f"{name} has the values {values}; expected floats in 0…1, or bytes")
        pixels = np.round(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ValueError(f"{name} holds {pixels.dtype}; expected uint8, or floats in 0…1")
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))


def to_grey_or_rgb(image: Image.Image, channels: int) -> Image.Image:
    """Any mode as grey or RGB: 16 bits cut to 8, palettes looked up, transparency laid on white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("it holds 32-bit floats; expected 8 or 16 bits a channel")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


@contextmanager
def _opened(file: File, name: str | None, max_pixels: int) -> Iterator[Image.Image]:
    """The image with only its header read. Whatever goes wrong inside becomes one sentence that names the file."""
    name = name or str(file if isinstance(file, (str, Path)) else getattr(file, "name", "the image"))
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(_stream(file))
            image = stack.enter_context(_identified(stream, name, max_pixels))
            _bounded(image.width, image.height, max_pixels)
            yield image
        except Exception as error:  # Pillow raises anything on broken bytes: SyntaxError, struct.error, IndexError…
            raise ValueError(one_line(f"{name} can't be read: {reason(error)}")) from error


@contextmanager
def _stream(file: File) -> Iterator[BinaryIO]:
    if isinstance(file, (str, Path)):
        with open(file, "rb") as stream:
            yield stream
    else:
        yield io.BytesIO(file) if isinstance(file, bytes) else file


def _identified(stream: BinaryIO, name: str, max_pixels: int) -> Image.Image:
    """Opened by what the bytes say, and by the name only if they say nothing.

    `Image.open` would do, but above its own limit it raises without telling the size, or warns, which threads share.
    """
    start = stream.tell()
    prefix = stream.read(30)
    if not prefix:
        raise ValueError("it is empty")
    signed = [kind for kind in Image.ID if _has_signature(kind, prefix)]
    by_suffix = Image.EXTENSION.get(Path(name).suffix.lower())
    unsigned = [kind for kind in Image.ID if Image.OPEN[kind][1] is None and by_suffix in (None, kind)]
    wrong = None
    for kind in [*signed, *unsigned]:
        if kind in REFUSED:
            continue
        stream.seek(start)
        _check_inside(kind, stream, max_pixels)
        stream.seek(start)
        try:
            return Image.OPEN[kind][0](stream, "")
        except NOT_THIS as error:
            wrong = wrong or (error if kind in signed else None)
    if wrong is not None:
        raise wrong
    if signed:
        raise ValueError(f"it is {signed[0]}, which isn't read here; save it as PNG")
    raise ValueError("it is no image in a format that Pillow reads")


def _has_signature(kind: str, prefix: bytes) -> bool:
    accept = Image.OPEN[kind][1]
    try:
        return accept is not None and accept(prefix) is True  # or a text: what this build of Pillow lacks for it
    except NOT_THIS:
        return False


def _check_inside(kind: str, stream: BinaryIO, max_pixels: int) -> None:
    """Bounds what Pillow decodes when it opens a file, or that may be larger than the file says it is."""
    if kind == "WEBP":
        _bounded(*_webp_size(stream.read(30)), max_pixels)
    elif kind in ("ICO", "ICNS"):  # icons are lists of whole PNG and JPEG 2000 files
        for match in re.finditer(EMBEDDED, stream.read()):
            _bounded(*struct.unpack(">II", match[1]), max_pixels)


def _bounded(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        size = f"{height:,}×{width:,}"
        raise ValueError(f"it is {size} pixels, more than the limit of {max_pixels:,}; make it smaller")


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


def reason(error: BaseException) -> str:
    """Why it failed, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def one_line(text: str) -> str:
    """Names of files may hold line breaks; a sentence may not."""
    return " ".join(text.split())
