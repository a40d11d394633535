"""Attention as a picture: numbers in the cells, an absolute scale, colours that everyone can tell apart."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pellucid.ops import masks
from pellucid.views.colours import CHANCE, COLOUR_MAP
from pellucid.views.fonts import fonts_for

MOST_NUMBERED_TOKENS = 16  # more tokens than this, and numbers in the cells are too small to read
MOST_DRAWN = 512  # a picture of a whole matrix has no more of them than pixels
LONG_NAME = 4  # letters of a token's name that fit under a cell
FORMATS = (".png", ".svg", ".pdf")
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_path(path: Path) -> Path:
    """Raise ValueError if no picture can be written there: before the work, not after it."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture is {', '.join(FORMATS)}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    return path


def save_figure(figure: Figure, path: Path) -> None:
    """Write the picture in the format that the name asks for; the same picture is the same bytes.

    Letters that no font here has become boxes, and the log names them.
    """
    with rc_context({"svg.hashsalt": "pellucid"}), fonts_for(figure):
        figure.savefig(check_path(path), dpi=160, metadata=UNDATED.get(path.suffix.lower()))


def wrap_title(title: str, inches: float, size: float = 10.0) -> str:
    """The title in lines that are no longer than so many inches, in letters of so many points."""
    letters = max(8, int(inches * 72 / (0.6 * size)))
    return "\n".join("\n".join(textwrap.wrap(line, letters)) for line in title.split("\n"))


def attention_figure(
    weights: Float[Tensor, "q k"],
    mask: Bool[Tensor, "q k"] | None = None,
    *,
    title: str = "attention",
    columns: bool = False,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    query_label: str = "query token",
    key_label: str = "key token",
    top: float = 1.0,
) -> Figure:
    """One attention matrix, every row a distribution, and beside it the mask in both its forms, if there is one.

    columns: tokens as columns, so that keys are rows, queries are columns, and every column sums to one.
    queries, keys: the tokens' names; their numbers unless given. top: the weight of the brightest colour.
    """
    panels = 1 if mask is None else 3
    figure = Figure(figsize=_size(weights.T.shape if columns else weights.shape, panels), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    names: dict[str, Any] = {"queries": queries, "keys": keys, "columns": columns}
    labels: dict[str, Any] = {"query_label": query_label, "key_label": key_label}
    image = matrix_panel(axes[0], weights, title=title, top=top, **names, **labels)
    _scale(figure, image, [axes[0]], weights.shape[1])
    if mask is not None:
        mask_panel(axes[1], mask, title="mask: may attend", **names)
        mask_panel(axes[2], mask, title="the same, added to the scores", additive=-1e4, **names)
    return figure


def mask_figure(
    mask: Bool[Tensor, "q k"], *, title: str = "mask: may attend", columns: bool = False, **names: Any
) -> Figure:
    """Which query may see which key, as colours, and as numbers where they fit; names: as of `attention_figure`."""
    figure = Figure(figsize=_size(mask.T.shape if columns else mask.shape, 1), layout="constrained")
    mask_panel(figure.subplots(), mask, title=title, columns=columns, **names)
    may, may_not = (colormaps[COLOUR_MAP](end) for end in (1.0, 0.0))
    shares = [Patch(facecolor=may, label="1: may attend"), Patch(facecolor=may_not, label="0: may not")]
    figure.legend(handles=shares, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def matrices_figure(
    panels: Sequence[tuple[str, Float[Tensor, "q k"]]],
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    query_label: str,
    key_label: str,
) -> Figure:
    """Several attention matrices of the same tokens, side by side, on one scale."""
    figure = Figure(figsize=(4.7 * len(panels) + 0.8, 4.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    images = [
        matrix_panel(ax, w, title=title, queries=queries, keys=keys, query_label=query_label, key_label=key_label)
        for ax, (title, w) in zip(axes, panels, strict=True)
    ]
    _scale(figure, images[0], list(axes), len(keys))
    return figure


def matrix_panel(
    ax: Axes,
    weights: Float[Tensor, "q k"],
    *,
    title: str,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    query_label: str = "query token",
    key_label: str = "key token",
    columns: bool = False,
    top: float = 1.0,
) -> AxesImage:
    """An attention matrix, coloured from 0 to `top`."""
    values = weights.detach().float().cpu().numpy()
    image = cells_panel(ax, values.T if columns else values, lambda x: f"{x:.2f}", 0.0, top)
    _axes(ax, title, values.shape, queries, keys, query_label, key_label, columns)
    return image


def _scale(figure: Figure, image: AxesImage, axes: list[Axes], n_keys: int) -> None:
    """The colour scale, with 1/N marked: what each of N keys gets when all are alike."""
    bar = figure.colorbar(image, ax=axes, shrink=0.82, label="attention weight")
    if image.norm.vmax == 1.0:
        bar.set_ticks([0, 0.25, 0.5, 0.75, 1.0])
    else:
        bar.locator = MaxNLocator(5, steps=[1, 2, 5, 10])
        bar.update_ticks()
    bar.ax.axhline(1 / n_keys, color=CHANCE, linewidth=2)
    bar.ax.text(-0.25, 1 / n_keys, f"1/{n_keys}", color=CHANCE, ha="right", va="center", fontsize=8)


def mask_panel(
    ax: Axes,
    mask: Bool[Tensor, "q k"],
    *,
    title: str,
    additive: float | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    query_label: str = "query token",
    key_label: str = "key token",
    columns: bool = False,
) -> None:
    """A boolean mask as 1 and 0, or in its additive form."""
    allowed = mask.cpu().numpy().astype(float)
    values = allowed if additive is None else masks.additive(mask.cpu(), additive).numpy()
    values = values.T if columns else values

    def write(x: float) -> str:
        return f"{x:.0f}" if additive is None else ("0" if x == 0 else "−10⁴" if x == -1e4 else f"{x:g}")

    cells_panel(ax, values, write, min(additive or 0.0, 0.0), 1.0 if additive is None else 0.0)
    _axes(ax, title, tuple(mask.shape), queries, keys, query_label, key_label, columns)


def cells_panel(ax: Axes, values: np.ndarray, write: Callable[[float], str], low: float, high: float) -> AxesImage:
    """Values as coloured cells, darkest at `low`, brightest at `high`; written too, where all of them fit."""
    image = ax.imshow(values, cmap=COLOUR_MAP, vmin=low, vmax=high, aspect="auto" if _oblong(values.shape) else "equal")
    rows, columns = values.shape
    if max(rows, columns) <= MOST_NUMBERED_TOKENS:
        middle = (low + high) / 2
        size = 10 if max(rows, columns) <= 8 else 7.5
        for i in range(rows):
            for j in range(columns):
                colour = "white" if values[i, j] < middle else "black"
                ax.text(j, i, write(values[i, j]), ha="center", va="center", color=colour, fontsize=size)
        ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1)
        ax.tick_params(which="minor", length=0)
    ax.add_patch(Rectangle((-0.5, -0.5), columns, rows, fill=False, edgecolor="#444444", linewidth=0.8))
    return image


def _oblong(shape: Sequence[int]) -> bool:
    """Square cells would make it a thread."""
    return max(shape) > 3 * min(shape)


def _size(shape: Sequence[int], panels: int) -> tuple[float, float]:
    rows, columns = shape
    if not _oblong(shape):
        return 5.2 * panels, 4.9
    return (
        (8.5 * panels, min(2.3 + 0.24 * rows, 4.9)) if columns > rows else (min(3.2 + 0.4 * columns, 5.2) * panels, 6.5)
    )


def _axes(
    ax: Axes,
    title: str,
    shape: tuple[int, ...],
    queries: Sequence[str] | None,
    keys: Sequence[str] | None,
    query_label: str,
    key_label: str,
    columns: bool,
) -> None:
    ax.set_title(title, fontsize=11)
    vertical, horizontal = (query_label, queries, shape[0]), (key_label, keys, shape[1])
    if columns:
        vertical, horizontal = horizontal, vertical
    for set_label, set_ticks, (label, names, n) in (
        (ax.set_ylabel, ax.set_yticks, vertical),
        (ax.set_xlabel, ax.set_xticks, horizontal),
    ):
        set_label(label)
        step = max(1, -(-n // MOST_NUMBERED_TOKENS))
        places = list(range(0, n, step))
        labels = [str(i) if names is None else names[i] for i in places]
        long = set_ticks == ax.set_xticks and max(map(len, labels), default=0) > LONG_NAME
        upright = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
        set_ticks(places, labels, parse_math=False, **upright)
    ax.spines[:].set_visible(False)
