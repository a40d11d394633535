"""Attention as a graph: tokens are nodes, weights are edges, and only the heaviest that carry most of it are drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection, PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pellucid.views.colours import CHANCE, QUIET, pixels
from pellucid.views.figures import MOST_DRAWN, wrap_title

SHARE = 0.8
EDGES = "Blues"  # dark is much here, and little is as faint as the page
FAINT = 0.72  # how far the picture below is washed out
THICK = 0.55  # the wider end of an edge of the largest weight, in diameters of the largest dot
CURVE = 0.22  # how far an edge between words bends aside, over its length
CURVE_POINTS = 24  # points along a curve
LETTER_WIDTH = 0.022  # how wide a letter of a name is


class Edges(NamedTuple):
    """Which queries look at which keys, heaviest first, and how much of all weight these edges carry."""

    queries: Int[Tensor, " n"]
    keys: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]
    share: float


def heaviest(weights: Float[Tensor, "q k"], share: float = SHARE) -> Edges:
    """The fewest edges that carry the share of the weight.

    >>> edges = heaviest(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    >>> list(zip(edges.queries.tolist(), edges.keys.tolist())), round(edges.share, 2)
    ([(1, 0), (0, 0), (0, 1)], 0.95)
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share is {share}; expected more than 0 and at most 1")
    flat, order = weights.detach().double().cpu().flatten().sort(descending=True, stable=True)
    carried = flat.cumsum(0)
    total = float(carried[-1]) if len(carried) else 0.0
    if total <= 0:
        return Edges(order[:0], order[:0], flat[:0], 0.0)
    count = min(int(torch.searchsorted(carried, share * total)) + 1, len(flat))
    order = order[:count]
    columns = weights.shape[1]
    return Edges(order // columns, order % columns, flat[:count], float(carried[count - 1]) / total)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Tokens and where they lie; y grows downward, and a picture takes 0…1 on both axes.

    dot: diameter of the largest dot. outward: names stand away from the middle, as on a circle; otherwise to the left.
    """

    at: Float[Tensor, "n 2"]
    labels: tuple[str, ...]
    dot: float = 0.06
    outward: bool = False

    @classmethod
    def circle(cls, labels: Sequence[str]) -> "Nodes":
        """Clockwise, the first at the top."""
        turn = 2 * math.pi * torch.arange(len(labels), dtype=torch.float64) / max(1, len(labels))
        return cls(torch.stack([0.5 + 0.5 * turn.sin(), 0.5 - 0.5 * turn.cos()], 1), tuple(labels), outward=True)

    @classmethod
    def column(cls, labels: Sequence[str]) -> "Nodes":
        """One below the other, left of the picture."""
        y = (torch.arange(len(labels), dtype=torch.float64) + 0.5) / max(1, len(labels))
        return cls(torch.stack([torch.full_like(y, -0.22), y], 1), tuple(labels))

    @classmethod
    def patches(cls, labels: Sequence[str], grid: tuple[int, int]) -> "Nodes":
        """The last rows · columns tokens on their patches, unnamed; the others in a column left of the picture."""
        rows, columns = grid
        extra = len(labels) - rows * columns
        y, x = torch.meshgrid(
            (torch.arange(rows, dtype=torch.float64) + 0.5) / rows,
            (torch.arange(columns, dtype=torch.float64) + 0.5) / columns,
            indexing="ij",
        )
        at = torch.cat([cls.column(labels[:extra]).at, torch.stack([x.flatten(), y.flatten()], 1)])
        return cls(at, (*labels[:extra], *("" for _ in range(rows * columns))), dot=0.5 / max(rows, columns))


def graph_figure(
    weights: Float[Tensor, "q k"],
    queries: Nodes,
    keys: Nodes | None = None,
    *,
    picture: UInt8[Tensor, "c y x"] | None = None,
    title: str,
    share: float = SHARE,
) -> Figure:
    """The heaviest edges that carry `share` of the weight, each thick at the token that asks and pointed at its key.

    keys: where the keys lie; the queries' places unless given, and a token's edge to itself is a ring around it then.
    A dot is as large as the attention that its token receives.
    """
    itself, keys = keys is None, keys or queries
    if weights.shape != (len(queries.at), len(keys.at)):
        raise ValueError(
            f"weights have shape {list(weights.shape)}; expected [{len(queries.at)}, {len(keys.at)}], (queries, keys)"
        )
    if max(weights.shape) > MOST_DRAWN:
        raise ValueError(f"a graph shows at most {MOST_DRAWN} tokens; got {max(weights.shape)}; draw chosen rows")
    edges = heaviest(weights, share)
    ratio = 1.0 if picture is None else min(max(picture.shape[1] / picture.shape[2], 0.4), 2.5)
    left, right, over = _room(queries, keys)
    high = 4.6 * ratio * (1 + 2 * over)
    figure = Figure(figsize=(4.6 * (right - left) + 1.1, high + 1.1), layout="constrained")
    ax = figure.subplots()
    ax.set(xlim=(left, right), ylim=(1 + over, -over), aspect=ratio)
    ax.set_axis_off()
    if picture is not None:
        washed = FAINT * 255 + (1 - FAINT) * pixels(picture).mean(-1, keepdims=True).repeat(3, -1)
        ax.imshow(washed.astype(np.uint8), extent=(0, 1, 1, 0), interpolation="antialiased", zorder=0)
    top = float(edges.weights[0]) if len(edges.weights) else 1.0
    colours = ScalarMappable(Normalize(0.0, top), EDGES)
    bend = CURVE if queries.outward and itself else 0.0
    _edges(ax, edges, queries, keys, itself, colours, bend)
    _dots(ax, weights, keys)
    _names(ax, queries)
    if not itself:
        _names(ax, keys)
    _scale(figure, ax, colours, weights.shape[1], top)
    figure.suptitle(wrap_title(title, figure.get_figwidth()), fontsize=10, parse_math=False)
    carried = f"{100 * edges.share:.1f} % of all attention, in {len(edges.weights):,} of {weights.numel():,} edges"
    legend = "an edge is thick at the token that asks; a dot grows with the attention that it receives"
    figure.supxlabel(f"{carried}\n{legend}", fontsize=7.5, color=QUIET)
    return figure


def _edges(
    ax: Axes, edges: Edges, queries: Nodes, keys: Nodes, itself: bool, colours: ScalarMappable, bend: float
) -> None:
    """The lightest first, so that the heaviest lie on top."""
    top = max(float(edges.weights[0]), 1e-30) if len(edges.weights) else 1.0
    bodies, body_colours, rings, ring_colours = [], [], [], []
    for i, j, weight in reversed(list(zip(*(part.tolist() for part in edges[:3]), strict=True))):
        colour = colours.to_rgba(weight)
        if itself and i == j:
            rings.append((keys.at[j].tolist(), weight / top))
            ring_colours.append(colour)
        else:
            bodies.append(_body(queries.at[i].numpy(), keys.at[j].numpy(), THICK * keys.dot * weight / top, bend))
            body_colours.append(colour)
    ax.add_collection(PolyCollection(bodies, facecolors=body_colours, edgecolors="none", alpha=0.85, zorder=2))
    widths = [1.35 * keys.dot for _ in rings]
    ax.add_collection(
        EllipseCollection(
            widths,
            widths,
            [0.0 for _ in rings],
            units="x",
            offsets=[at for at, _ in rings],
            offset_transform=ax.transData,
            facecolors="none",
            edgecolors=ring_colours,
            linewidths=[2.5 * much for _, much in rings],
            zorder=3,
        )
    )


def _body(start: np.ndarray, end: np.ndarray, width: float, bend: float) -> np.ndarray:
    """A wedge from start to end; bent to its right, so that two tokens that look at each other have two edges."""
    along = end - start
    right = np.array([-along[1], along[0]])
    right_length = max(float(np.hypot(*right)), 1e-12)
    steps = np.linspace(0.0, 1.0, CURVE_POINTS if bend else 2)[:, None]
    middle = (start + end) / 2 + bend * right
    spine = (1 - steps) ** 2 * start + 2 * steps * (1 - steps) * middle + steps**2 * end
    side = width / 2 * (1 - steps) * right / right_length
    return np.concatenate([spine + side, (spine - side)[::-1]])


def _dots(ax: Axes, weights: Tensor, keys: Nodes) -> None:
    received = weights.detach().double().sum(0).cpu().numpy()
    size = keys.dot * np.sqrt(received / max(received.max(initial=0.0), 1e-30)) if len(received) else received
    ax.add_collection(
        EllipseCollection(
            size,
            size,
            np.zeros_like(size),
            units="x",
            offsets=keys.at.numpy(),
            offset_transform=ax.transData,
            facecolors="white",
            edgecolors="black",
            linewidths=0.6,
            zorder=4,
        )
    )


def _names(ax: Axes, nodes: Nodes) -> None:
    for (x, y), label in zip(nodes.at.tolist(), nodes.labels, strict=True):
        if not nodes.outward:
            ax.text(x - 0.05, y, label, ha="right", va="center", fontsize=9, parse_math=False)
            continue
        right, down = 2 * x - 1, 2 * y - 1
        sideways = "left" if right > 0.2 else "right" if right < -0.2 else "center"
        upright = "top" if down > 0.8 else "bottom" if down < -0.8 else "center"
        place = (0.5 + 0.57 * right, 0.5 + 0.57 * down)
        ax.text(*place, label, ha=sideways, va=upright, fontsize=9, parse_math=False)


def _room(queries: Nodes, keys: Nodes) -> tuple[float, float, float]:
    """From where to where the picture goes, left and right, and how far above and below, with room for the names."""
    widths = [
        (x, 0.06 + LETTER_WIDTH * len(label))
        for nodes in (queries, keys)
        for (x, _), label in zip(nodes.at.tolist(), nodes.labels, strict=True)
        if label
    ]
    left = min([0.0, *(x - wide for x, wide in widths if x < 0.4)])
    if not queries.outward:
        return left - 0.02, 1.02, 0.02
    return left - 0.05, max([1.0, *(x + wide for x, wide in widths if x > 0.6)]) + 0.05, 0.12


def _scale(figure: Figure, ax: Axes, colours: ScalarMappable, n_keys: int, top: float) -> None:
    bar = figure.colorbar(colours, ax=ax, shrink=0.8, aspect=24, pad=0.02)
    bar.set_label("weight of an edge", fontsize=8)
    bar.locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    bar.update_ticks()
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    if 1 / n_keys <= top:
        bar.ax.axhline(1 / n_keys, color=CHANCE, linewidth=1.8)
        bar.ax.text(-0.25, 1 / n_keys, f"1/{n_keys}", color=CHANCE, ha="right", va="center", fontsize=7)
