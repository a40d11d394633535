"""Pictures that keep the ratio of their sides: how large each is, and how pictures of different shapes lie in a batch.

Each lies at the top left of a canvas. One more channel says where it is: 255 there and 0 beside it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from pellucid.ops.aspect import canvas_grid, fit_grid


@dataclass(frozen=True)
class Area:
    """As many patches as a picture of `size` has, in a grid with the picture's own ratio.

    >>> area = Area((224, 224), (16, 16))
    >>> area.of(335, 500), area.of(1000, 1000), area.canvas
    ((176, 272), (224, 224), (304, 304))
    """

    size: tuple[int, int]
    patch: tuple[int, int]

    def __post_init__(self) -> None:
        if any(side < step or side % step for side, step in zip(self.size, self.patch, strict=True)):
            raise ValueError(f"size is {self.size}; expected multiples of the patch's {self.patch} pixels")

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    @property
    def canvas(self) -> tuple[int, int]:
        """Height and width of what holds every picture."""
        return self._pixels(canvas_grid(self.grid))

    def of(self, height: int, width: int) -> tuple[int, int]:
        """What a picture of this height and width is brought to: its ratio but for a part of a patch, which is cut."""
        return self._pixels(fit_grid(self.grid, height * self.patch[1], width * self.patch[0]))

    def _pixels(self, grid: tuple[int, int]) -> tuple[int, int]:
        return grid[0] * self.patch[0], grid[1] * self.patch[1]


Goal = tuple[int, int] | Area  # what a picture is brought to: (height, width), or by its own ratio


def shape_in_batch(size: Goal, channels: int) -> tuple[int, int, int]:
    """(channels, height, width) of what a picture takes in a batch, the channel that says where it is included.

    >>> shape_in_batch((8, 8), 3), shape_in_batch(Area((8, 8), (4, 4)), 3)
    ((3, 8, 8), (4, 8, 8))
    """
    return (channels + 1, *size.canvas) if isinstance(size, Area) else (channels, *size)


def put(row: np.ndarray, picture: np.ndarray) -> None:
    """Lay a picture (c h w) into its row of a batch: all of it, or with one channel more the top left of its canvas."""
    channels, height, width = picture.shape
    if len(row) == channels:
        row[...] = picture
        return
    row[:channels, :height, :width] = picture
    row[channels, :height, :width] = 255
    row[:, height:] = 0
    row[:, :height, width:] = 0


def join(pictures: list[Tensor], size: Goal) -> UInt8[Tensor, "b c y x"]:
    """Pictures (c h w) as one batch.

    >>> join([torch.ones(1, 4, 8, dtype=torch.uint8)], Area((8, 8), (4, 4)))[0, :, ::4, ::4]
    tensor([[[  1,   1],
             [  0,   0]],
    <BLANKLINE>
            [[255, 255],
             [  0,   0]]], dtype=torch.uint8)
    """
    if not isinstance(size, Area):
        return torch.stack(pictures)
    batch = torch.empty(len(pictures), *shape_in_batch(size, len(pictures[0])), dtype=torch.uint8)
    for row, picture in zip(batch.numpy(), pictures, strict=True):
        put(row, picture.cpu().numpy())
    return batch


def cut_out(picture: UInt8[Tensor, "c y x"]) -> UInt8[Tensor, "_c h w"]:
    """A picture without its canvas, and without the channel that says where it is.

    >>> cut_out(join([torch.ones(1, 4, 8, dtype=torch.uint8)], Area((8, 8), (4, 4)))[0]).shape
    torch.Size([1, 4, 8])
    """
    there = picture[-1] > 0
    return picture[:-1, : int(there[:, 0].sum()), : int(there[0].sum())]
