"""The operations of RandAugment (Cubuk et al. 2020) and TrivialAugment (Müller & Hutter 2021), on batches of bytes.

Every image has its own operation and strength, and no shape depends on which. The arithmetic is in whole numbers, the
same on every device.

Axes: b batch, c channels, y rows, x columns, v grey levels 0…255.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

Sides = tuple[Int[Tensor, " b"], Int[Tensor, " b"]]  # height and width of each image on its canvas

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

FRACTION = 16  # bits after the point in _warp's coordinates: int32 then holds images up to 8192 pixels wide
THOUSAND = 1000  # 1.0 of a blend: every strength of both policies is a whole number of thousandths


def perturb(
    images: UInt8[Tensor, "b c y x"],
    operation: Int[Tensor, " b"],
    level: Int[Tensor, " b"],
    *,
    wide: bool = False,
    sides: Sides | None = None,
) -> UInt8[Tensor, "b c y x"]:
    """Each image by its own operation (an index into OPERATIONS) at its own level, −30…30.

    wide: the ranges of TrivialAugment instead of RandAugment's. The sign counts where an operation has two directions.
    sides: of images on canvases that are 0 beside them; what comes out there means nothing.
    Every image passes through all three stages, and in all but one of them it meets the parameter that changes nothing.
    The results are torchvision's for tensors, with two exceptions: where torchvision cuts off a float that should have
    been whole, ours is whole (one grey level up, or one pixel on); and a source point halfway between two pixels may
    take the other one.

    >>> inverted = perturb(torch.tensor([[[[9, 200]]]], dtype=torch.uint8), torch.tensor([11]), torch.tensor([30]))
    >>> OPERATIONS[11], inverted
    ('solarize', tensor([[[[246,  55]]]], dtype=torch.uint8))
    """
    level = level.long()
    images = _warp(images, operation, level, wide, sides)
    tones = _tone_table(images, operation, level, wide, sides).gather(2, images.flatten(2).long())
    return _blend(tones.view_as(images), operation, level, wide, sides)


def _warp(
    images: UInt8[Tensor, "b c y x"],
    operation: Int[Tensor, " b"],
    level: Int[Tensor, " b"],
    wide: bool,
    sides: Sides | None = None,
) -> UInt8[Tensor, "b c y x"]:
    """Sheared, translated or rotated; nearest pixel, black outside.

    Shears keep the top left corner in place, rotations the centre. Coordinates are doubled and in fixed point, with the
    centre at 0: pixel x of `width` stands at 2x + 1 − width.
    """
    height, width = images.shape[-2:] if sides is None else sides
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
    height, width = in_pixels(height), in_pixels(width)
    y = 2 * torch.arange(images.shape[2], device=images.device, dtype=torch.int32)[:, None] + 1 - height
    x = 2 * torch.arange(images.shape[3], device=images.device, dtype=torch.int32) + 1 - width
    row = (cos * y + (height - 2 * move_y) * one) + ((sin + skew_y) * x + skew_y * width)
    column = (cos * x + (width - 2 * move_x) * one) + ((skew_x - sin) * y + skew_x * height)
    return sample_pixels(images, row >> FRACTION + 1, column >> FRACTION + 1, sides)


def _tone_table(
    images: UInt8[Tensor, "b c y x"],
    operation: Int[Tensor, " b"],
    level: Int[Tensor, " b"],
    wide: bool,
    sides: Sides | None = None,
) -> UInt8[Tensor, "b c 256"]:
    """What becomes of each grey level in each channel: all that happens to pixels one by one is in this table."""
    v = torch.arange(256, device=images.device)
    height, width = images.shape[-2:] if sides is None else (side[:, None, None].long() for side in sides)
    size = height * width
    level = level[:, None, None]
    factor, strength = THOUSAND + level * (33 if wide else 30), level.abs()
    total = _grey(images).sum((-2, -1))[..., None]
    dropped = (2 * (6 if wide else 4) * strength + STRONGEST) // (2 * STRONGEST)  # bits, rounded
    pixels = images.int()  # Inductor takes the minimum of bytes to be 0 on CPUs (pytorch/pytorch#191499)
    lowest = pixels if sides is None else torch.where(is_inside(images, sides), pixels, 255)
    low, high = lowest.amin((-2, -1))[..., None], pixels.amax((-2, -1))[..., None]
    tones = {
        "brightness": factor * v // THOUSAND,
        "contrast": (factor * v * size + (THOUSAND - factor) * total) // (THOUSAND * size),
        "posterize": v >> dropped << dropped,
        "solarize": torch.where(2 * v >= 510 - 17 * strength, 255 - v, v),  # from 255 − 8.5 · strength on
        "autocontrast": torch.where(high > low, (v - low) * 255 // (high - low).clamp(min=1), v),
        "equalize": _equalising(images, high.long(), size),
    }
    table = v.expand(images.shape[0], images.shape[1], -1)
    for name, changed in tones.items():
        table = torch.where(_is(name, operation)[:, None, None], changed, table)
    return table.clamp(0, 255).to(torch.uint8)


def _equalising(
    images: UInt8[Tensor, "b c y x"], high: Int[Tensor, "b c 1"], size: int | Int[Tensor, "b 1 1"]
) -> Int[Tensor, "b c 256"]:
    """Grey level to its rank. As in Pillow, the brightest level doesn't count in the step from one tone to the next."""
    pixels = images.flatten(2).long()
    counts = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add(2, pixels, pixels.new_ones(()).expand_as(pixels))
    counts[..., :1] -= pixels.shape[2] - size  # what lies beside an image
    step = (size - counts.gather(2, high)) // 255
    ranks = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, ranks, torch.arange(256, device=images.device))


def _blend(
    images: UInt8[Tensor, "b c y x"],
    operation: Int[Tensor, " b"],
    level: Int[Tensor, " b"],
    wide: bool,
    sides: Sides | None = None,
) -> UInt8[Tensor, "b c y x"]:
    """Away from grey (colour) or from the blurred image (sharpness), or towards it. Grey images have no colour."""
    colour, sharpness = _is("colour", operation), _is("sharpness", operation)
    if images.shape[1] == 1:
        colour = torch.zeros_like(colour)
    strength = torch.where(colour | sharpness, level * (33 if wide else 30), 0).int()
    factor = THOUSAND + strength[:, None, None, None]
    other = torch.where(colour[:, None, None, None], _grey(images), _blurred(images, sides))
    blend = (factor * images.int() + (THOUSAND - factor) * other) // THOUSAND
    return blend.clamp(0, 255).to(torch.uint8)


def _grey(images: UInt8[Tensor, "b c y x"]) -> Int[Tensor, "b 1 y x"]:
    """Luma in torchvision's weights, which add up to 0.9999."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().split(1, dim=1)
    return (2989 * red + 5870 * green + 1140 * blue) // 10_000


def _blurred(images: UInt8[Tensor, "b c y x"], sides: Sides | None = None) -> Int[Tensor, "b c y x"]:
    """Mean of 3 × 3 pixels, the middle one counted five times; the border stays as it is."""
    pixels = images.int()
    height, width = images.shape[-2:]
    if min(height, width) < 3:
        return pixels
    rows = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    mean = (2 * (box + 4 * pixels[..., 1:-1, 1:-1]) + 13) // 26  # of 13, rounded
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    height, width = (height, width) if sides is None else map(in_pixels, sides)
    border = (rows[:, None] == 0) | (rows[:, None] == height - 1) | (columns == 0) | (columns == width - 1)
    border = border if sides is None else border[:, None]
    return torch.where(border, pixels, F.pad(mean, (1, 1, 1, 1)))


def sample_pixels(
    images: UInt8[Tensor, "b c y x"], row: Tensor, column: Tensor, sides: Sides | None = None
) -> UInt8[Tensor, "b c y x"]:
    """The pixels at (row, column), each broadcasting to (b y x); black outside."""
    height, width = images.shape[-2:] if sides is None else map(in_pixels, sides)
    nearest_row, nearest_column = row.clamp(min=0).clamp(max=height - 1), column.clamp(min=0).clamp(max=width - 1)
    inside = (row == nearest_row) & (column == nearest_column)
    return gather_pixels(images, nearest_row, nearest_column) * inside[:, None]


def gather_pixels(images: UInt8[Tensor, "b c y x"], row: Tensor, column: Tensor) -> UInt8[Tensor, "b c y x"]:
    b, c, height, width = images.shape
    at = (row * width + column).long().expand(b, height, width).flatten(1)[:, None].expand(-1, c, -1)
    return images.flatten(2).gather(2, at).view_as(images)


def in_pixels(side: int | Tensor) -> Any:
    """A side of each image (b), as it stands beside pixels (b y x)."""
    return side[:, None, None].int() if isinstance(side, Tensor) else side


def is_inside(images: UInt8[Tensor, "b c y x"], sides: Sides) -> Bool[Tensor, "b 1 y x"]:
    """Where images are on their canvases."""
    y = torch.arange(images.shape[2], device=images.device)[:, None]
    x = torch.arange(images.shape[3], device=images.device)
    return ((y < in_pixels(sides[0])) & (x < in_pixels(sides[1])))[:, None]


def _is(name: str, operation: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
    return operation == OPERATIONS.index(name)


def _only(name: str, operation: Int[Tensor, " b"], value: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    return torch.where(_is(name, operation), value, 0)
