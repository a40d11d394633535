"""A caption as a picture: for every word, where the model looked as it said it, on one scale with numbers."""

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from pellucid.views.colours import Scale
from pellucid.views.maps import WEIGHT, MapPanel, maps_figure

WIDE = 40  # letters of a caption in a line of the examples


def caption_figure(
    picture: UInt8[Tensor, "c y x"],
    words: Sequence[str],
    probabilities: Sequence[float],
    maps: Float[Tensor, "words rows columns"],
    *,
    tokens: int,
    title: str,
    rescale: bool = False,
    top: float | None = None,
    scale: Scale | None = None,
    label: str = WEIGHT,
) -> Figure:
    """The picture, then once for every word with the word's attention over it: one cell a patch, the largest framed.

    All panels share one scale, from 0 to the largest weight of all. tokens: how many the picture has to the model; with
    all of them alike, each would have 1/tokens of the attention, and that is marked on the scale.
    rescale: give each word the whole range of colours, and say so. scale, label: of maps that are no weights.
    """
    if not len(words) == len(probabilities) == len(maps):
        raise ValueError(
            f"{len(words)} words, {len(probabilities)} probabilities and {len(maps)} maps; expected as many of each"
        )
    titles = [f"{word}  {percent(share)}" for word, share in zip(words, probabilities, strict=True)]
    panels = [MapPanel(name, weights) for name, weights in zip(titles, maps, strict=True)]
    return maps_figure(picture, panels, tokens=tokens, title=title, rescale=rescale, top=top, scale=scale, label=label)


class Example(NamedTuple):
    """A picture, what a model says of it, a reference for it, and the caption's CIDEr-D if it has one."""

    picture: UInt8[Tensor, "c y x"]
    caption: str
    reference: str
    score: float | None = None


def examples_figure(examples: Sequence[Example]) -> Figure:
    """Pictures in rows of four, each with the model's caption, a reference, and the score if there is one."""
    columns = min(4, len(examples))
    rows = math.ceil(len(examples) / columns)
    figure = Figure(figsize=(2.9 * columns, 3.8 * rows), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[], frame_on=False)
    for ax, (picture, caption, reference, score) in zip(axes.flat, examples, strict=False):
        ax.imshow(picture.permute(1, 2, 0).expand(-1, -1, 3).cpu().numpy(), interpolation="antialiased")
        lines = textwrap.wrap(caption or "(nothing)", WIDE, max_lines=3, placeholder=" …")
        ax.set_title("\n".join(lines), fontsize=9, loc="left", parse_math=False)
        below = textwrap.wrap(f"reference: {reference}", WIDE + 6, max_lines=3, placeholder=" …")
        below += [] if score is None else [f"CIDEr-D {score:.2f}"]
        ax.set_xlabel("\n".join(below), fontsize=7.5, loc="left", color="#555555", parse_math=False)
    return figure


def percent(share: float) -> str:
    """A probability beside a word or a class.

    >>> percent(0.984), percent(0.0004), percent(0.9999)
    ('98 %', '<1 %', '>99 %')
    """
    if share < 0.005:
        return "<1 %"
    return ">99 %" if share >= 0.995 else f"{100 * share:.0f} %"
