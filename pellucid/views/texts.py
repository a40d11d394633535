"""What counted in a text: its tokens one after the other, each on the colour of its number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pellucid.explain.trace import Map, Stream, Trace
from pellucid.views.colours import QUIET, Scale, colour_bar, overlay
from pellucid.views.figures import wrap_title

WIDTH, LETTER, LINE = 9.0, 0.085, 0.3  # inches: of a figure, of a letter, of a line of tokens
MOST_TOKENS, MOST_MAPS = 600, 24


@dataclass(frozen=True, eq=False)
class Coloured:
    """A text and a number for each of its tokens."""

    title: str
    labels: Sequence[str]
    values: Float[Tensor, " t"]
    scale: Scale


def draw_texts(trace: Trace) -> Figure:
    """Every map of a text in the trace, each on its own scale: the units of methods differ."""
    if not trace.maps:
        raise ValueError(
            "the trace holds no maps: none was asked for, or no method goes through its attention, which draw_heads "
            "and draw_matrix show itself"
        )
    texts = {stream.name: stream for stream in trace.streams if stream.kind != "patches"}
    maps = [each for each in trace.maps if each.stream in texts]
    if not maps:
        raise ValueError("the trace has no map of a text; draw_maps and draw_words show those of pictures")
    rows = [_coloured(each, texts[each.stream]) for each in maps[:MOST_MAPS]]
    more = f" (the first {MOST_MAPS} of {len(maps)} maps)" if len(maps) > MOST_MAPS else ""
    said = trace.said or (trace.answers[0][0].strip() if trace.answers else trace.kind)
    return texts_figure(rows, title=f"{trace.model}: {said}{more}" if trace.model else f"{said}{more}")


def texts_figure(rows: Sequence[Coloured], *, title: str) -> Figure:
    """Texts below each other, each with its scale beside it."""
    if any(len(row.labels) > MOST_TOKENS for row in rows):
        raise ValueError(f"a picture of a text shows at most {MOST_TOKENS} tokens; look at longer ones in the viewer")
    lines = [_lines(row.labels) for row in rows]
    heights = [LINE * len(each) + 0.4 for each in lines]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, row, broken in zip(axes, rows, lines, strict=True):
        _write(ax, row, broken)
        colour_bar(figure, ax, row.scale, "", fraction=0.02, pad=0.01, aspect=max(4.0, 5.0 * len(broken)))
    figure.suptitle(wrap_title(title, WIDTH), fontsize=10, parse_math=False)
    return figure


def _coloured(each: Map, stream: Stream) -> Coloured:
    what = f"{each.method}, of {stream.name}" + (f", for “{each.target}”" if each.target else "")
    return Coloured(what, stream.labels, each.values, Scale.own(each.values, len(stream.labels)))


def _lines(labels: Sequence[str]) -> list[list[int]]:
    """Which tokens stand in each line."""
    lines: list[list[int]] = [[]]
    room = WIDTH - 1.0
    for i, label in enumerate(labels):
        wide = _wide(label)
        if lines[-1] and room < wide:
            lines.append([])
            room = WIDTH - 1.0
        lines[-1].append(i)
        room -= wide
    return lines


def _wide(label: str) -> float:
    return LETTER * (len(label.strip()) or 1) + 0.12


def _write(ax: Axes, row: Coloured, lines: list[list[int]]) -> None:
    shares = row.scale(row.values.detach().float().cpu().numpy())
    colours = overlay(np.full((1, len(shares), 3), 127, dtype=np.uint8), shares[None])[0]
    for number, tokens in enumerate(lines):
        x = 0.0
        for i in tokens:
            wide = _wide(row.labels[i])
            red, green, blue = map(float, colours[i])
            ax.add_patch(
                Rectangle((x + 0.015, number * LINE + 0.03), wide - 0.03, LINE - 0.06, color=(red, green, blue))
            )
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            ax.text(
                x + wide / 2, number * LINE + LINE / 2, row.labels[i].strip() or "␣", ha="center", va="center",
                fontsize=8, family="monospace", color="white" if dark else "black", parse_math=False,
            )  # fmt: skip
            x += wide
    ax.set(xlim=(0, WIDTH - 0.8), ylim=(len(lines) * LINE, 0))
    ax.set_title(row.title, fontsize=8.5, loc="left", color=QUIET, parse_math=False)
    ax.set_axis_off()
