"""What is measured of heads and of explanations: numbers of every head, and curves of what happens without patches."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from pellucid.explain.faithfulness import Faithfulness, areas_under
from pellucid.explain.maps import Method
from pellucid.views.figures import cells_panel, wrap_title
from pellucid.views.training import LINES

BASELINE: Method = "random"
DASHED = (0, (4, 2))


class Measure(NamedTuple):
    """A number of each head of each layer, and from what to what it could go; NaN where a layer has no such head."""

    title: str
    unit: str
    values: Float[Tensor, "layers heads"]
    low: float
    high: float


def head_report_figure(measures: Sequence[Measure], *, layers: Sequence[str], title: str) -> Figure:
    """A panel for each measure: a row for each layer, a column for each head, on a scale of what is possible."""
    rows, columns = measures[0].values.shape
    if any(measure.values.shape != (rows, columns) for measure in measures) or len(layers) != rows:
        shapes = ", ".join(str(list(measure.values.shape)) for measure in measures)
        raise ValueError(f"the measures have shapes {shapes} and {len(layers)} names of layers; expected all alike")
    side = 0.5 if max(rows, columns) <= 8 else 0.36
    width = max(columns * side, 1.6) + 1.1
    figure = Figure(figsize=(width * len(measures) + 0.8, max(rows * side, 1.2) + 1.6), layout="constrained")
    axes = list(figure.subplots(1, len(measures), squeeze=False, sharey=True)[0])
    for ax, measure in zip(axes, measures, strict=True):
        values = np.ma.masked_invalid(measure.values.detach().float().cpu().numpy())
        image = cells_panel(ax, values, _written_to(measure.high), measure.low, measure.high)
        ax.set_title(measure.title, fontsize=10)
        ax.set_xlabel("head", fontsize=9)
        step = max(1, -(-columns // 16))
        ax.set_xticks(range(0, columns, step), [str(i) for i in range(0, columns, step)], fontsize=8)
        ax.set_yticks(range(rows), layers, fontsize=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=ax, location="bottom", aspect=20, pad=0.02, shrink=0.9)
        bar.set_label(measure.unit, fontsize=8)
        bar.locator = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
        bar.update_ticks()
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    figure.suptitle(wrap_title(title, figure.get_figwidth()), fontsize=10, parse_math=False)
    return figure


def faithfulness_figure(faithfulness: Faithfulness, *, title: str = "") -> Figure:
    """Deletion and insertion for every method: by a good map the one falls early, and the other rises early.

    Lines are means over the images with bands of 1.96 standard errors. The legend has the areas with their intervals.
    Random numbers, which every method must beat, are dashed and black.
    """
    figure = Figure(figsize=(9.6, 3.9 + 0.2 * len(faithfulness.methods)), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    axes = figure.subplots(1, 2, sharey=True)
    methods = [method for method in faithfulness.methods if method != BASELINE]
    colours: dict[str, str] = dict(zip(methods, LINES, strict=False)) | {BASELINE: "#000000"}
    images = faithfulness.deletion.shape[1]
    for ax, which, better in zip(axes, ("deletion", "insertion"), ("lower", "higher"), strict=True):
        for method, values in zip(faithfulness.methods, getattr(faithfulness, which), strict=True):
            area = faithfulness.area(which, method) if images > 1 else f"{areas_under(values).item():.3f}"
            _curve(ax, values, f"{method}  {area}", colours[method])
        ax.set_title(f"{which}: {better} is better", fontsize=10)
        ax.set_xlabel(f"patches {'replaced' if ax is axes[0] else 'put back'}, the most important first", fontsize=9)
        ax.set(xlim=(0, 1), ylim=(0, 1))
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        ax.grid(color="#e5e5e5", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        heading = "area under the curve" + (" [95 %]" if images > 1 else "")
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}  # on the curves it would hide some
        ax.legend(fontsize=8, title=heading, title_fontsize=8, frameon=False, **where)
    axes[0].set_ylabel("probability of the answer", fontsize=9)
    count = f"{images} images" if images > 1 else "one image"
    figure.suptitle(f"{title} ({count})" if title else count, fontsize=10, parse_math=False)
    return figure


def _curve(ax: Axes, values: Float[Tensor, "n points"], label: str, colour: str) -> None:
    values = values.detach().double().cpu()
    mean = values.mean(0).numpy()
    share = np.linspace(0.0, 1.0, len(mean))
    style = DASHED if colour == "#000000" else "solid"
    ax.plot(share, mean, color=colour, linewidth=1.7, linestyle=style, label=label)
    if len(values) > 1:
        band = 1.96 * values.std(0).numpy() / math.sqrt(len(values))
        ax.fill_between(share, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)


def _written_to(high: float) -> Callable[[float], str]:
    """How numbers up to `high` are written: in three letters or four.

    >>> _written_to(4.2)(3.14159), _written_to(20.0)(12.3), _written_to(1.0)(0.314), _written_to(1.0)(np.ma.masked)
    ('3.1', '12', '0.31', '')
    """
    digits = 2 if high <= 1 else 1
    return lambda value: "" if value is np.ma.masked else f"{value:.{digits if abs(value) < 9.95 else 0}f}"
