"""What kind of thing each head does, and whether a captioner's maps can be believed.

Maps are met a few rows at a time, as everywhere; one pass over them gives all numbers of a layer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.explain.chains import Records, list_records
from pellucid.explain.trace import Layer, Trace
from pellucid.ops.exact import weight_blocks
from pellucid.ops.positions import grid_positions
from pellucid.watching.record import Record

SAME = 0.05  # maps that differ in less of their mass than this are one map
CENTRED = 2.0  # times the share that an even map has in the middle


@dataclass(frozen=True, eq=False)
class LayerReport:
    """The heads of one attention, numbers being means over queries and images.

    >>> import torch, pellucid
    >>> trace = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    >>> report_heads(trace)[0].entropy.shape
    torch.Size([4])
    """

    name: str
    entropy: Float[Tensor, " h"]
    """Of the rows, in nats: 0 for one key, ln n for n keys alike."""
    distance: Float[Tensor, " h"] | None
    """From a patch to where it looks among the patches, in patches; None if queries are no patches."""
    extra: Float[Tensor, " h"] | None
    """Share of the attention that goes to tokens of no patch: class token and registers; None if keys are no image."""
    similarity: Float[Tensor, "h h"]
    """Cosine between the maps of two heads: 1 for the same map."""


def report_heads(layers: Trace | Records, grid: tuple[int, int] | None = None) -> tuple[LayerReport, ...]:
    """What each head is like, layer by layer: of a trace, or of records as `watch` keeps them.

    grid: rows and columns of the patches, for records of self-attention over an image; its last tokens are the patches.

    >>> import torch, pellucid
    >>> trace = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    >>> reports = report_heads(trace)
    >>> len(reports) == len(trace.layers), reports[0].similarity.shape
    (True, torch.Size([4, 4]))
    """
    if isinstance(layers, Trace):
        grids = {stream.name: stream.grid for stream in layers.streams}
        return tuple(
            _report(each, each.q[None], each.k[None], grids[each.queries], grids[each.keys]) for each in layers.layers
        )
    return tuple(_report(each, each.q, each.k, grid, grid) for each in list_records(layers))


@dataclass(frozen=True, eq=False)
class CaptionHealth:
    """Whether a captioner's maps of its words say anything. Shares, not percent.

    alarms says in sentences what is wrong; it is empty if all is well.

    >>> CaptionHealth(0.2, 0.3, 0.1, 0.1, ()).alarms
    ()
    """

    between_words: float | None
    """How much of a map's mass lies elsewhere in that of another word of the picture: 0 for the same map."""
    between_pictures: float | None
    """Likewise for the mean maps of two pictures; None if there is one."""
    centre: float
    """The mass in the middle half of both axes."""
    even_centre: float
    """What an even map has there."""
    alarms: tuple[str, ...]


def caption_health(maps: Sequence[Tensor], grid: tuple[int, int]) -> CaptionHealth:
    """Of the maps (words patches) of each picture, one or more of them; the patches of the grid alone.

    >>> even = torch.full((3, 16), 1 / 16)
    >>> caption_health([even], (4, 4)).alarms
    ('the maps of different words differ in 0 % of their mass: they show one place whatever it says',)
    """
    if not maps or any(each.ndim != 2 or each.shape[1] != grid[0] * grid[1] or not len(each) for each in maps):
        raise ValueError(
            f"maps have shapes {[list(each.shape) for each in maps]}, expected (words patches) with "
            f"{grid[0] * grid[1]} patches for one picture or more"
        )
    shares = [_shares(each.double().cpu()) for each in maps]
    pairs = [_moved(a, b) for each in shares for a, b in itertools.combinations(each, 2)]
    means = [each.mean(0) for each in shares]
    between_words = sum(pairs) / len(pairs) if pairs else None
    others = [_moved(a, b) for a, b in itertools.combinations(means, 2)]
    between_pictures = sum(others) / len(others) if others else None
    middle = _middle(grid)
    centre, even_centre = float((torch.stack(means).mean(0) * middle).sum()), float(middle.mean())
    alarms = []
    if between_words is not None and between_words < SAME:
        alarms.append(
            f"the maps of different words differ in {100 * between_words:.0f} % of their mass: "
            "they show one place whatever it says"
        )
    if between_pictures is not None and between_pictures < SAME:
        alarms.append(
            f"the maps of different pictures differ in {100 * between_pictures:.0f} % of their mass: "
            "they show one place whatever it is shown"
        )
    if centre > CENTRED * even_centre:
        alarms.append(
            f"{100 * centre:.0f} % of the mass lies in the middle of the picture, where an even map has "
            f"{100 * even_centre:.0f} %: they show the centre"
        )
    return CaptionHealth(between_words, between_pictures, centre, even_centre, tuple(alarms))


def _report(
    layer: Layer | Record,
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    asking: tuple[int, int] | None,
    answering: tuple[int, int] | None,
) -> LayerReport:
    b, h, queries, _ = q.shape
    keys = layer.n_keys if isinstance(layer, Layer) else k.shape[2]
    extra = None if answering is None else keys - answering[0] * answering[1]
    if extra is not None and extra < 0:
        raise ValueError(f"record {layer.name!r} has {keys} keys, expected the {answering} patches at least")
    first = queries if asking is None or asking != answering else queries - asking[0] * asking[1]
    places = None if answering is None or first == queries else grid_positions(*answering).double()
    entropy, far, near, lost = (q.new_zeros(b, h, dtype=torch.float64) for _ in range(4))
    gram = q.new_zeros(b, h, h, dtype=torch.float64)
    how = layer.how if isinstance(layer, Layer) else {"mask": layer.mask, "beta": layer.beta, "causal": layer.causal}
    for rows, p in weight_blocks(q, k, **how):
        p = p[..., :keys].double()
        entropy += torch.special.entr(p).sum((2, 3))
        gram += torch.einsum("bhqk,bgqk->bhg", p, p)
        if extra is None:
            continue
        lost += p[..., :extra].sum((2, 3))
        if places is not None and rows.stop > first:
            begun = max(rows.start, first)
            among = p[:, :, begun - rows.start :, extra:]
            apart = torch.cdist(places[begun - first : rows.stop - first], places).to(p.device)
            far += (among * apart).sum((2, 3))
            near += among.sum((2, 3))
    lengths = gram.diagonal(dim1=1, dim2=2).sqrt()
    return LayerReport(
        name=layer.name,
        entropy=(entropy / queries).mean(0).cpu(),
        distance=None if places is None else (far / near).mean(0).cpu(),
        extra=None if extra is None else (lost / queries).mean(0).cpu(),
        similarity=(gram / (lengths[:, :, None] * lengths[:, None])).mean(0).cpu(),
    )


def _shares(maps: Float[Tensor, "words n"]) -> Float[Tensor, "words n"]:
    maps = maps.clamp(min=0)
    totals = maps.sum(1, keepdim=True)
    return torch.where(totals > 0, maps / totals.where(totals > 0, 1.0), 1 / maps.shape[1])


def _moved(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    return float((a - b).abs().sum() / 2)


def _middle(grid: tuple[int, int]) -> Float[Tensor, " n"]:
    """1 for the patches whose centre lies in the middle half of both axes."""
    inside = [((torch.arange(n) + 0.5) / n - 0.5).abs() < 0.25 for n in grid]
    return (inside[0][:, None] & inside[1]).flatten().double()
