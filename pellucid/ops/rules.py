"""What stands between β·qkᵀ and its softmax, where that is more than a mask: a rule, applied to a few rows at a time.

Softcapping, a temperature for each head, scores that are overwritten, attention sinks, heads that are mixed before or
after the softmax, a function of the positions: models write these in many ways. A `Rule` stands where a mask does in
`ops.exact` and `ops.summaries`, so that all of them hold for it, too.

Axes: b batch, h heads, n some of the queries, k keys.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Rows = Tensor  # the numbers of some of the queries
Step = Callable[[Tensor, Rows], Tensor]


@dataclass(frozen=True, eq=False)
class Times:
    """Each score times a number of its own: a temperature for each head, or a mask of ones and zeros."""

    factor: Tensor

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return x * pick_rows(self.factor, rows).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Plus:
    """A bias."""

    bias: Tensor

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return x + pick_rows(self.bias, rows).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Hold:
    """Rounded to what the model holds its scores in: beside −10⁹ nothing is left of a score in float32."""

    dtype: torch.dtype

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return x.to(self.dtype).to(x.dtype) if self.dtype.itemsize < x.dtype.itemsize else x


@dataclass(frozen=True, eq=False)
class Fill:
    """One value wherever the mask is True."""

    mask: Tensor
    value: float

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        # The lowest number of float64 is more than float32 can hold.
        value = self.value if math.isinf(self.value) else max(self.value, torch.finfo(x.dtype).min)
        return x.masked_fill(pick_rows(self.mask, rows), value)


@dataclass(frozen=True, eq=False)
class Apply:
    """A function of each number alone."""

    name: str
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return self.function(x)


@dataclass(frozen=True, eq=False)
class MixHeads:
    """Talking heads (Shazeer et al. 2020): each head becomes a mixture of all of them."""

    matrix: Tensor  # (out, in)
    bias: Tensor | None

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        mixed = torch.einsum("oi,bink->bonk", self.matrix.to(x.dtype), x)
        return mixed if self.bias is None else mixed + self.bias.to(x.dtype)[:, None, None]


@dataclass(frozen=True, eq=False)
class Positions:
    """A function of each score and of where it stands, as flex attention takes one: f(score, b, h, q, k)."""

    function: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return self.function(x, *places(x, rows))


@dataclass(frozen=True, eq=False)
class Allow:
    """A function of where a score stands that says whether it counts, as flex attention takes one: f(b, h, q, k)."""

    function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return x.masked_fill(~self.function(*places(x, rows)), -torch.inf)


@dataclass(frozen=True, eq=False)
class Within:
    """Windows: to each query only the keys of its own window count, with a bias for their places in it."""

    places: Tensor
    """(windows, w): which key stands at each place of each window, every key at one."""
    kinds: Tensor
    """(windows): which of the biases is a window's."""
    bias: Tensor
    """(kinds, 1 or h, w, w), −∞ where a place doesn't count."""

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        size = self.places.shape[1]
        stands = self.places.flatten().argsort()[rows]
        window, at = stands // size, stands % size
        keys = self.places[window].expand(*x.shape[:-1], -1)
        bias = self.bias[self.kinds[window], :, at].movedim(0, 1).to(x.dtype)
        return torch.full_like(x, -torch.inf).scatter(-1, keys, x.gather(-1, keys) + bias)


@dataclass(frozen=True, eq=False)
class Rule:
    """Steps before the softmax, steps after it, and sinks: scores that take their share and belong to no key.

    >>> cap = Apply("2·tanh(·/2)", lambda s: 2 * (s / 2).tanh())
    >>> Rule((cap,)).weigh(torch.tensor([[[[0.0, 100.0]]]]), torch.arange(1))
    tensor([[[[0.1192, 0.8808]]]])
    """

    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    sinks: Tensor | None = None
    """(b h q s), each axis but the last of its size or one."""

    def weigh(self, scores: Tensor, rows: Rows) -> Tensor:
        """The weights of these rows from their scores; a row that may attend to nothing gets zeros."""
        for step in self.before:
            scores = step(scores, rows)
        if self.sinks is None:
            weights = scores.softmax(-1)
        else:
            sinks = pick_rows(self.sinks, rows).to(scores.dtype)
            joined = torch.cat([scores, sinks.expand(*scores.shape[:-1], -1)], dim=-1)
            weights = joined.softmax(-1)[..., : scores.shape[-1]]
        weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        for step in self.after:
            weights = step(weights, rows)
        return weights

    @property
    def needs_all_heads(self) -> bool:
        """Whether a head's weights hang on the other heads, or on its number."""
        return any(isinstance(step, MixHeads | Positions | Allow) for step in (*self.before, *self.after))

    def tensors(self) -> list[Tensor]:
        """What it is made of."""
        parts = [value for step in (*self.before, *self.after) for value in vars(step).values()]
        return [x for x in (*parts, self.sinks) if isinstance(x, Tensor)]

    def detach(self) -> "Rule":
        """The same with no graph behind it."""
        return self.with_tensors(Tensor.detach)

    def clone(self) -> "Rule":
        """The same with tensors of its own."""
        return self.with_tensors(Tensor.clone)

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Rule":
        """The same made of other tensors."""

        def changed(step: Any) -> Step:
            return type(step)(**{k: change(x) if isinstance(x, Tensor) else x for k, x in vars(step).items()})

        sinks = None if self.sinks is None else change(self.sinks)
        return Rule(tuple(map(changed, self.before)), tuple(map(changed, self.after)), sinks)

    def __repr__(self) -> str:
        before, after = (", ".join(map(_say, steps)) for steps in (self.before, self.after))
        parts = [f"before: {before}"] if before else []
        parts += [f"after: {after}"] if after else []
        parts += [f"{self.sinks.shape[-1]} sinks"] if self.sinks is not None else []
        return f"Rule({'; '.join(parts)})"


def pick_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """The rows of something that broadcasts to (b h q k)."""
    return tensor if tensor.ndim < 2 or tensor.shape[-2] == 1 else tensor[..., rows, :]


def pick_heads(mask: "Tensor | Rule", heads: Tensor | slice) -> "Tensor | Rule":
    """Of something that broadcasts to (b h q k), what belongs to these heads; of a rule that doesn't need all heads."""

    def picked(x: Tensor) -> Tensor:
        return x[..., heads, :, :] if x.ndim >= 3 and x.shape[-3] != 1 else x

    if isinstance(mask, Tensor):
        return picked(mask)

    return mask.with_tensors(picked)


def places(x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where each of the scores (b h n k) stands, as four tensors that broadcast to them."""
    b, h, k = (torch.arange(x.shape[axis], device=x.device) for axis in (0, 1, 3))
    return b[:, None, None, None], h[:, None, None], rows[:, None], k


def _say(step: Step) -> str:
    if isinstance(step, Apply):
        return step.name
    if isinstance(step, Hold):
        return str(step.dtype).removeprefix("torch.")
    tensor = next((x for x in vars(step).values() if isinstance(x, Tensor)), None)
    return type(step).__name__ + ("" if tensor is None else str(list(tensor.shape)))
