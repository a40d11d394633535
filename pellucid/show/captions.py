"""A caption as a picture: for every word, where the model looked as it said it, on one scale with numbers."""

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pellucid.show.figures import COLOURS

COLUMNS = 6  # panels side by side
COVER = 0.65  # how much of the weight's colour lies over the picture, which is grey below it
CONTRAST = 0.6  # of that grey: its own light and dark must not be taken for weight
CHANCE = "#d1495b"
WIDE = 40  # letters of a caption in a line of the examples


def caption_figure(
    picture: UInt8[Tensor, "c y x"],
    words: Sequence[str],
    probabilities: Sequence[float],
    maps: Float[Tensor, "words rows columns"],
    *,
    tokens: int,
    title: str,
) -> Figure:
    """The picture, then once for every word with the word's attention over it: one cell a patch, the largest framed.

    All panels share one scale, from 0 to the largest weight of all. tokens: how many the picture has to the model; with
    all of them alike, each would have 1/tokens of the attention, and that is marked on the scale.
    """
    weights = maps.detach().float().cpu().numpy()
    if not len(words) == len(probabilities) == len(weights):
        raise ValueError(
            f"{len(words)} words, {len(probabilities)} probabilities and {len(weights)} maps; expected as many of each"
        )
    top = max(float(weights.max(initial=0.0)), 1 / tokens)
    shown = picture.permute(1, 2, 0).expand(-1, -1, 3).cpu().numpy()
    ratio = min(max(shown.shape[0] / shown.shape[1], 0.4), 2.5)
    columns = min(COLUMNS, len(words) + 1)
    rows = math.ceil((len(words) + 1) / columns)
    high = max(rows * (1.55 * ratio + 0.55) + 0.45, 2.4)  # room for the scale's label
    figure = Figure(figsize=(1.55 * columns + 1.3, high), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    panels = list(axes.flat)
    panels[0].imshow(shown, interpolation="antialiased", extent=(0, 1, 1, 0), aspect=ratio)
    panels[0].set_title("the picture", fontsize=8, color="#555555")
    for ax, word, share, mine in zip(panels[1:], words, probabilities, weights, strict=False):
        _word_panel(ax, shown, mine, top, ratio)
        ax.set_title(f"{word}  {_percent(share)}", fontsize=9)
    figure.suptitle(title, fontsize=10)
    _scale(figure, list(axes.flat), top, tokens)
    return figure


class Example(NamedTuple):
    """A picture, what a model says of it, a reference for it, and the caption's CIDEr-D."""

    picture: UInt8[Tensor, "c y x"]
    said: str
    meant: str
    score: float


def examples_figure(examples: Sequence[Example]) -> Figure:
    """Pictures in rows of four, each with the model's caption, a reference, and the score."""
    columns = min(4, len(examples))
    rows = math.ceil(len(examples) / columns)
    figure = Figure(figsize=(2.9 * columns, 3.8 * rows), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[], frame_on=False)
    for ax, (picture, said, meant, score) in zip(axes.flat, examples, strict=False):
        ax.imshow(picture.permute(1, 2, 0).expand(-1, -1, 3).cpu().numpy(), interpolation="antialiased")
        lines = textwrap.wrap(said or "(nothing)", WIDE, max_lines=3, placeholder=" …")
        ax.set_title("\n".join(lines), fontsize=9, loc="left", parse_math=False)
        below = [*textwrap.wrap(f"reference: {meant}", WIDE + 6, max_lines=3, placeholder=" …"), f"CIDEr-D {score:.2f}"]
        ax.set_xlabel("\n".join(below), fontsize=7.5, loc="left", color="#555555", parse_math=False)
    return figure


def _word_panel(ax: Axes, picture: np.ndarray, weights: np.ndarray, top: float, ratio: float) -> None:
    height, width = picture.shape[:2]
    rows, columns = weights.shape
    down, across = (np.arange(height) * rows) // height, (np.arange(width) * columns) // width
    colour = colormaps[COLOURS](weights / top)[..., :3][down][:, across]
    grey = 0.5 + CONTRAST * (picture.mean(-1, keepdims=True) / 255 - 0.5)
    ax.imshow(COVER * colour + (1 - COVER) * grey, interpolation="antialiased", extent=(0, 1, 1, 0), aspect=ratio)
    row, column = np.unravel_index(weights.argmax(), weights.shape)
    corner = (float(column) / columns, float(row) / rows)
    ax.add_patch(Rectangle(corner, 1 / columns, 1 / rows, fill=False, edgecolor="white", linewidth=1.1))
    ax.text(0.5, 1.03, f"largest {weights[row, column]:.2g}", ha="center", va="top", fontsize=6.5, color="#555555")


def _scale(figure: Figure, axes: list[Axes], top: float, tokens: int) -> None:
    """The colours as they are seen over middle grey, with 0, the largest weight and chance marked."""
    colours = COVER * colormaps[COLOURS](np.linspace(0, 1, 256))[:, :3] + (1 - COVER) * 0.5
    scale = ScalarMappable(Normalize(0.0, top), ListedColormap(colours))
    bar = figure.colorbar(scale, ax=axes, aspect=18, fraction=0.03, pad=0.03)
    bar.set_label("attention weight of a patch", fontsize=8)
    bar.locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    bar.update_ticks()
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.axhline(1 / tokens, color=CHANCE, linewidth=1.8)
    bar.ax.text(-0.25, 1 / tokens, f"1/{tokens}", color=CHANCE, ha="right", va="center", fontsize=7)


def _percent(share: float) -> str:
    """
    >>> _percent(0.984), _percent(0.0004), _percent(0.9999)
    ('98 %', '<1 %', '>99 %')
    """
    if share < 0.005:
        return "<1 %"
    return ">99 %" if share >= 0.995 else f"{100 * share:.0f} %"
