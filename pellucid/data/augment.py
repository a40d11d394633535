"""Augmentation of whole batches, on the device that holds them.

A pure function of (seed, step, position in the global batch): no generator, no state, no exchange between processes, no
shape that depends on data, nothing that waits for the device. The order is zoom, flip and crop, policy, normalisation,
erased boxes, mixing. Until normalisation the pixels are bytes and all arithmetic is whole, the same on every device.

Axes: b batch, c channels, y rows, x columns.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from pellucid.data import draws
from pellucid.data.draws import Count
from pellucid.data.images import View
from pellucid.data.policy import OPERATIONS, STRONGEST, Sides, gather_pixels, in_pixels, perturb, sample_pixels
from pellucid.ops.aspect import measure

Key = tuple[Count, Count, Int[Tensor, " b"]]  # seed, step, positions
Epoch = Count | Int[Tensor, " b"]  # the same for all, or each image its own
Flip = Literal["none", "random", "alternating"]
CropFill = Literal["zero", "reflect"]
Policy = Literal["none", "randaugment", "trivial"]

# Streams of draws. A policy's i-th operation uses the last three, 3·i further on.
FLIP, ALTERNATE, CROP, CUTOUT, ERASE, SHAPE, CORNER, MIX, LAMBDA, BOX = 0, 1, 2, 4, 6, 7, 9, 11, 12, 13
OPERATION, SIGN, LEVEL = 15, 16, 17
ZOOM = 90  # and three more; a policy's operations would reach it at the 26th


@dataclass(frozen=True)
class Augment:
    """What happens to a batch before the model sees it; the default is nothing."""

    flip: Flip = "none"
    """Left and right exchanged: with probability ½, or alternating, a random half of the dataset in one epoch and the
    other half in the next, so that any two epochs in a row see both faces of each image (Jordan 2024)."""
    crop: int = 0
    """The image is padded by so many pixels and cut back to its size, anywhere."""
    crop_fill: CropFill = "reflect"
    """What the padding holds: black, or the image mirrored."""
    zoom: float = 1.0
    """Smallest share of the image's area that is cut out, anywhere, its sides' ratio changed by up to 3:4 or 4:3, and
    scaled to the whole (Szegedy et al. 2015); 1 for no zoom."""
    zoom_side: int | None = None
    """Side that zoom scales what it cuts out to, the image's own unless given. A smaller one costs less, and suits a
    model that is asked at full size, where things look smaller than what was cut out (Touvron et al. 2019)."""
    cutout: int = 0
    """Side of a square replaced by the mean, anywhere, also partly outside (DeVries & Taylor 2017)."""
    erasing: float = 0.0
    """Probability that a rectangle of 2–33 % of the image is replaced by the mean (Zhong et al. 2017)."""
    policy: Policy = "none"
    """RandAugment: random operations at one strength (Cubuk et al. 2020). TrivialAugment: one random operation at a
    random strength from wider ranges (Müller & Hutter 2021)."""
    operations: int = 2
    """How many, for randaugment."""
    magnitude: int = 9
    """Their strength, of 30, for randaugment."""
    mixup: float = 0.0
    """α of Beta(α, α), from which a pair of images draws its share. With cutmix too, a pair does one or the other."""
    cutmix: float = 0.0
    """The same for a box of one image in the other."""
    small: float = 0.0
    """Share of the run, from its beginning, that sees images scaled down, which are fewer tokens (Tan & Le 2021)."""
    small_side: int = 24
    """Their shorter side, for small."""
    smaller: float = 0.0
    """Share of the run, from its beginning and part of `small`, that sees them smaller still."""
    smaller_side: int = 16
    """Their shorter side, for smaller."""

    def __post_init__(self) -> None:
        for name, choices in (("flip", Flip), ("crop_fill", CropFill), ("policy", Policy)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(choices))}")
        for name in ("crop", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} pixels; expected zero or more")
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected α of Beta(α, α), or 0 for none")
        if not 0 < self.zoom <= 1:
            raise ValueError(f"zoom is {self.zoom}; expected a share of the area above 0, or 1 for none")
        if self.zoom_side is not None and (self.zoom_side < 1 or self.zoom == 1):
            raise ValueError(f"zoom_side is {self.zoom_side} and zoom {self.zoom}; expected a side, and a zoom below 1")
        if not 0 <= self.small <= 0.9:
            raise ValueError(f"small is {self.small}; expected a share of the run, 0…0.9")
        if self.smaller and not (0 < self.smaller < self.small and 1 <= self.smaller_side < self.small_side):
            raise ValueError(
                f"smaller is {self.smaller} with a side of {self.smaller_side}, small {self.small} with "
                f"{self.small_side}; expected a smaller share, from 0, and a smaller side, from one pixel"
            )
        if self.small_side < 1 or (self.small and self.zoom_side):
            raise ValueError(
                f"small_side is {self.small_side} and zoom_side {self.zoom_side}; "
                "expected one pixel or more, and one of the two"
            )
        if not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing is {self.erasing}; expected a probability, 0…1")
        if self.operations < 1:
            raise ValueError(f"operations is {self.operations}; expected one or more, or policy='none'")
        if not 0 <= self.magnitude <= STRONGEST:
            raise ValueError(f"magnitude is {self.magnitude}; expected 0…{STRONGEST}")
        if self.policy != "randaugment" and (self.operations, self.magnitude) != (2, 9):
            raise ValueError(f"operations and magnitude belong to policy='randaugment'; got policy={self.policy!r}")


@dataclass(frozen=True)
class Normalise:
    """Mean and standard deviation of each channel, for pixels in 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} channels and std {len(self.std)}; expected the same, at least one"
            )
        if not all(0 <= mean <= 1 for mean in self.mean) or not all(0 < std <= 1 for std in self.std):
            raise ValueError(f"mean {self.mean} and std {self.std} are for pixels in 0…1; divide those of bytes by 255")


class Augmented(NamedTuple):
    """The target is weight · onehot(labels) + (1 − weight) · onehot(others); labels (b classes) are that already."""

    images: Float[Tensor, "b c y x"]
    labels: Tensor
    others: Tensor
    weight: Float[Tensor, " b"]


def augment(
    images: Tensor,
    labels: Tensor,
    config: Augment,
    normalise: Normalise,
    *,
    seed: Count,
    step: Count,
    epoch: Epoch,
    index: Tensor,
    positions: Tensor,
) -> Augmented:
    """Bytes (b c y x) to float32, augmented and normalised. Images on canvases have a channel more, as they had before.

    index: (b) where each image stands in the dataset. positions: (b) where it stands in the global batch. A process
    that holds positions 2i and 2i + 1 side by side, from an even place on, mixes its pairs as one process would; an
    image without its partner stays whole. In torch.compile or a CUDA graph, give step and epoch as tensors on the
    device: they change, the graph doesn't.

    >>> images, n = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8), torch.arange(2)
    >>> out = augment(
    ...     images, n, Augment(cutmix=1.0), Normalise((0.5,), (0.5,)), seed=0, step=3, epoch=0, index=n, positions=n
    ... )
    >>> out.images.shape, out.labels, out.others, out.weight
    (torch.Size([2, 1, 4, 4]), tensor([0, 1]), tensor([1, 0]), tensor([0.8750, 0.8750]))
    """
    _check_images(images, normalise)
    _check_batch(images, {"labels": labels, "index": index, "positions": positions})
    key, there, sides = (seed, step, positions), images[:, len(normalise.mean) :], None
    if there.shape[1]:
        check_canvases(config)
        images, sides = images[:, : len(normalise.mean)], measure(there[:, 0])
    if config.zoom < 1:
        images = _zoom(images, config, key, sides)
    if config.crop or config.flip != "none":
        images = _flip_and_crop(images, config, key, epoch, index, sides)
    if config.policy != "none":
        images = _apply_policy(images, config, key, sides)
    pixels = normalised(images if sides is None else torch.cat([images, there], 1), normalise)
    if config.cutout or config.erasing:
        pixels = _erase(pixels, config, key, sides)
    if config.mixup or config.cutmix:
        return _mix_pairs(pixels, labels, config, key)
    return Augmented(pixels, labels, labels, torch.ones(len(labels), device=labels.device))


def check_canvases(config: Augment) -> None:
    """A sentence if pictures of different shapes on canvases can't be augmented so."""
    if config.mixup or config.cutmix or config.small or config.zoom_side:
        raise ValueError(
            "pictures that keep the ratio of their sides have grids of their own, which aren't mixed or made smaller; "
            "leave mixup, cutmix, small and zoom_side out (--augment.cutmix 0)"
        )


def normalised(images: Tensor, normalise: Normalise) -> Tensor:
    """Bytes (b c y x) to float32 (b c y x): (pixel / 255 − mean) / std.

    One channel more than there are means says where images are on their canvases: it becomes 1 there and 0 beside them,
    and so do all channels beside them.

    >>> normalised(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), Normalise((0.5,), (0.25,)))
    tensor([[[[-2.,  2.]]]])
    """
    _check_images(images, normalise)
    pairs = list(zip(normalise.mean, normalise.std, strict=True))
    scale = _channels([1 / (255 * std) for _, std in pairs], images.device)
    shift = _channels([-mean / std for mean, std in pairs], images.device)
    there = images[:, len(pairs) :]
    # In place: most of an eager CPU's time goes into fresh pages.
    pixels = images[:, : len(pairs)].float().mul_(scale).add_(shift)
    return torch.cat([pixels.mul_(there > 0), (there > 0).float()], 1) if there.shape[1] else pixels


def _zoom(
    images: UInt8[Tensor, "b c y x"], config: Augment, key: Key, sides: Sides | None = None
) -> UInt8[Tensor, "b c _y _x"]:
    """A part of each image, scaled to all of it: between pixels, in 256ths of their distance.

    Of images with sides of their own the part has their ratio.
    """
    share, ratio = draws.uniform(*key, range(ZOOM, ZOOM + 2)).unbind()
    area = config.zoom + (1 - config.zoom) * share
    stretch = ((2 * ratio - 1) * math.log(4 / 3)).exp() if sides is None else torch.ones_like(ratio)
    x = images.int()
    for dim, cut in ((2, area * stretch), (3, area / stretch)):
        whole: Any = images.shape[dim] if sides is None else sides[dim - 2]
        part = (whole * cut.sqrt()).round().long().clamp(min=1).clamp(max=whole)
        first = draws.integers(*key, ZOOM + dim, whole - part + 1)
        x = _scale(x, dim, first, part, config.zoom_side or images.shape[dim], None if sides is None else whole)
    return ((x + (1 << 15)) >> 16).to(torch.uint8)


def shrink(images: UInt8[Tensor, "b c y x"], side: int) -> UInt8[Tensor, "b c _y _x"]:
    """Images scaled until their shorter side is `side`, between pixels; those that are no larger stay.

    >>> shrink(torch.tensor([[[[0, 100, 200, 100]] * 2]], dtype=torch.uint8), 1)
    tensor([[[[ 50, 150]]]], dtype=torch.uint8)
    """
    shorter = min(images.shape[-2:])
    if shorter <= side:
        return images
    x, first = images.int(), torch.zeros(len(images), dtype=torch.int64, device=images.device)
    for dim in (2, 3):
        whole = images.shape[dim]
        x = _scale(x, dim, first, first + whole, round(whole * side / shorter))
    return ((x + (1 << 15)) >> 16).to(torch.uint8)


def _scale(
    x: Tensor, dim: int, first: Int[Tensor, " b"], part: Int[Tensor, " b"], side: int, own: Tensor | None = None
) -> Tensor:
    """Of each image the `part` pixels from `first` on brought to `side`, or to its own of so many, times 256."""
    whole = x.shape[dim]
    place = torch.arange(side, device=x.device)
    at = (2 * place + 1) * (128 * part[:, None]) // (
        side if own is None else own[:, None]
    ) - 128  # the middle of each new pixel
    at = at.clamp(min=0).minimum(256 * (part[:, None] - 1)) + 256 * first[:, None]
    at = at[:, None, :, None] if dim == 2 else at[:, None, None, :]
    before, further = at >> 8, (at & 255).int()
    after = (before + 1).clamp(max=whole - 1)
    return x.take_along_dim(before, dim) * (256 - further) + x.take_along_dim(after, dim) * further


def draw_views(zoom: float, key: Key) -> list[View]:
    """The parts that `zoom` cuts out, of pictures that are read: in shares, since no picture has been opened yet.

    >>> [view.box(100, 150) for view in draw_views(0.25, (0, 3, torch.arange(2)))]
    [(12, 40, 73, 67), (0, 17, 100, 114)]
    """
    draws_of = [draws.uniform(*key, ZOOM + i).double() for i in range(4)]
    area = zoom + (1 - zoom) * draws_of[0]
    ratio = ((2 * draws_of[1] - 1) * math.log(4 / 3)).exp()
    rows = torch.stack([area, ratio, draws_of[2], draws_of[3]], dim=1)
    return [View(*row) for row in rows.tolist()]


def _flip_and_crop(
    images: UInt8[Tensor, "b c y x"],
    config: Augment,
    key: Key,
    epoch: Epoch,
    index: Int[Tensor, " b"],
    sides: Sides | None = None,
) -> UInt8[Tensor, "b c y x"]:
    """Flipped, then shifted: each pixel asks where in the image it comes from."""
    height, width = images.shape[-2:]
    row = torch.arange(height, device=images.device)[None, :, None]
    column = torch.arange(width, device=images.device)[None, None]
    if sides is not None:
        height, width = map(in_pixels, sides)
        row, column = row.clamp(max=height - 1), column.clamp(max=width - 1)
    if config.crop:
        if config.crop_fill == "reflect" and config.crop >= min(images.shape[-2:]):
            raise ValueError(
                f"crop is {config.crop} pixels of reflection, expected less than the image's {height} × {width}; "
                "use crop_fill='zero'"
            )
        shift = draws.integers(*key, range(CROP, CROP + 2), 2 * config.crop + 1) - config.crop
        row, column = (where + by[:, None, None] for where, by in zip((row, column), shift.unbind(), strict=True))
        if config.crop_fill == "reflect":
            row = height - 1 - (height - 1 - row.abs()).abs()
            column = width - 1 - (width - 1 - column.abs()).abs()
    if config.flip != "none":
        column = torch.where(flips(config, key, epoch, index)[:, None, None], width - 1 - column, column)
    if config.crop and config.crop_fill == "zero":
        return sample_pixels(images, row, column, sides)
    if sides is not None:  # one may be narrower than the margin
        row, column = row.clamp(min=0).clamp(max=height - 1), column.clamp(min=0).clamp(max=width - 1)
    return gather_pixels(images, row, column)


def flips(config: Augment, key: Key, epoch: Epoch, index: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
    """Which images `augment` flips, for those whose labels must know."""
    if config.flip == "none":
        return torch.zeros_like(index, dtype=torch.bool)
    if config.flip == "random":
        return draws.integers(*key, FLIP, 2) == 1
    return (draws.integers(key[0], 0, index, ALTERNATE, 2) + epoch) % 2 == 1


def _apply_policy(
    images: UInt8[Tensor, "b c y x"], config: Augment, key: Key, sides: Sides | None = None
) -> UInt8[Tensor, "b c y x"]:
    if images.shape[1] not in (1, 3):
        raise ValueError(f"axis c (channels): policy={config.policy!r} knows grey and RGB; got {images.shape[1]}")
    wide = config.policy == "trivial"
    n = 1 if wide else config.operations
    operation, sign, level = (
        draws.integers(*key, range(stream, stream + 3 * n, 3), high)
        for stream, high in ((OPERATION, len(OPERATIONS)), (SIGN, 2), (LEVEL, STRONGEST + 1))
    )
    level = (2 * sign - 1) * (level if wide else config.magnitude)
    for i in range(n):
        images = perturb(images, operation[i], level[i], wide=wide, sides=sides)
    return images


def _erase(
    pixels: Float[Tensor, "b c y x"], config: Augment, key: Key, sides: Sides | None = None
) -> Float[Tensor, "b c y x"]:
    """Boxes of zeros, which is the mean after normalisation. The pixels are written over: nobody else holds them."""
    canvas = pixels.shape[-2:]
    height, width = canvas if sides is None else sides
    colours = pixels if sides is None else pixels[:, :-1]  # a part of an image that is erased is still there
    if config.cutout:
        y, x = _anywhere(key, CUTOUT, height, width)
        side = torch.full_like(y, config.cutout)
        rows, columns = _box(y - side // 2, x - side // 2, side, side, *canvas)
        colours.mul_(_around(rows & columns))  # masked_fill_ takes thirty times as long on a CPU
    if config.erasing:
        chosen = draws.uniform(*key, ERASE) < config.erasing
        area, ratio = draws.uniform(*key, range(SHAPE, SHAPE + 2)).double().unbind()
        area = 0.02 + (0.33 - 0.02) * area
        # Zhong et al. draw again until the rectangle fits; here the ratio goes as far as the sides allow.
        ratio = (math.log(0.3) + math.log(3.3 / 0.3) * ratio).exp()
        ratio = ratio.clamp(area * height / width, height / (area * width))
        tall = (area * height * width * ratio).sqrt().round().long()
        wide = (area * height * width / ratio).sqrt().round().long()
        top, left = _anywhere(key, CORNER, height - tall + 1, width - wide + 1)
        rows, columns = _box(top, left, tall, wide, *canvas)
        colours.mul_(_around(rows & columns & chosen[:, None, None, None]))
    return pixels


def _mix_pairs(pixels: Float[Tensor, "b c y x"], labels: Tensor, config: Augment, key: Key) -> Augmented:
    """Positions 2i and 2i + 1 mixed with each other: the order is random already, so neighbours are a random pair.

    Both take the same share and the same box. What one gives away the other receives, and every image counts 1 in all.
    """
    seed, step, positions = key
    partner = (torch.arange(len(positions), device=positions.device) ^ 1).clamp(max=len(positions) - 1)
    paired = positions[partner] == positions ^ 1
    pair = (seed, step, positions >> 1)
    ways = []
    if config.mixup:
        share = draws.beta(*pair, LAMBDA, config.mixup)
        ways.append((share[:, None, None, None], share))
    if config.cutmix:
        ways.append(_cut(pair, config.cutmix, *pixels.shape[-2:]))
    keep, weight = ways[0]
    if len(ways) == 2:
        cut = draws.integers(*pair, MIX, 2) == 1
        keep, weight = torch.where(cut[:, None, None, None], ways[1][0], keep), torch.where(cut, ways[1][1], weight)
    keep, weight = torch.where(paired[:, None, None, None], keep, 1.0), torch.where(paired, weight, 1.0)
    return Augmented(pixels.index_select(0, partner).lerp_(pixels, keep), labels, labels[partner], weight)


def _cut(pair: Key, alpha: float, height: int, width: int) -> tuple[Float[Tensor, "b 1 y x"], Float[Tensor, " b"]]:
    """0 in a box for the partner and 1 around it, and the part of the image that is left (Yun et al. 2019)."""
    side = (1 - draws.beta(*pair, LAMBDA, alpha)).double().sqrt()
    tall, wide = (side * height).round().long(), (side * width).round().long()
    y, x = _anywhere(pair, BOX, height, width)
    rows, columns = _box(y - tall // 2, x - wide // 2, tall, wide, height, width)
    area = rows.sum((1, 2, 3)) * columns.sum((1, 2, 3))
    return _around(rows & columns), 1 - area.float() / (height * width)


def _around(box: Bool[Tensor, "b 1 y x"]) -> Float[Tensor, "b 1 y x"]:
    """0 in the box, 1 around it."""
    return (~box).float()


def _anywhere(
    key: Key, stream: int, height: int | Int[Tensor, " b"], width: int | Int[Tensor, " b"]
) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """A row below `height` and a column below `width`."""
    y, x = draws.random_bits(*key, range(stream, stream + 2)).unbind()
    return draws.below(y, height), draws.below(x, width)


def _box(
    top: Int[Tensor, " b"],
    left: Int[Tensor, " b"],
    tall: Int[Tensor, " b"],
    wide: Int[Tensor, " b"],
    height: int,
    width: int,
) -> tuple[Bool[Tensor, "b 1 y 1"], Bool[Tensor, "b 1 1 x"]]:
    """The rows and the columns of a box; what lies outside the image is cut off."""
    top, left, tall, wide = (part[:, None, None, None] for part in (top, left, tall, wide))
    y = torch.arange(height, device=top.device)[:, None]
    x = torch.arange(width, device=top.device)
    return (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)


def _channels(values: list[float], device: torch.device) -> Float[Tensor, "c 1 1"]:
    """Filled one by one: a tensor made from a list would be copied to the device, and the host would wait for it."""
    return torch.stack([torch.full((1, 1), value, dtype=torch.float32, device=device) for value in values])


def _check_images(images: Tensor, normalise: Normalise) -> None:
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(f"images must be bytes (b c y x); got {images.dtype} of shape {list(images.shape)}")
    if images.shape[1] not in (len(normalise.mean), len(normalise.mean) + 1):
        raise ValueError(f"axis c (channels): images have {images.shape[1]}, normalise has {len(normalise.mean)}")


def _check_batch(images: Tensor, others: dict[str, Tensor]) -> None:
    for name, tensor in others.items():
        if name == "labels" and tensor.ndim == 2:  # for each class whether it is true
            tensor = tensor[:, 0].int()
        if tensor.shape != images.shape[:1] or tensor.is_floating_point():
            raise ValueError(
                f"{name} must be {images.shape[0]} whole numbers (b), one for each image; "
                f"got {tensor.dtype} of shape {list(tensor.shape)}"
            )
        if tensor.device != images.device:
            raise ValueError(f"{name} is on {tensor.device}, expected {images.device} as images")
