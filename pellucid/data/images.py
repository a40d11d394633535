"""Labelled images in memory, and the way from an image file to pixels."""

import operator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from pellucid.data.aspect import Area, Goal
from pellucid.data.jpeg import decode_alone, decode_plain
from pellucid.data.opener import MAX_PIXELS, TURNED, File, check_sides, opened, orientation
from pellucid.data.sentences import one_line, reason

Size = tuple[int, int]  # (height, width)
Fit = Literal["cover", "stretch"]

GAP = 2  # a JPEG is decoded at ½, ¼ or ⅛ of its sides if at least so many times those that are wanted are left
GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L", "I;16N")
UPRIGHT = {  # by EXIF's orientation, what brings a picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images in memory: `images` uint8 (n c y x), `labels` int64 (n), and what the labels are called.

    Where several classes may be true of an image, `labels` is boolean (n classes).

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
    names: tuple[str, ...] = ()  # of their files, where they had some
    area: Area | None = None  # that they were brought to by their own ratios; then they lie on canvases

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise ValueError(f"images must be uint8 (n c y x); got {self.images.dtype} {tuple(self.images.shape)}")
        check_labels(self.labels, len(self.images), self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[UInt8[Tensor, "c y x"], Any]:
        """An image and its label, as PyTorch's datasets give them."""
        place = range(len(self))[operator.index(index)]  # as lists take it
        return self.images[place], label_at(self.labels, place)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image; of one on a canvas, of that."""
        c, y, x = self.images.shape[1:]
        return c, y, x

    def read(self, indices: Tensor) -> UInt8[Tensor, "b c y x"]:
        """The images at these indices."""
        return self.images[indices]

    def subset(self, indices: Tensor) -> "ImageSet":
        """The images at these indices, as a set of their own."""
        names = tuple(self.names[i] for i in torch.arange(len(self))[indices].tolist()) if self.names else ()
        return ImageSet(self.images[indices], self.labels[indices], self.classes, names, self.area)

    def name_of(self, place: int) -> str:
        """The name of an image's file, or its number."""
        return self.names[place] if self.names else f"number {place}"


def check_labels(labels: Tensor, n_images: int, classes: tuple[str, ...]) -> None:
    """One label an image, each of them the index of a class, or for each class whether it is true; or a sentence."""
    if labels.dtype == torch.bool and labels.shape == (n_images, len(classes)):
        return
    if labels.dtype != torch.int64 or labels.shape != (n_images,):
        raise ValueError(f"labels must be int64 ({n_images}); got {labels.dtype} {tuple(labels.shape)}")
    if n_images and (int(labels.min()) < 0 or int(labels.max()) >= len(classes)):
        lowest, highest = int(labels.min()), int(labels.max())
        raise ValueError(f"labels must lie in 0…{len(classes) - 1}; got {lowest}…{highest}")


def label_at(labels: Tensor, place: int) -> Any:
    """The number of a class, or for each class whether it is true."""
    return labels[place] if labels.ndim == 2 else int(labels[place])


class View(NamedTuple):
    """A part of a picture, without its size: its share of the area, width over height, and where it lies, 0…1.

    >>> View(0.5, 2.0, 0.0, 0.999).box(100, 100)     # top, left, height, width
    (0, 0, 50, 100)
    """

    area: float
    ratio: float
    top: float
    left: float

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width in a picture of this size. A ratio that doesn't fit goes as far as it can."""
        ratio = min(max(self.ratio, self.area * width / height), width / (self.area * height))
        tall = min(height, max(1, round((self.area * height * width / ratio) ** 0.5)))
        wide = min(width, max(1, round((self.area * height * width * ratio) ** 0.5)))
        return int(self.top * (height - tall + 1)), int(self.left * (width - wide + 1)), tall, wide


class ImageHeader(NamedTuple):
    """What a file says of its image before any pixel is decoded."""

    height: int
    width: int
    grey: bool


def decode(
    file: File,
    size: Goal | None = None,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    *,
    name: str | None = None,
    fit: Fit = "cover",
    view: View | None = None,
) -> UInt8[Tensor, "c y x"]:
    """The pixels of an image file, upright, on white where it is transparent; one sentence if it can't be read.

    With a `size` of (height, width) the image is scaled (bicubic, antialiased): to cover it, and its centre is kept;
    or, with fit="stretch", to be all of it. With an `Area` it keeps the ratio of its sides. With a `view` that part
    of it becomes the whole. A JPEG that is much larger is decoded at a half, a quarter or an eighth of its sides.
    `name` is what messages call it.

    >>> import io
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

    def choose(height: int, width: int) -> int:
        return 1 if size is None else _shrinkage(height, width, size, fit, view)

    pixels = decode_alone(file, channels, max_pixels, choose)
    if pixels is not None:
        return bring_to_size(torch.from_numpy(pixels).permute(2, 0, 1), size, fit, view)
    with opened(file, name, max_pixels) as image:
        shrink = 1 if size is None or image.format != "JPEG" else choose(*_upright_sides(image))
        pixels = decode_plain(image, channels, shrink)
        if pixels is not None:
            return bring_to_size(torch.from_numpy(pixels).permute(2, 0, 1), size, fit, view)
        if shrink > 1:
            image.draft(None, (image.width // shrink, image.height // shrink))
        return to_tensor(to_grey_or_rgb(upright(image), channels), size, fit, view)


def probe(file: File, max_pixels: int = MAX_PIXELS, *, name: str | None = None) -> ImageHeader:
    """Height, width (upright) and whether it is grey, from the header alone."""
    with opened(file, name, max_pixels) as image:
        return ImageHeader(*_upright_sides(image), image.mode in GREY)


def check_size(size: Goal | None) -> None:
    if isinstance(size, Area):
        return
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size is {size}; expected (height, width), one or more pixels each")


def to_tensor(
    image: Image.Image, size: Goal | None = None, fit: Fit = "cover", view: View | None = None
) -> UInt8[Tensor, "c y x"]:
    """A grey or RGB picture as a tensor, brought to `size` if one is given."""
    pixels = np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1)
    return bring_to_size(torch.from_numpy(pixels).permute(2, 0, 1), size, fit, view)


def bring_to_size(
    picture: UInt8[Tensor, "c h w"], size: Goal | None = None, fit: Fit = "cover", view: View | None = None
) -> UInt8[Tensor, "c y x"]:
    """A picture in this size, as `decode` says; in its own if none is given.

    PyTorch's kernel for bytes: where the processor has AVX2 it takes a fifth of Pillow's time.
    """
    if size is not None:
        (top, left, height, width), size = _place(picture.shape[1], picture.shape[2], size, fit, view)
        picture = picture[:, top : top + height, left : left + width]
    if size is None or size == picture.shape[1:]:  # NumPy's copy: PyTorch's would start threads in each of ours
        return torch.from_numpy(np.ascontiguousarray(picture.numpy()))
    image = picture[None]
    if size == (1, 1):  # PyTorch 2.13 fails there unless the channels come last
        image = image.contiguous(memory_format=torch.channels_last)
    return F.interpolate(image, size, mode="bicubic", antialias=True)[0].contiguous()


def _place(height: int, width: int, size: Goal, fit: Fit, view: View | None) -> tuple[tuple[int, int, int, int], Size]:
    """What of a picture is brought to which size; of one that keeps its ratio, what its whole patches don't cut off."""
    if not isinstance(size, Area):
        return _box(height, width, size, fit, view), size
    top, left, tall, wide = (0, 0, height, width) if view is None else view.box(height, width)
    own = size.of(tall, wide)
    below, beside, tall, wide = _box(tall, wide, own, "cover", None)
    return (top + below, left + beside, tall, wide), own


def _box(height: int, width: int, size: Size, fit: Fit, view: View | None) -> tuple[int, int, int, int]:
    """Top, left, height and width of what is brought to a size: a view, all of it, or as much of the middle as has its
    shape."""
    if view is not None:
        return view.box(height, width)
    if fit == "stretch":
        return 0, 0, height, width
    tall = min(height, max(1, round(width * size[0] / size[1])))
    wide = min(width, max(1, round(height * size[1] / size[0])))
    tall, wide = tall + (height - tall) % 2, wide + (width - wide) % 2  # as much on one side as on the other
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _upright_sides(image: Image.Image) -> Size:
    width, height = image.size
    return (width, height) if orientation(image) in TURNED else (height, width)


def _shrinkage(height: int, width: int, size: Goal, fit: Fit, view: View | None) -> int:
    """8, 4 or 2 if a JPEG's sides can be divided by that while it is decoded, else 1."""
    (_, _, tall, wide), own = _place(height, width, size, fit, view)
    left = min(tall / own[0], wide / own[1])
    return next((times for times in (8, 4, 2) if left >= GAP * times), 1)


def to_picture(image: Any, name: str) -> Image.Image:
    """Pillow's picture, grey or RGB, of one of Pillow's, an array (y x) or (y x c), or a tensor (c y x), of bytes or of
    floats in 0…1; else one sentence, in which it has this name."""
    if isinstance(image, Image.Image):
        try:
            check_sides(*image.size)
            return to_grey_or_rgb(upright(image), 1 if image.mode in GREY else 3)
        except Exception as error:  # one that was opened and not read yet raises anything, as in `opened`
            raise ValueError(one_line(f"{name} can't be read: {reason(error)}")) from error
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


def upright(image: Image.Image) -> Image.Image:
    """The picture, decoded and turned as its EXIF says. Pillow's own function would copy it, and rewrite the EXIF."""
    image.load()
    method = UPRIGHT.get(orientation(image))
    return image if method is None else image.transpose(method)


def to_grey_or_rgb(image: Image.Image, channels: int) -> Image.Image:
    """Any mode as grey or RGB: 16 bits cut to 8, palettes looked up, transparency laid on white."""
    wanted = "L" if channels == 1 else "RGB"
    if image.mode.startswith("I"):
        pixels = np.array(image)
        pixels.clip(0, 0xFFFF, out=pixels)
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("it holds 32-bit floats; expected 8 or 16 bits a channel")
    if image.has_transparency_data:
        paper = Image.new("RGB", image.size, "white")
        clear = image if image.mode == "RGBA" else image.convert("RGBA")
        paper.paste(clear, mask=clear)
        image = paper
    return image if image.mode == wanted else image.convert(wanted)
