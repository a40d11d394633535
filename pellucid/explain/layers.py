"""One attention as data: what a trace keeps of a record, from which every row of its map follows.

Models write what stands between scores and weights in many ways. A trace says it in four: softcap, bias, mask, sinks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.ops import masks, summaries
from pellucid.ops.exact import share_heads
from pellucid.ops.rules import Allow, Apply, Fill, Hold, Plus, Positions, Rule, Step, Times, Within
from pellucid.ops.summaries import Selection
from pellucid.watching.record import Record

MOST_PAIRS = 1 << 24  # of places in a window, in each head, that windows may have biases of their own for
LOW = -1e3  # a score that lies so far below the best of its row doesn't count: e to this power is nothing


@dataclass(frozen=True, eq=False)
class Windows:
    """Which tokens attend to each other, where each attends to those of its window alone.

    >>> pairs = Windows(torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0]))
    >>> pairs.step()(torch.zeros(1, 1, 1, 4), torch.tensor([2]))     # the third token's scores
    tensor([[[[-inf, -inf, 0., 0.]]]])
    """

    places: Int[Tensor, "windows w"]
    """Which token stands at each place of each window. From the number of tokens on they are padding: keys that nobody
    gave, which take their share all the same."""
    kinds: Int[Tensor, " windows"]
    """Which of the masks and biases is a window's: shifted windows at an edge have another than those inside."""
    mask: Bool[Tensor, "kinds *each w w"] | None = None
    bias: Float[Tensor, "kinds *heads w w"] | None = None

    def step(self) -> Within:
        """What stands between the scores and the softmax."""
        size = self.places.shape[1]
        bias = torch.zeros(1 + int(self.kinds.max()), 1, size, size) if self.bias is None else self.bias
        return Within(self.places, self.kinds, bias if self.mask is None else bias.masked_fill(~self.mask, -math.inf))


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention: everything that its map softmax(cap(β·qkᵀ) + bias) follows from.

    >>> import torch
    >>> layer = Layer("0", "text", "text", *torch.randn(2, 4, 5, 8), 0.5, True, None, torch.ones(4, 5))
    >>> layer.q.shape, layer.beta
    (torch.Size([4, 5, 8]), 0.5)
    """

    name: str
    """As `watch` names it."""
    queries: str
    """Name of the tokens that ask."""
    keys: str
    """Name of the tokens that answer."""
    q: Float[Tensor, "h q d"]
    """Positions and norms are in q and k."""
    k: Float[Tensor, "g k d"]
    """Of grouped heads as few as there are."""
    beta: float
    causal: bool
    mask: Bool[Tensor, "*heads q k"] | None
    """True = may attend; alike for all heads, or (heads q k)."""
    values: Float[Tensor, "h k"]
    """Length of each value: a weight on a short one moves little."""
    bias: Float[Tensor, "*each q k"] | None = None
    """Added to the scores: positions, as T5 and Swin learn them."""
    softcap: float | None = None
    """cap(s) = softcap·tanh(s/softcap)."""
    sinks: Float[Tensor, " h"] | None = None
    """A score for each head that takes its share of the softmax and belongs to no key."""
    windows: Windows | None = None
    """Of an attention within windows, instead of mask and bias; padding stands behind the last key."""

    @property
    def n_keys(self) -> int:
        """How many tokens answer: padding is none.

        >>> one = torch.ones(1, 3, 2)
        >>> windows = Windows(torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0]))
        >>> Layer("a", "x", "x", one, torch.ones(1, 4, 2), 1.0, False, None, torch.ones(1, 4), windows=windows).n_keys
        3
        """
        return self.k.shape[1] if self.windows is None else self.q.shape[1]

    def weights(self, heads: Selection = None, queries: Selection = None) -> Float[Tensor, "heads queries k"]:
        """The map, or a block of it. A row sums to less than one where a sink or padding takes its share.

        >>> q, one = torch.zeros(2, 3, 4), torch.ones(2, 3)
        >>> Layer("a", "x", "x", q, q, 1.0, True, None, one).weights(heads=[0], queries=[1])
        tensor([[[0.5000, 0.5000, 0.0000]]])
        """
        rows = summaries.weights(self.q[None], self.k[None], **self.how, heads=heads, queries=queries)
        return rows[0, ..., : self.n_keys]

    @property
    def how(self) -> dict[str, Any]:
        """What the functions of `ops` take beside q and k.

        >>> from pellucid.ops import weights
        >>> q, one = torch.zeros(1, 1, 2), torch.ones(1, 1)
        >>> layer = Layer("a", "x", "x", q, q, 1.0, False, None, one, sinks=torch.zeros(1))
        >>> weights(layer.q[None], layer.k[None], **layer.how)       # a sink with the same score takes half
        tensor([[[[0.5000]]]])
        """
        return {"mask": self._mask(), "beta": self.beta, "causal": self.causal}

    def _mask(self) -> Tensor | Rule | None:
        bias = self.bias
        sinks = None if self.sinks is None else self.sinks[None, :, None, None]
        if bias is None and self.mask is not None and self.softcap is None and self.sinks is None:
            return self.mask[None] if self.mask.ndim == 3 else self.mask
        if bias is not None:
            bias = bias[None] if bias.ndim == 3 else bias
            bias = bias if self.mask is None else bias.masked_fill(~self.mask, -math.inf)
        if self.softcap is None and self.sinks is None and self.windows is None:
            return bias
        steps: list[Step] = []
        if (cap := self.softcap) is not None:
            steps.append(Apply(f"{cap:.4g}·tanh(·/{cap:.4g})", lambda s: cap * (s / cap).tanh()))
        if self.windows is not None:
            steps.append(self.windows.step())
        elif bias is not None:
            steps.append(Plus(bias))
        elif self.mask is not None:
            steps.append(Fill(~self.mask, -math.inf))
        return Rule(tuple(steps), sinks=sinks)


def layer_of(record: Record, queries: str, keys: str, row: int = 0) -> Layer:
    """What was seen of one input, the row of its batch; ValueError if what it did to its scores can't be said."""
    said = _Said(record, row)
    causal = record.causal
    mask = said.mask
    if mask is not None and len(mask) == 1 and torch.equal(mask[0], masks.causal(*mask.shape[1:])):
        causal, mask = True, None
    v = share_heads(record.v, record.q.shape[1])[row]
    return Layer(
        name=record.name,
        queries=queries,
        keys=keys,
        q=(record.q[row] * said.factor if said.factor is not None else record.q[row]).detach().cpu().contiguous(),
        k=record.k[row].detach().cpu().contiguous(),
        beta=record.beta * said.cap if said.cap is not None else record.beta,
        causal=causal,
        mask=mask,
        values=v.to(torch.promote_types(v.dtype, torch.float32)).norm(dim=-1).cpu(),
        bias=said.bias,
        softcap=said.cap,
        sinks=said.sinks,
    )


def layer_of_windows(record: Record, places: Int[Tensor, "windows w"], queries: str, keys: str, row: int = 0) -> Layer:
    """An attention within windows as one over all tokens: each may attend to those of its window.

    places: which token stands where, as `Reading.places` says it. ValueError if that can't be said.
    """
    windows, size = places.shape
    tokens = int((places >= 0).sum())
    if not torch.equal(places[places >= 0].sort().values, torch.arange(tokens)) or record.k.shape[2] != size:
        raise ValueError("it attends within windows that overlap or leave tokens out")
    places = places.clone()
    places[places < 0] = torch.arange(tokens, places.numel())
    each = [layer_of(record, queries, keys, row * windows + i) for i in range(windows)]
    order = places.flatten().argsort()
    q, k, values = (torch.cat(parts, 1)[:, order] for parts in zip(*((x.q, x.k, x.values) for x in each), strict=True))
    return replace(
        each[0], q=q[:, :tokens], k=k, values=values, causal=False, mask=None, bias=None, windows=_tell(each, places)
    )


def _tell(each: Sequence[Layer], places: Int[Tensor, "windows w"]) -> Windows:
    """The windows' masks and biases, those that are alike once."""
    size = places.shape[1]
    kinds: dict[bytes, int] = {}
    parts: list[tuple[Tensor, Tensor]] = []
    numbers: list[int] = []
    for one in each:
        mask = torch.ones(1, size, size, dtype=torch.bool) if one.mask is None else one.mask
        mask = mask & masks.causal(size, size) if one.causal else mask
        bias = torch.zeros(1, size, size) if one.bias is None else one.bias
        kind = mask.numpy().tobytes() + bias.numpy().tobytes()
        if kind not in kinds:
            kinds[kind] = len(parts)
            parts.append((mask, bias))
        numbers.append(kinds[kind])
    mask, bias = (_stack([pair[i] for pair in parts]) for i in (0, 1))
    if bias.numel() > MOST_PAIRS:
        raise ValueError(
            f"it attends within windows that have {bias.numel():,} biases of their own; a trace holds {MOST_PAIRS:,}"
        )
    told = Windows(places, torch.tensor(numbers))
    return replace(told, mask=None if bool(mask.all()) else mask, bias=bias if bool(bias.any()) else None)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """(kinds, 1 or h, w, w)."""
    heads = max(map(len, parts))
    return torch.stack([part.expand(heads, -1, -1) for part in parts])


@dataclass(eq=False)
class _Said:
    """The mask or the rule of a record, taken apart for one row of its batch."""

    record: Record
    row: int
    factor: Float[Tensor, "h 1 1"] | None = None
    """What the scores of each head are multiplied by."""
    cap: float | None = None
    bias: Float[Tensor, "heads q k"] | None = None
    mask: Bool[Tensor, "heads q k"] | None = None
    sinks: Float[Tensor, " h"] | None = None
    shape: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        h, q = self.record.q.shape[1:3]
        self.shape = (h, q, self.record.k.shape[2])
        mask = self.record.mask
        if isinstance(mask, Rule):
            self.take_apart(mask)
        elif mask is not None:
            self.allow(mask) if mask.dtype == torch.bool else self.add(mask)
        self.bar_low()

    def take_apart(self, rule: Rule) -> None:
        if rule.after:
            raise self.unsaid(rule)
        steps = [step for step in rule.before if not isinstance(step, Hold)]
        steps = self.take_cap(steps)
        for step in steps:
            match step:
                case Plus():
                    self.add(step.bias)
                case Fill() if step.value <= LOW:
                    self.allow(~step.mask)
                case Times() if self.bias is None and self.mask is None and self.cap is None:
                    self.scale(step.factor, rule)
                case Allow() | Positions():
                    self.ask(step, rule)
                case _:
                    raise self.unsaid(rule)
        if rule.sinks is not None:
            sinks = self.pick(rule.sinks).logsumexp(-1)
            if not torch.equal(sinks, sinks[:, :1].expand_as(sinks)):  # a sink of its own for each query
                raise self.unsaid(rule)
            self.sinks = sinks[:, 0].expand(self.shape[0]).float().cpu()

    def take_cap(self, steps: Sequence[Step]) -> list[Step]:
        """tanh of a score, times a number: that number is the cap."""
        match list(steps):
            case [Apply(name="tanh"), Apply() as times, *rest] if times.name.startswith("·"):
                self.cap = float(times(torch.ones(()), torch.zeros(1)))
                return rest
        return list(steps)

    def scale(self, factor: Tensor, rule: Rule) -> None:
        factor = self.pick(factor)
        if factor.shape[1:] != (1, 1):
            raise self.unsaid(rule)
        self.factor = factor if self.factor is None else self.factor * factor

    def ask(self, step: Allow | Positions, rule: Rule) -> None:
        """A function of the places: what it bars, and what it adds, if that is all that it does."""
        h, q, k = self.shape
        b, rows = self.record.q.shape[0], torch.arange(q, device=self.record.q.device)
        zero, one = (step(torch.full((b, h, q, k), x, device=rows.device), rows)[self.row] for x in (0.0, 1.0))
        open_ = zero > -math.inf
        if not torch.allclose(one[open_] - zero[open_], torch.ones(()).to(one.device), atol=1e-4):
            raise self.unsaid(rule)
        self.allow(open_)
        if bool(zero[open_].any()):
            self.add(zero.masked_fill(~open_, 0.0))

    def allow(self, mask: Tensor) -> None:
        mask = self.spread(self.pick(mask))
        self.mask = mask if self.mask is None else self.mask & mask

    def add(self, bias: Tensor) -> None:
        bias = self.spread(self.pick(bias).float())
        self.bias = bias if self.bias is None else self.bias + bias

    def bar_low(self) -> None:
        """What a bias puts far below the best of its row is a mask; a row that lies low as a whole counts as it is."""
        if self.bias is None:
            return
        best = self.bias.amax(-1, keepdim=True)
        bias = torch.where(best <= LOW, self.bias - best, self.bias).nan_to_num(nan=-math.inf)
        barred = bias <= bias.amax(-1, keepdim=True).clamp(min=0.0) + LOW
        barred |= best == -math.inf
        if bool(barred.any()):
            self.mask = ~barred if self.mask is None else self.mask & ~barred
        bias = bias.masked_fill(barred, 0.0)
        self.bias = bias if bool(bias.any()) else None
        if self.mask is not None and (self.mask == self.mask[:1]).all():
            self.mask = self.mask[:1]

    def pick(self, x: Tensor) -> Tensor:
        """Of what broadcasts to (b h q k), this row of the batch."""
        x = x.detach().cpu()
        x = x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x
        return x[self.row if len(x) > 1 else 0]

    def spread(self, x: Tensor) -> Tensor:
        """(1 or h, q, k)."""
        return x.expand(len(x), *self.shape[1:])

    def unsaid(self, rule: Rule) -> ValueError:
        return ValueError(f"{self.record.name!r} does to its scores what a trace has no words for: {rule!r}")
