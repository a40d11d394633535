"""Augmentation of whole batches, on the device that holds them.

A pure function of (seed, step, position in the global batch): no generator, no state, no exchange between processes, no
shape that depends on data, nothing that waits for the device. The order is flip and crop, policy, normalisation, erased
boxes, mixing. Until normalisation the pixels are bytes and all arithmetic is whole, the same on every device.

Axes: b batch, c channels, y rows, x columns, v grey levels 0…255.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from pellucid.data import draws
from pellucid.data.draws import Count

Key = tuple[Count, Count, Int[Tensor, " b"]]  # seed, step, positions
Epoch = Count | Int[Tensor, " b"]  # the same for all, or each image its own
Flip = Literal["none", "random", "alternating"]
Fill = Literal["zero", "reflect"]
Policy = Literal["none", "randaugment", "trivial"]

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "colour",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
STRONGEST = 30

# Streams of draws. A policy's i-th operation uses the last three, 3·i further on.
FLIP, ALTERNATE, CROP, CUTOUT, ERASE, SHAPE, CORNER, MIX, LAMBDA, BOX = 0, 1, 2, 4, 6, 7, 9, 11, 12, 13
OPERATION, SIGN, LEVEL = 15, 16, 17

FRACTION = 16  # bits after the point in _warped's coordinates: int32 then holds images up to 8192 pixels wide
THOUSAND = 1000  # 1.0 of a blend: every strength of both policies is a whole number of thousandths


@dataclass(frozen=True)
class Augment:
    """What happens to a batch before the model sees it; the default is nothing.

    flip: left and right exchanged. "random": with probability ½. "alternating": a random half of the dataset in one
        epoch, the other half in the next, so that any two epochs in a row see both faces of each image (Jordan 2024).
    crop: the image is padded by so many pixels and cut back to its size, anywhere.
    crop_fill: what the padding holds: black, or the image mirrored.
    cutout: side of a square replaced by the mean, anywhere, also partly outside (DeVries & Taylor 2017).
    erasing: probability that a rectangle of 2–33 % of the image is replaced by the mean (Zhong et al. 2017).
    policy: "randaugment": `operations` random ones at strength `magnitude` of 30 (Cubuk et al. 2020).
        "trivial": one random operation at a random strength from wider ranges (Müller & Hutter 2021).
    mixup, cutmix: α of Beta(α, α), from which a pair draws its share. With both, each pair does one or the other.
    """

    flip: Flip = "none"
    crop: int = 0
    crop_fill: Fill = "reflect"
    cutout: int = 0
    erasing: float = 0.0
    policy: Policy = "none"
    operations: int = 2
    magnitude: int = 9
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in (("flip", Flip), ("crop_fill", Fill), ("policy", Policy)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(choices))}")
        for name in ("crop", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} pixels; expected zero or more")
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected α of Beta(α, α), or 0 for none")
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
    """The target is weight · onehot(labels) + (1 − weight) · onehot(others)."""

    images: Float[Tensor, "b c y x"]
    labels: Int[Tensor, " b"]
    others: Int[Tensor, " b"]
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
    """Bytes (b c y x) to float32, augmented and normalised.

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
    key = (seed, step, positions)
    if config.crop or config.flip != "none":
        images = _framed(images, config, key, epoch, index)
    if config.policy != "none":
        images = _policed(images, config, key)
    pixels = normalised(images, normalise)
    if config.cutout or config.erasing:
        pixels = _erased(pixels, config, key)
    if config.mixup or config.cutmix:
        return _mixed(pixels, labels, config, key)
    return Augmented(pixels, labels, labels, torch.ones(len(labels), device=labels.device))


def normalised(images: Tensor, normalise: Normalise) -> Tensor:
    """Bytes (b c y x) to float32 (b c y x): (pixel / 255 − mean) / std.

    >>> normalised(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), Normalise((0.5,), (0.25,)))
    tensor([[[[-2.,  2.]]]])
    """
    _check_images(images, normalise)
    pairs = list(zip(normalise.mean, normalise.std, strict=True))
    scale = _channels([1 / (255 * std) for _, std in pairs], images.device)
    shift = _channels([-mean / std for mean, std in pairs], images.device)
    return images.float().mul_(scale).add_(shift)  # in place: most of an eager CPU's time goes into fresh pages


def perturb(
    images: UInt8[Tensor, "b c y x"], operation: Int[Tensor, " b"], level: Int[Tensor, " b"], *, wide: bool = False
) -> UInt8[Tensor, "b c y x"]:
    """Each image by its own operation (an index into OPERATIONS) at its own level, −30…30.

    wide: the ranges of TrivialAugment instead of RandAugment's. The sign counts where an operation has two directions.
    Every image passes through all three stages, and in all but one of them it meets the parameter that changes nothing.
    The results are torchvision's for tensors, with two exceptions: where torchvision cuts off a float that should have
    been whole, ours is whole (one grey level up, or one pixel on); and a source point halfway between two pixels may
    take the other one.

    >>> inverted = perturb(torch.tensor([[[[9, 200]]]], dtype=torch.uint8), torch.tensor([11]), torch.tensor([30]))
    >>> OPERATIONS[11], inverted
    ('solarize', tensor([[[[246,  55]]]], dtype=torch.uint8))
    """
    level = level.long()
    images = _warped(images, operation, level, wide)
    tones = _tones(images, operation, level, wide).gather(2, images.flatten(2).long())
    return _blended(tones.view_as(images), operation, level, wide)


def _framed(
    images: UInt8[Tensor, "b c y x"], config: Augment, key: Key, epoch: Epoch, index: Int[Tensor, " b"]
) -> UInt8[Tensor, "b c y x"]:
    """Flipped, then shifted: each pixel asks where in the image it comes from."""
    height, width = images.shape[-2:]
    row = torch.arange(height, device=images.device)[None, :, None]
    column = torch.arange(width, device=images.device)[None, None]
    if config.crop:
        if config.crop_fill == "reflect" and config.crop >= min(height, width):
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
        column = torch.where(_flips(config.flip, key, epoch, index)[:, None, None], width - 1 - column, column)
    if config.crop and config.crop_fill == "zero":
        return _sampled(images, row, column)
    return _gathered(images, row, column)


def _flips(flip: Flip, key: Key, epoch: Epoch, index: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
    if flip == "random":
        return draws.integers(*key, FLIP, 2) == 1
    return (draws.integers(key[0], 0, index, ALTERNATE, 2) + epoch) % 2 == 1


def _policed(images: UInt8[Tensor, "b c y x"], config: Augment, key: Key) -> UInt8[Tensor, "b c y x"]:
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
        images = perturb(images, operation[i], level[i], wide=wide)
    return images


def _warped(
    images: UInt8[Tensor, "b c y x"], operation: Int[Tensor, " b"], level: Int[Tensor, " b"], wide: bool
) -> UInt8[Tensor, "b c y x"]:
    """Sheared, translated or rotated; nearest pixel, black outside.

    Shears keep the top left corner in place, rotations the centre. Coordinates are doubled and in fixed point, with the
    centre at 0: pixel x of `width` stands at 2x + 1 − width.
    """
    height, width = images.shape[-2:]
    one = 1 << FRACTION
    shear = level * (33 if wide else 10) * one // THOUSAND
    angle = torch.deg2rad(_only("rotate", operation, level).double() * (4.5 if wide else 1.0))
    # Up to 32 pixels, or up to 150/331 of the side.
    far_x, far_y = (
        level.abs() * (32 if wide else 5 * side) // (STRONGEST if wide else 331) for side in (width, height)
    )
    cos, sin, skew_x, skew_y, move_x, move_y = (
        part.int()[:, None, None]
        for part in (
            (one * angle.cos()).round(),
            (one * angle.sin()).round(),
            _only("shear_x", operation, shear),
            _only("shear_y", operation, shear),
            _only("translate_x", operation, level.sign() * far_x),
            _only("translate_y", operation, level.sign() * far_y),
        )
    )
    y = 2 * torch.arange(height, device=images.device, dtype=torch.int32)[:, None] + 1 - height
    x = 2 * torch.arange(width, device=images.device, dtype=torch.int32) + 1 - width
    row = (cos * y + (height - 2 * move_y) * one) + ((sin + skew_y) * x + skew_y * width)
    column = (cos * x + (width - 2 * move_x) * one) + ((skew_x - sin) * y + skew_x * height)
    return _sampled(images, row >> FRACTION + 1, column >> FRACTION + 1)


def _tones(
    images: UInt8[Tensor, "b c y x"], operation: Int[Tensor, " b"], level: Int[Tensor, " b"], wide: bool
) -> UInt8[Tensor, "b c 256"]:
    """What becomes of each grey level in each channel: all that happens to pixels one by one is in this table."""
    v = torch.arange(256, device=images.device)
    size = images.shape[-2] * images.shape[-1]
    level = level[:, None, None]
    factor, strength = THOUSAND + level * (33 if wide else 30), level.abs()
    total = _grey(images).sum((-2, -1))[..., None]
    dropped = (2 * (6 if wide else 4) * strength + STRONGEST) // (2 * STRONGEST)  # bits, rounded
    pixels = images.int()  # Inductor takes the minimum of bytes to be 0 on CPUs (pytorch/pytorch#191499)
    low, high = pixels.amin((-2, -1))[..., None], pixels.amax((-2, -1))[..., None]
    tones = {
        "brightness": factor * v // THOUSAND,
        "contrast": (factor * v * size + (THOUSAND - factor) * total) // (THOUSAND * size),
        "posterize": v >> dropped << dropped,
        "solarize": torch.where(2 * v >= 510 - 17 * strength, 255 - v, v),  # from 255 − 8.5 · strength on
        "autocontrast": torch.where(high > low, (v - low) * 255 // (high - low).clamp(min=1), v),
        "equalize": _equalising(images, high.long()),
    }
    table = v.expand(images.shape[0], images.shape[1], -1)
    for name, changed in tones.items():
        table = torch.where(_is(name, operation)[:, None, None], changed, table)
    return table.clamp(0, 255).to(torch.uint8)


def _equalising(images: UInt8[Tensor, "b c y x"], high: Int[Tensor, "b c 1"]) -> Int[Tensor, "b c 256"]:
    """Grey level to its rank. As in Pillow, the brightest level doesn't count in the step from one tone to the next."""
    pixels = images.flatten(2).long()
    counts = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add(2, pixels, pixels.new_ones(()).expand_as(pixels))
    step = (pixels.shape[2] - counts.gather(2, high)) // 255
    ranks = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, ranks, torch.arange(256, device=images.device))


def _blended(
    images: UInt8[Tensor, "b c y x"], operation: Int[Tensor, " b"], level: Int[Tensor, " b"], wide: bool
) -> UInt8[Tensor, "b c y x"]:
    """Away from grey (colour) or from the blurred image (sharpness), or towards it. Grey images have no colour."""
    colour, sharpness = _is("colour", operation), _is("sharpness", operation)
    if images.shape[1] == 1:
        colour = torch.zeros_like(colour)
    strength = torch.where(colour | sharpness, level * (33 if wide else 30), 0).int()
    factor = THOUSAND + strength[:, None, None, None]
    other = torch.where(colour[:, None, None, None], _grey(images), _blurred(images))
    blend = (factor * images.int() + (THOUSAND - factor) * other) // THOUSAND
    return blend.clamp(0, 255).to(torch.uint8)


def _grey(images: UInt8[Tensor, "b c y x"]) -> Int[Tensor, "b 1 y x"]:
    """Luma in torchvision's weights, which add up to 0.9999."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().split(1, dim=1)
    return (2989 * red + 5870 * green + 1140 * blue) // 10_000


def _blurred(images: UInt8[Tensor, "b c y x"]) -> Int[Tensor, "b c y x"]:
    """Mean of 3 × 3 pixels, the middle one counted five times; the border stays as it is."""
    pixels = images.int()
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return pixels
    rows = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    mean = (2 * (box + 4 * pixels[..., 1:-1, 1:-1]) + 13) // 26  # of 13, rounded
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    border = ((rows == 0) | (rows == height - 1))[:, None] | (columns == 0) | (columns == width - 1)
    return torch.where(border, pixels, F.pad(mean, (1, 1, 1, 1)))


def _erased(pixels: Float[Tensor, "b c y x"], config: Augment, key: Key) -> Float[Tensor, "b c y x"]:
    """Boxes of zeros, which is the mean after normalisation. The pixels are written over: nobody else holds them."""
    height, width = pixels.shape[-2:]
    if config.cutout:
        y, x = _anywhere(key, CUTOUT, height, width)
        side = torch.full_like(y, config.cutout)
        rows, columns = _box(y - side // 2, x - side // 2, side, side, height, width)
        pixels.mul_(_around(rows & columns))  # masked_fill_ takes thirty times as long on a CPU
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
        rows, columns = _box(top, left, tall, wide, height, width)
        pixels.mul_(_around(rows & columns & chosen[:, None, None, None]))
    return pixels


def _mixed(pixels: Float[Tensor, "b c y x"], labels: Int[Tensor, " b"], config: Augment, key: Key) -> Augmented:
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
    y, x = draws.words(*key, range(stream, stream + 2)).unbind()
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


def _sampled(images: UInt8[Tensor, "b c y x"], row: Tensor, column: Tensor) -> UInt8[Tensor, "b c y x"]:
    """The pixels at (row, column), each broadcasting to (b y x); black outside."""
    height, width = images.shape[-2:]
    nearest_row, nearest_column = row.clamp(0, height - 1), column.clamp(0, width - 1)
    inside = (row == nearest_row) & (column == nearest_column)
    return _gathered(images, nearest_row, nearest_column) * inside[:, None]


def _gathered(images: UInt8[Tensor, "b c y x"], row: Tensor, column: Tensor) -> UInt8[Tensor, "b c y x"]:
    b, c, height, width = images.shape
    at = (row * width + column).long().expand(b, height, width).flatten(1)[:, None].expand(-1, c, -1)
    return images.flatten(2).gather(2, at).view_as(images)


def _channels(values: list[float], device: torch.device) -> Float[Tensor, "c 1 1"]:
    """Filled one by one: a tensor made from a list would be copied to the device, and the host would wait for it."""
    return torch.stack([torch.full((1, 1), value, dtype=torch.float32, device=device) for value in values])


def _is(name: str, operation: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
    return operation == OPERATIONS.index(name)


def _only(name: str, operation: Int[Tensor, " b"], value: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    return torch.where(_is(name, operation), value, 0)


def _check_images(images: Tensor, normalise: Normalise) -> None:
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(f"images must be bytes (b c y x); got {images.dtype} of shape {list(images.shape)}")
    if images.shape[1] != len(normalise.mean):
        raise ValueError(f"axis c (channels): images have {images.shape[1]}, normalise has {len(normalise.mean)}")


def _check_batch(images: Tensor, others: dict[str, Tensor]) -> None:
    for name, tensor in others.items():
        if tensor.shape != images.shape[:1] or tensor.is_floating_point():
            raise ValueError(
                f"{name} must be {images.shape[0]} whole numbers (b), one for each image; "
                f"got {tensor.dtype} of shape {list(tensor.shape)}"
            )
        if tensor.device != images.device:
            raise ValueError(f"{name} is on {tensor.device}, expected {images.device} as images")
