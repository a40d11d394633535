"""Attention as a picture: numbers in the cells, an absolute scale, colours that everyone can tell apart."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from torch import Tensor

from pellucid.ops import masks

COLOURS = "cividis"  # the same order of lightness for every kind of colour vision
MOST_NUMBERS = 16  # more tokens than this, and numbers in the cells are too small to read
FORMATS = (".png", ".svg", ".pdf")


def check_path(path: Path) -> Path:
    """Raise ValueError if no picture can be written there: before the work, not after it."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture is {', '.join(FORMATS)}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    return path


def save(figure: Figure, path: Path) -> None:
    """Write the picture in the format that the name asks for."""
    figure.savefig(check_path(path), dpi=160)


def attention_figure(
    weights: Float[Tensor, "q k"],
    mask: Bool[Tensor, "q k"] | None = None,
    *,
    title: str = "attention",
    columns: bool = False,
) -> Figure:
    """One attention matrix, every row a distribution, and beside it the mask in both its forms, if there is one.

    columns: tokens as columns, so that keys are rows, queries are columns, and every column sums to one.
    """
    panels = 1 if mask is None else 3
    figure = Figure(figsize=(5.2 * panels, 4.9), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    image = matrix_panel(axes[0], weights, title=title, columns=columns)
    _scale(figure, image, [axes[0]], weights.shape[1])
    if mask is not None:
        mask_panel(axes[1], mask, title="mask: may attend", columns=columns)
        mask_panel(axes[2], mask, title="the same, added to the scores", additive=-1e4, columns=columns)
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
) -> AxesImage:
    """An attention matrix, coloured from 0 to 1."""
    values = weights.detach().float().cpu().numpy()
    image = _cells(ax, values.T if columns else values, lambda x: f"{x:.2f}", 0.0, 1.0)
    _axes(ax, title, values.shape, queries, keys, query_label, key_label, columns)
    return image


def _scale(figure: Figure, image: AxesImage, axes: list[Axes], n_keys: int) -> None:
    """The colour scale, with 1/N marked: what each of N keys gets when all are alike."""
    bar = figure.colorbar(image, ax=axes, shrink=0.82, label="attention weight")
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1.0])
    bar.ax.axhline(1 / n_keys, color="#d1495b", linewidth=2)
    bar.ax.text(-0.25, 1 / n_keys, f"1/{n_keys}", color="#d1495b", ha="right", va="center", fontsize=8)


def mask_panel(
    ax: Axes,
    mask: Bool[Tensor, "q k"],
    *,
    title: str,
    additive: float | None = None,
    columns: bool = False,
) -> None:
    """A boolean mask as 1 and 0, or in its additive form."""
    allowed = mask.cpu().numpy().astype(float)
    shown = allowed if additive is None else masks.additive(mask.cpu(), additive).numpy()
    shown = shown.T if columns else shown

    def written(x: float) -> str:
        return f"{x:.0f}" if additive is None else ("0" if x == 0 else "−10⁴" if x == -1e4 else f"{x:g}")

    _cells(ax, shown, written, min(additive or 0.0, 0.0), 1.0 if additive is None else 0.0)
    _axes(ax, title, tuple(mask.shape), None, None, "query token", "key token", columns)


def _cells(ax: Axes, values: np.ndarray, written: Callable[[float], str], low: float, high: float) -> AxesImage:
    image = ax.imshow(values, cmap=COLOURS, vmin=low, vmax=high, aspect="equal")
    rows, columns = values.shape
    if max(rows, columns) <= MOST_NUMBERS:
        middle = (low + high) / 2
        size = 10 if max(rows, columns) <= 8 else 7.5
        for i in range(rows):
            for j in range(columns):
                colour = "white" if values[i, j] < middle else "black"
                ax.text(j, i, written(values[i, j]), ha="center", va="center", color=colour, fontsize=size)
        ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1)
        ax.tick_params(which="minor", length=0)
    ax.add_patch(Rectangle((-0.5, -0.5), columns, rows, fill=False, edgecolor="#444444", linewidth=0.8))
    return image


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
        step = max(1, -(-n // MOST_NUMBERS))
        places = list(range(0, n, step))
        set_ticks(places, [str(i) if names is None else names[i] for i in places])
    ax.spines[:].set_visible(False)
