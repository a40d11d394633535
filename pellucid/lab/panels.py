"""Figures as data, so that a page and a picture show the same numbers; and the picture, by matplotlib."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pellucid.views.figures import COLOUR_MAP
from pellucid.views.training import LINES

MARKS = ("o", "s", "^", "D", "v", "P", "X")
FEW_POINTS = 24  # where no line has more, each point is marked
MOST_NUMBERS = 16  # more cells than this on a side, and numbers in them are too small to read


@dataclass(frozen=True)
class Curve:
    """One line of a chart: y over x. dashed: a prediction or a reference, not a measurement."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines in one pair of axes. log: which axes are logarithmic, as "x", "y" or "xy"."""

    kind: ClassVar[str] = "curves"
    title: str
    x: str
    y: str
    lines: tuple[Curve, ...]
    log: str = ""


@dataclass(frozen=True)
class BarChart:
    """A number for each name; one row of bars for each series. line: a level to compare with, and what it is."""

    kind: ClassVar[str] = "bars"
    title: str
    y: str
    names: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]
    line: tuple[str, float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Heatmap:
    """Numbers in cells, coloured from low to high."""

    kind: ClassVar[str] = "matrix"
    title: str
    rows: str
    columns: str
    values: tuple[tuple[float, ...], ...]
    low: float = 0.0
    high: float = 1.0
    unit: str = "attention weight"


Chart = LineChart | BarChart | Heatmap
Points = Sequence[float]


def line_chart(
    title: str, axes: tuple[str, str], x: Points, lines: Mapping[str, Points], log: str = "", dashed: str = ""
) -> LineChart:
    """Lines by name over the same x, without their points that aren't finite. dashed: the one that isn't measured.

    >>> line_chart("growth", ("step", "size"), [1, 2], {"measured": [3, math.nan]}).lines
    (Curve(name='measured', x=(1.0,), y=(3.0,), dashed=False),)
    """
    curves = []
    for name, y in lines.items():
        points = [(float(at), float(value)) for at, value in zip(x, y, strict=True) if math.isfinite(value)]
        places, values = zip(*points, strict=True) if points else ((), ())
        curves.append(Curve(name, places, values, bool(dashed) and name == dashed))
    return LineChart(title, *axes, tuple(curves), log)


def bar_chart(
    title: str, y: str, series: Mapping[str, Mapping[str, float]], line: tuple[str, float] | None = None, log=False
) -> BarChart:
    """Bars by the name of their series, then by their own.

    >>> bar_chart("legs", "number", {"": {"cat": 4, "hen": 2}}).names
    ('cat', 'hen')
    """
    names = tuple(next(iter(series.values())))
    heights = tuple((name, tuple(values.values())) for name, values in series.items())
    return BarChart(title, y, names, heights, line, log)


def heatmap(title: str, values, *, rows="query", columns="key", low=0.0, high=1.0, unit="attention weight") -> Heatmap:
    """A tensor with two axes, in colours."""
    cells = tuple(tuple(map(float, row)) for row in values.tolist())
    return Heatmap(title, rows, columns, cells, low, high, unit)


def draw_panels(panels: Sequence[Chart], title: str = "") -> Figure:
    """All panels side by side, at most three in a row.

    >>> from pellucid import lab
    >>> outcome = lab.experiment("graph")()
    >>> len(draw_panels(outcome.panels, "graph").axes) > 0
    True
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    wide = 6.4 if columns == 1 else 4.9
    figure = Figure(figsize=(wide * columns, 3.7 * rows + (0.4 if title else 0)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax, panel in zip(axes, panels, strict=False):
        match panel:
            case LineChart():
                _draw_lines(ax, panel)
            case BarChart():
                _draw_bars(ax, panel)
            case Heatmap():
                _draw_heatmap(figure, ax, panel)
        ax.set_title(panel.title, fontsize=10)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def _draw_lines(ax: Axes, panel: LineChart) -> None:
    marked = max(len(each.x) for each in panel.lines) <= FEW_POINTS
    floor, note = _floor([y for each in panel.lines for y in each.y]) if "y" in panel.log else (-math.inf, "")
    for i, each in enumerate(panel.lines):
        # Where lines lie on each other, the ones below are wider.
        ax.plot(
            each.x,
            [max(y, floor) for y in each.y],
            color="#555555" if each.dashed else LINES[i % len(LINES)],
            label=each.name,
            linestyle="--" if each.dashed else "-",
            linewidth=1.3 if each.dashed else max(1.3, 2.8 - 0.5 * i),
            marker=MARKS[i % len(MARKS)] if marked and not each.dashed else None,
            markersize=max(3.5, 7 - i),
            zorder=2 if each.dashed else 3 + i,
        )
    if "x" in panel.log:
        ax.set_xscale("log")
    if "y" in panel.log:
        ax.set_yscale("log")
    _finish(ax, panel.x, panel.y + note)
    if any(each.name for each in panel.lines):
        ax.legend(fontsize=8, frameon=False)


def _draw_bars(ax: Axes, panel: BarChart) -> None:
    places, width = np.arange(len(panel.names)), 0.8 / len(panel.series)
    floor, note = _floor([y for _, values in panel.series for y in values]) if panel.log else (-math.inf, "")
    for i, (name, values) in enumerate(panel.series):
        shift = (i - (len(panel.series) - 1) / 2) * width
        heights = [max(value, floor) for value in values]
        bars = ax.bar(places + shift, heights, width * 0.92, color=LINES[i % len(LINES)], label=name)
        if len(places) * len(panel.series) <= 12:
            ax.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=7, padding=2)
    if panel.line is not None:
        name, level = panel.line
        ax.axhline(level, color="#555555", linestyle="--", linewidth=1.2, label=name)
    if panel.log:
        ax.set_yscale("log")
    legend = panel.line is not None or len(panel.series) > 1
    ax.margins(y=0.12 + (0.13 * math.ceil((len(panel.series) + 1) / 2) if legend else 0))  # room above for the legend
    long = sum(map(len, panel.names)) > 36
    ax.set_xticks(places, panel.names, fontsize=8, rotation=30 if long else 0, ha="right" if long else "center")
    _finish(ax, "", panel.y + note)
    ax.grid(visible=False, axis="x")
    if legend:
        ax.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)


def _floor(values: Sequence[float]) -> tuple[float, str]:
    """Where zero is drawn on a logarithmic axis, and the note that says so."""
    least = min((value for value in values if value > 0), default=1.0)
    if all(value > 0 for value in values):
        return least, ""
    place = math.floor(math.log10(least)) - 1
    return 10.0**place, f" (0 drawn at 1e{place})"


def _draw_heatmap(figure: Figure, ax: Axes, panel: Heatmap) -> None:
    values = np.array(panel.values)
    image = ax.imshow(values, cmap=COLOUR_MAP, vmin=panel.low, vmax=panel.high, aspect="auto")
    rows, columns = values.shape
    if max(rows, columns) <= MOST_NUMBERS:
        middle = (panel.low + panel.high) / 2
        for (i, j), value in np.ndenumerate(values):
            colour = "white" if value < middle else "black"
            size = 8 if max(rows, columns) <= 8 else 6
            ax.text(j, i, _cell(value, panel.high - panel.low), ha="center", va="center", color=colour, fontsize=size)
        ax.set_xticks(range(columns))
        ax.set_yticks(range(rows))
    ax.set_xlabel(panel.columns)
    ax.set_ylabel(panel.rows)
    ax.spines[:].set_visible(False)
    figure.colorbar(image, ax=ax, shrink=0.85, label=panel.unit)


def _cell(value: float, scale: float) -> str:
    """A number with as many digits as the scale of the colours deserves; what rounds to zero is written as 0."""
    written = f"{value:.{2 if scale > 0.2 else 3}f}"
    return "0" if float(written) == 0 else written


def _finish(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
