"""Pictures of training: curves, confusion matrices, images before and after augmentation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from pellucid.views.figures import COLOUR_MAP

# Okabe & Ito's, told apart by every kind of colour vision; yellow is left out, it is too light for a line on white
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MOST_NUMBERED_CLASSES = 20  # more classes than this, and numbers in the cells are too small to read
MOST_NAMES = 50  # more classes than this, and only some of them are named
FEW_EVALUATIONS = 12  # where no run has more evaluations than this, each is marked
DPI = 160  # of save_figure
SAMPLE_PIXELS = 112  # pixels that a sample should take, about
NAME_LETTERS = 15  # letters of a class's name that fit above a sample


class Point(NamedTuple):
    """Means at one time of training; NaN where there is none. accuracy: a share, not percent."""

    epoch: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class History:
    """What happened to a run, in the order of time.

    steps: of the training images, one point a step; held_out: of the images it is evaluated on, one an evaluation.
    length: epochs that the run was to take. step: epochs that one step takes.
    """

    name: str
    steps: tuple[Point, ...]
    held_out: tuple[Point, ...]
    length: float
    step: float

    def first(self, epochs: float) -> "History":
        """The run cut after so many epochs."""
        # "every epoch" is a whole number of steps: evaluations drift from whole epochs, by half a step an epoch at most
        every = self.held_out[0].epoch if self.held_out else 0.0
        drift = min(0.5 * self.step * epochs, 0.49 * every)
        steps = tuple(point for point in self.steps if point.epoch <= epochs + 1e-3)
        held_out = tuple(point for point in self.held_out if point.epoch <= epochs + 1e-3 + drift)
        return History(self.name, steps, held_out, self.length, self.step)

    def lasts(self, epochs: float) -> bool:
        """Whether so many epochs are the whole run."""
        return abs(self.length - epochs) <= 1e-3 + 0.5 * self.step

    def by_epoch(self) -> tuple[Point, ...]:
        """The means of each epoch's steps, in the middle of them. Less than half an epoch at the end is no point."""
        epochs: dict[int, list[Point]] = {}
        for point in self.steps:
            epochs.setdefault(math.ceil(point.epoch - 1e-3), []).append(point)
        last = max(epochs, default=0)
        if len(epochs) > 1 and self.step * len(epochs[last]) < 0.5:
            del epochs[last]
        return tuple(Point(*map(_mean, zip(*epochs[epoch], strict=True))) for epoch in sorted(epochs))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def curves_figure(panels: Sequence[tuple[str, Sequence[History]]]) -> Figure:
    """Loss and accuracy against the epoch: a pair of axes for each panel, all pairs on the same scales.

    A colour for each run, dashed for training images and solid for held-out ones. Accuracy is shown from 0 to 100 %.
    """
    one = len(panels) == 1
    shape, size = ((1, 2), (9.0, 3.6)) if one else ((2, len(panels)), (3.1 * len(panels) + 0.7, 5.6))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, squeeze=False, sharey="none" if one else "row")
    pairs = [tuple(axes[0])] if one else [tuple(column) for column in axes.T]
    names = list(dict.fromkeys(run.name for _, runs in panels for run in runs))
    colours: dict[str, str] = dict(zip(names, LINES, strict=False))
    marked = max((len(run.held_out) for _, runs in panels for run in runs), default=0) <= FEW_EVALUATIONS
    for (title, runs), (losses, accuracies) in zip(panels, pairs, strict=True):
        for run in runs:
            _draw(losses, run, "loss", colours[run.name], marked)
            _draw(accuracies, run, "accuracy", colours[run.name], marked)
        _time(losses, accuracies, runs)
        losses.set_title(title, fontsize=10)
        _legend(accuracies, runs, colours)
        if one:
            accuracies.set_title(title, fontsize=10)
        else:
            losses.set_xlabel("")
    for losses, accuracies in pairs[:1]:
        losses.set_ylabel("cross-entropy")
        accuracies.set_ylabel("accuracy")
        losses.legend(handles=_kinds(), fontsize=8, frameon=False, loc="upper right")
    highest = max((p.loss for _, runs in panels for r in runs for p in r.by_epoch() + r.held_out), default=1.0)
    for losses, accuracies in pairs:
        losses.set_ylim(0, 1.05 * highest if math.isfinite(highest) and highest > 0 else None)
        accuracies.set_ylim(0, 1)
        accuracies.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return figure


def rates_figure(rates: Sequence[float], losses: Sequence[float], chosen: float) -> Figure:
    """The smoothed loss against the rate that rose, and the rate to train with."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses, color=LINES[0])
    axes.axvline(chosen, color=LINES[1], linestyle="--")
    axes.text(chosen, 0.97, f" {chosen:.2g}", color=LINES[1], transform=axes.get_xaxis_transform(), va="top")
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("cross-entropy, smoothed")
    axes.set_ylim(0, None)
    return figure


def confusion_figure(confusion: Int[Tensor, "classes classes"], names: Sequence[str]) -> Figure:
    """How many images of each class (row) were called what (column); the colour is their share of the row, 0–100 %.

    A class without images has no share: its row is grey.
    """
    counts = confusion.cpu().numpy()
    classes = len(counts)
    if len(names) != classes:
        raise ValueError(f"names has {len(names)} entries; expected one for each of {classes} classes")
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    side = min(max(4.2, 0.47 * classes + 1.4), 12.0)
    small = 8 if classes <= MOST_NUMBERED_CLASSES else 7
    figure = Figure(figsize=(side + 1.3, side), layout="constrained")
    ax = figure.subplots()
    ax.set_facecolor("#d0d0d0")
    image = ax.imshow(shares, cmap=COLOUR_MAP, vmin=0.0, vmax=1.0)
    if classes <= MOST_NUMBERED_CLASSES:
        for (i, j), count in np.ndenumerate(counts):
            colour = "black" if not shares[i, j] < 0.5 else "white" if count else "#7b87a0"
            size = 6 if count >= 10_000 and classes > 8 else small
            ax.text(j, i, f"{count}", ha="center", va="center", color=colour, fontsize=size)
    places = range(0, classes, math.ceil(classes / MOST_NAMES))
    labels = [names[i] for i in places]
    upright = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
    ax.set_xticks(places, labels, fontsize=small, **upright)
    ax.set_yticks(places, labels, fontsize=small)
    ax.set_xlabel("what the model says")
    ax.set_ylabel("what it is")
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, shrink=0.8, label="share of the row")
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1.0])
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return figure


class SampleRow(NamedTuple):
    """Images side by side, what they show, and what the row is."""

    title: str
    images: UInt8[Tensor, "n c y x"]
    captions: Sequence[str]


def samples_figure(rows: Sequence[SampleRow]) -> Figure:
    """Rows of images under their captions, every pixel a square of whole pixels of the picture (PNG)."""
    height, width = rows[0].images.shape[-2:]
    columns = max(len(row.images) for row in rows)
    scale = max(1, round(SAMPLE_PIXELS / max(height, width)))
    gap, margin, line = 8, 96, 20
    cell_x, cell_y = max(scale * width, SAMPLE_PIXELS // 2) + gap, scale * height + gap
    headers = [line * max(caption.count("\n") + 1 if caption else 0 for caption in row.captions) for row in rows]
    wide, high = margin + columns * cell_x + gap, sum(headers) + len(rows) * cell_y + 2 * gap
    figure = Figure(figsize=(wide / DPI, high / DPI), dpi=DPI)
    top = high - gap
    for row, header in zip(rows, headers, strict=True):
        top -= header + scale * height
        figure.text(
            (margin - 2 * gap) / wide, (top + scale * height / 2) / high, row.title, ha="right", va="center", fontsize=7
        )
        for i, (image, caption) in enumerate(zip(row.images, row.captions, strict=True)):
            left = margin + i * cell_x
            ax = figure.add_axes((left / wide, top / high, scale * width / wide, scale * height / high))
            _pixels(ax, image, scale)
            middle = (left + scale * width / 2) / wide
            figure.text(middle, (top + scale * height + 4) / high, caption, ha="center", va="bottom", fontsize=6)
        top -= gap
    return figure


def shorten_name(name: str, most: int = NAME_LETTERS) -> str:
    """
    >>> shorten_name("Granny Smith"), shorten_name("English springer spaniel")
    ('Granny Smith', 'English spring…')
    """
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def _pixels(ax: Axes, image: UInt8[Tensor, "c y x"], scale: int) -> None:
    pixels = image.permute(1, 2, 0).expand(-1, -1, 3).cpu().numpy()
    ax.imshow(pixels.repeat(scale, 0).repeat(scale, 1), interpolation="none", aspect="auto")
    ax.set_axis_off()


def _draw(ax: Axes, run: History, what: str, colour: str, marked: bool) -> None:
    training, held_out = run.by_epoch(), run.held_out
    for points, style, width in ((training, (0, (4, 2)), 1.1), (held_out, "solid", 1.7)):
        xs, ys = [point.epoch for point in points], [getattr(point, what) for point in points]
        marker = "o" if len(points) == 1 or (points is held_out and marked) else None
        (line,) = ax.plot(xs, ys, color=colour, linestyle=style, linewidth=width, marker=marker, markersize=3)
        line.set(clip_on=False, in_layout=False)  # whole marks at the edge, that don't push the axes


def _time(losses: Axes, accuracies: Axes, runs: Sequence[History]) -> None:
    last = max((point.epoch for run in runs for point in run.steps + run.held_out), default=1.0)
    for ax in (losses, accuracies):
        ax.set_xlim(0, max(last, round(last)) or 1.0)  # the last evaluation may be a step short of the epoch
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=last >= 2))
        ax.grid(color="#e5e5e5", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)


def _legend(ax: Axes, runs: Sequence[History], colours: dict[str, str]) -> None:
    """Each run with the last accuracy that is shown of it."""
    handles = []
    for run in runs:
        last = f"  {100 * run.held_out[-1].accuracy:.1f} %" if run.held_out else ""
        handles.append(Line2D([], [], color=colours[run.name], linewidth=1.7, label=run.name + last))
    ax.legend(handles=handles, fontsize=8, frameon=False, loc="lower right")


def _kinds() -> list[Line2D]:
    return [
        Line2D([], [], color="#555555", linestyle=(0, (4, 2)), linewidth=1.1, label="training, as augmented"),
        Line2D([], [], color="#555555", linewidth=1.7, label="held out"),
    ]
