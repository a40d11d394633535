"""Maps over a picture: one cell a patch, in absolute colours with numbers, unless rescaling is asked for and told."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from pellucid.views.colours import QUIET, Scale, colour_bar, colour_bar_in, label_ends, overlay, pixels
from pellucid.views.figures import wrap_title

MOST_PANELS = 6  # panels side by side, at most
WEIGHT = "attention weight of a patch"
RESCALED = "rescaled: each map its own range"
NUMBERED = 0.62  # inches of a cell that leave room for a number below it
CELL_PIXELS = 128  # pixels of a cell's side
WIDEST_GRID, HIGHEST_GRID = 11.0, 13.0  # inches that a grid of cells may take

PatchMap = Float[Tensor, "rows columns"]
Place = tuple[int, int]  # row and column of a patch


class MapPanel(NamedTuple):
    """A map of the patches, and what it is."""

    title: str
    weights: PatchMap


def maps_figure(
    picture: UInt8[Tensor, "c y x"],
    panels: Sequence[MapPanel],
    *,
    tokens: int,
    title: str,
    rescale: bool = False,
    top: float | None = None,
    scale: Scale | None = None,
    label: str = WEIGHT,
) -> Figure:
    """The picture, then once for every panel with the panel's map over it, the largest weight framed.

    All panels share one scale, from 0 to the largest weight of all or to `top`. tokens: how many the picture has to the
    model; with all of them alike, each would have 1/tokens of the attention, and that is marked on the scale.
    scale: of maps that are no weights. rescale: give each panel the whole range of colours, and say so.
    """
    image = pixels(picture)
    ratio = _ratio(image)
    rows = math.ceil((len(panels) + 1) / MOST_PANELS)
    columns = math.ceil((len(panels) + 1) / rows)
    lines = max((panel.title.count("\n") for panel in panels), default=0)
    high = max(rows * (1.55 * ratio + 0.55 + 0.16 * lines) + 0.45, 2.4)  # room for the scale's label
    figure = _figure((1.55 * columns + 1.3, high))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.set_axis_off()
    _plain(axes[0], image, ratio)
    shared = _scale([panel.weights for panel in panels], tokens, rescale, top, scale)
    for ax, (name, weights) in zip(axes[1:], panels, strict=False):
        values = weights.detach().float().cpu().numpy()
        _draw_map(ax, image, values, _stretched(values) if rescale else shared, ratio)
        below = f"{_short(values.min())} to {_short(values.max())}" if rescale else f"largest {_short(values.max())}"
        ax.text(0.5, 1.03, below, ha="center", va="top", fontsize=6.5, color=QUIET)
        ax.set_title(name, fontsize=9, parse_math=False)
    figure.suptitle(wrap_title(title, figure.get_figwidth()), fontsize=10, parse_math=False)
    bar = colour_bar(figure, axes, shared, RESCALED if rescale else label, aspect=18, fraction=0.03, pad=0.03)
    if rescale:
        label_ends(bar)
    return figure


def methods_figure(
    picture: UInt8[Tensor, "c y x"], panels: Sequence[tuple[str, PatchMap, Scale]], *, title: str, rescale: bool = False
) -> Figure:
    """The picture, then the map of each method over it, on a scale of its own: their units differ."""
    image = pixels(picture)
    ratio = _ratio(image)
    count = len(panels) + 1
    lines = max((name.count("\n") for name, _, _ in panels), default=0)
    title = wrap_title(title, 2.1 * count) + (f"\n{RESCALED}" if rescale else "")
    figure = _figure((2.1 * count + 0.1, 2.1 * ratio + 1.15 + 0.17 * (lines + title.count("\n"))))
    axes, bars = figure.subplots(2, count, squeeze=False, height_ratios=[ratio, 0.05])
    for ax in (*axes, bars[0]):
        ax.set_axis_off()
    _plain(axes[0], image, ratio)
    for ax, below, (name, weights, own) in zip(axes[1:], bars[1:], panels, strict=True):
        values = weights.detach().float().cpu().numpy()
        scale = _stretched(values) if rescale else own
        _draw_map(ax, image, values, scale, ratio)
        ax.set_title(name, fontsize=9, parse_math=False)
        colour_bar_in(figure, below, scale)
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def grid_figure(
    picture: UInt8[Tensor, "c y x"],
    cells: Sequence[Sequence[PatchMap]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    tokens: int,
    title: str,
    at: Place | None = None,
    rescale: bool = False,
    top: float | None = None,
) -> Figure:
    """Many maps over the same picture in rows and columns, as the heads of all layers, on one scale.

    at: the patch that asks, framed in the picture beside the grid. Rows may differ in length.
    """
    if len(cells) != len(rows) or max(map(len, cells), default=0) > len(columns):
        raise ValueError(
            f"{len(cells)} rows of up to {max(map(len, cells), default=0)} maps, {len(rows)} names of rows "
            f"and {len(columns)} of columns; expected a name for each"
        )
    small = pixels(_small(picture, cells[0][0].shape))
    (height, width), ratio = small.shape[:2], _ratio(small)
    side = min(1.25, WIDEST_GRID / len(columns), HIGHEST_GRID / (len(rows) * ratio))
    numbered = side >= NUMBERED
    across, down = (max(1, round(share * n)) for share, n in ((0.06, width), (0.2 if numbered else 0.06, height)))
    step_x, step_y = 1 + across / width, ratio * (1 + down / height)  # from cell to cell, if a cell's width is 1
    wide, high = step_x * len(columns), step_y * len(rows)
    margin = 0.075 * max(map(len, rows), default=0)
    across_all = side * wide + margin + 2.9
    title = wrap_title(title, across_all)
    figure = _figure((across_all, max(side * high + 0.7, 2.4) + 0.17 * (title.count("\n") + 1)))
    left, ax = figure.subplots(1, 2, width_ratios=[1.35, side * wide + margin])
    left.set_axis_off()
    _plain(left, pixels(picture), ratio, anchor="N")
    if at is not None:
        _frame(left, at, cells[0][0].shape)
    shared = _scale([each for row in cells for each in row], tokens, rescale, top)
    sheet = np.ones((len(rows) * (height + down), len(columns) * (width + across), 3))
    for i, row in enumerate(cells):
        for j, each in enumerate(row):
            values = each.detach().float().cpu().numpy()
            x, y = j * (width + across), i * (height + down)
            sheet[y : y + height, x : x + width] = overlay(small, (_stretched(values) if rescale else shared)(values))
            if numbered:
                place = (j * step_x + 0.5, i * step_y + ratio + 0.03)
                ax.text(*place, _short(values.max()), ha="center", va="top", fontsize=6, color=QUIET)
    ax.imshow(sheet, extent=(0, wide, high, 0), interpolation="antialiased")
    ax.set(xlim=(0, wide), ylim=(high, 0), aspect="equal", anchor="N")
    ax.set_xticks([j * step_x + 0.5 for j in range(len(columns))], columns, fontsize=7.5 if side > 0.5 else 6)
    ax.set_yticks([i * step_y + ratio / 2 for i in range(len(rows))], rows, fontsize=8)
    _quiet_axes(ax)
    figure.suptitle(title, fontsize=10, parse_math=False)
    label = (RESCALED if rescale else WEIGHT) + ("\n(below each map, its largest)" if numbered else "")
    bar = colour_bar(figure, ax, shared, label, aspect=22, fraction=0.03, pad=0.02)
    if rescale:
        label_ends(bar)
    return figure


def _quiet_axes(ax: Axes) -> None:
    """Names of columns above, and neither marks nor lines nor formulas."""
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for tick in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        tick.set_parse_math(False)


def _small(picture: UInt8[Tensor, "c y x"], grid: Sequence[int]) -> UInt8[Tensor, "c _y _x"]:
    """No larger than a cell shows it, and a whole number of pixels for each patch."""
    if max(picture.shape[1:]) <= CELL_PIXELS:
        return picture
    size = [n * max(1, CELL_PIXELS // n) for n in grid]
    return torch.nn.functional.interpolate(picture[None].float(), size, mode="area")[0].round().to(torch.uint8)


def _scale(
    weights: Sequence[Tensor], tokens: int, rescale: bool, top: float | None, scale: Scale | None = None
) -> Scale:
    if rescale and top is not None:
        raise ValueError("rescaled maps have no common scale; leave out top or rescale")
    return Scale(0.0, 1.0) if rescale else scale or Scale.absolute(weights, tokens, top)


def _stretched(values: np.ndarray) -> Scale:
    return Scale(float(values.min()), float(values.max()))


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    return figure


def _ratio(picture: np.ndarray) -> float:
    return min(max(picture.shape[0] / picture.shape[1], 0.4), 2.5)


def _plain(ax: Axes, picture: np.ndarray, ratio: float, anchor: str = "C") -> None:
    ax.imshow(picture, interpolation="antialiased", extent=(0, 1, 1, 0), aspect=ratio)
    ax.set_title("the picture", fontsize=8, color=QUIET)
    ax.set_anchor(anchor)


def _draw_map(ax: Axes, picture: np.ndarray, values: np.ndarray, scale: Scale, ratio: float) -> None:
    ax.imshow(overlay(picture, scale(values)), interpolation="antialiased", extent=(0, 1, 1, 0), aspect=ratio)
    row, column = np.unravel_index(values.argmax(), values.shape)
    _frame(ax, (int(row), int(column)), values.shape)


def _frame(ax: Axes, at: Place, shape: Sequence[int]) -> None:
    (row, column), (rows, columns) = at, shape
    corner = (column / columns, row / rows)
    frame = Rectangle(corner, 1 / columns, 1 / rows, fill=False, edgecolor="white", linewidth=1.1)
    frame.set_path_effects([withStroke(linewidth=2.4, foreground="black")])  # seen on a light patch too
    ax.add_patch(frame)


def _short(value: float) -> str:
    """
    >>> _short(0.1234), _short(0.00004), _short(0.0), _short(1.0), _short(-0.002)
    ('0.12', '<0.001', '0', '1', '-0.002')
    """
    return "<0.001" if 0 < value < 0.0005 else f"{value:.2g}"
