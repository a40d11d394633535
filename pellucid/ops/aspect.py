"""Pictures of different shapes in one batch: each lies at the top left of a canvas, and its patches come first.

Axes: b batch, y and x rows and columns, of pixels or of patches, n patches of one picture, row by row.
"""

from math import isqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Patches(NamedTuple):
    """Which patches of a canvas are a picture's, row by row; where there is none, y and x are 0.

    >>> find_patches(torch.tensor([[[1, 1, 0], [1, 1, 0]]]), (1, 1), 6).there.int()
    tensor([[1, 1, 1, 1, 0, 0]], dtype=torch.int32)
    """

    rows: Int[Tensor, " b"]
    """Of each picture's grid."""
    columns: Int[Tensor, " b"]
    y: Int[Tensor, "b n"]
    """The row of each patch."""
    x: Int[Tensor, "b n"]
    there: Bool[Tensor, "b n"]
    """Which of the n are patches of the picture."""


def canvas_grid(grid: tuple[int, int]) -> tuple[int, int]:
    """The rows and columns that other grids of no more patches may have: √2 times those of a square.

    So pictures up to twice as wide as high, or as high as wide, use all patches that they may.

    >>> canvas_grid((14, 14)), canvas_grid((4, 16))
    ((19, 19), (11, 16))
    """
    longest = isqrt(2 * grid[0] * grid[1])
    return max(grid[0], longest), max(grid[1], longest)


def fit_grid(grid: tuple[int, int], high: int, wide: int) -> tuple[int, int]:
    """The grid of as many patches as `grid` has, or a few less, whose sides are to each other as high is to wide.

    high, wide: of the picture, in any unit of patches. What a grid's whole patches have too much is less than one row
    or column, so the same picture gets the same grid after it was cut to it.

    >>> fit_grid((14, 14), 2, 3), fit_grid((14, 14), 11, 17), fit_grid((14, 14), 5, 5), fit_grid((14, 14), 1, 100)
    ((11, 17), (11, 17), (14, 14), (1, 19))
    """
    most, (tallest, widest) = grid[0] * grid[1], canvas_grid(grid)
    growing = [(k, -(-k * wide // high)) for k in range(1, tallest + 1)]
    growing += [(-(-k * high // wide), k) for k in range(1, widest + 1)]
    fitting = [(y, x) for y, x in growing if y * x <= most and y <= tallest and x <= widest]
    return max(fitting, key=sum, default=(1, widest) if wide > high else (tallest, 1))


def find_patches(there: Tensor, patch: tuple[int, int], most: int) -> Patches:
    """The patches of the pictures on canvases. there: (b y x) not 0 where there is picture, from the top left on.

    most: patches that a picture has, whatever its shape.
    """
    rows, columns = (there[:, :: patch[0], 0] > 0).sum(1), (there[:, 0, :: patch[1]] > 0).sum(1)
    place, across = torch.arange(most, device=there.device), columns.clamp(min=1)[:, None]
    known = place < (rows * columns)[:, None]
    y, x = (torch.where(known, each, 0) for each in (place // across, place % across))
    return Patches(rows, columns, y, x, known)


def measure(there: Tensor) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
    """Height and width of each picture on its canvas.

    >>> measure(torch.tensor([[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]))
    (tensor([2]), tensor([2]))
    """
    return (there[:, :, 0] > 0).sum(1), (there[:, 0] > 0).sum(1)


def pick_places(tokens: Float[Tensor, "b t d"], patches: Patches, across: int) -> Float[Tensor, "b n d"]:
    """Of a canvas's tokens, `across` in a row, those at these patches."""
    place = patches.y * across + patches.x
    return tokens.gather(1, place[..., None].expand(-1, -1, tokens.shape[-1]))
