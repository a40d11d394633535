"""What was done to scores and weights, stated: as β and a mask where that says it all, else as β and a rule."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pellucid.ops import rules
from pellucid.ops.exact import share_heads
from pellucid.watching.axes import Axes, Axis
from pellucid.watching.trails import Doing, Lost, Trail

LOW = -1e3  # what is filled in for a score that isn't to count lies below: e to this power is nothing
ODD = 16  # so many of the queries whose keys all lie that low are looked at

Bring = Callable[[Axis, Axes, Tensor], Tensor]  # a tensor with these axes as (b h q …), its last axis of these atoms


@dataclass(frozen=True, eq=False)
class Statement:
    """The steps of a trail, each with its tensor as (b h q k), or what broadcasts to that; and the sinks."""

    trail: Trail
    before: list[tuple[Doing, Tensor | None]]
    after: tuple[rules.Step, ...]
    sinks: Tensor | None
    low: Tensor | None = field(init=False)
    """Where something so low is filled in or added that the key doesn't count."""

    def __post_init__(self) -> None:
        low = None
        for doing, tensor in self.before:
            if tensor is None or doing.kind not in ("fill", "plus") or (doing.kind == "fill" and doing.number > LOW):
                continue
            under = tensor if doing.kind == "fill" else tensor * doing.number <= LOW
            low = under if low is None else low | under
        object.__setattr__(self, "low", low)

    def plain(self) -> tuple[float, Tensor | rules.Rule | None]:
        """As if no number were rounded."""
        bars = self._tell_bars()
        beta, bias, barred, steps = 1.0, None, None, []
        for i, (doing, tensor) in enumerate(self.before):
            if doing.kind == "plus" and tensor is not None and tensor.shape[-1] == 1 and not self._is_felt(i):
                continue
            if not steps and doing.kind == "times" and tensor is None and (barred is None or doing.number > 0):
                beta *= doing.number
                bias = bias if bias is None else bias * doing.number
            elif not steps and doing.kind == "plus" and tensor is not None:
                tensor = tensor * doing.number if doing.number != 1 else tensor
                bias = tensor if bias is None else bias + tensor
            elif not steps and bars[i] and tensor is not None:
                barred = tensor if barred is None else barred | tensor
            else:
                steps += [*_steps_of(bias, barred), _step(doing, tensor)]
                bias = barred = None
        if steps or self.after or self.sinks is not None:
            return beta, rules.Rule((*steps, *_steps_of(bias, barred)), self.after, self.sinks)
        if barred is None:
            return beta, bias
        return beta, ~barred if bias is None else bias.masked_fill(barred, -math.inf)

    def rounded(self) -> rules.Rule:
        """Step by step, each rounded to what the model holds it in."""
        product = self.trail.product
        assert product is not None
        steps: list[rules.Step] = [] if product.is_sum else [rules.Hold(product.dtype)]
        for doing, tensor in self.before:
            if doing.kind != "times" or tensor is not None or doing.number != 1:
                steps.append(_step(doing, tensor))
            steps += [] if doing.held is None else [rules.Hold(doing.held)]
        return rules.Rule(tuple(steps), self.after, self.sinks)

    def list_odd(self) -> list[int]:
        """Some of the queries all of whose keys lie far below: what becomes of them hangs on rounding."""
        if self.low is None or self.low.ndim < 2 or self.low.shape[-2] == 1:
            return []
        rows = self.low.all(-1)
        return rows.reshape(-1, rows.shape[-1]).any(0).nonzero()[:ODD, 0].tolist()

    def _is_felt(self, i: int) -> bool:
        """Whether a bias that is the same for all keys makes a difference: if what follows isn't linear."""
        later = self.trail.before[i + 1 :]
        return self.sinks is not None or any(other.kind in ("apply", "mix", "fill") for other in later)

    def _tell_bars(self) -> list[bool]:
        """For each of the steps whether it fills in a value that is the same as not allowing.

        A finite one isn't where something later could lift it again, or where a whole row lies that low: such a row
        spreads its attention evenly over what was filled in.
        """

        def lifts(doing: Doing) -> bool:
            return doing.kind in ("apply", "mix") or (
                doing.kind == "times" and (doing.tensor is not None or doing.number <= 0)
            )

        doings = self.trail.before
        finite = any(doing.kind == "fill" and -math.inf < doing.number <= LOW for doing in doings)
        finite_bars = finite and self.low is not None and not bool(self.low.all(-1).any())
        return [
            doing.kind == "fill"
            and (
                doing.number == -math.inf
                or (doing.number <= LOW and finite_bars and not any(map(lifts, doings[i + 1 :])))
            )
            for i, doing in enumerate(doings)
        ]


def state(trail: Trail, bring: Bring) -> Statement:
    """What was done between the product of queries and keys and that with the values."""
    assert trail.softmax is not None
    keys = trail.softmax.over

    def placed(doing: Doing) -> tuple[Doing, Tensor | None]:
        if doing.tensor is None or doing.kind == "mix":
            return doing, None
        return doing, bring(keys, doing.axes, doing.tensor.detach())

    sinks = trail.sinks and bring(trail.sinks.own, trail.sinks.axes, trail.sinks.scores.detach())
    after = tuple(_step(*placed(doing)) for doing in trail.after)
    return Statement(trail, [placed(doing) for doing in trail.before], after, sinks)


def state_rest(trail: Trail, bring: Bring, q: Tensor, k: Tensor) -> tuple[float, Tensor]:
    """β and what the product alone doesn't give, as a bias: for scores into which a part was written."""
    assert trail.softmax is not None
    assert trail.rewritten is not None
    if trail.after or trail.sinks:
        raise Lost("a part of its scores is written into")
    kept = bring(trail.softmax.over, trail.softmax_axes, trail.rewritten)
    beta = math.prod(doing.number for doing in trail.before if doing.kind == "times" and doing.tensor is None)
    dtype = torch.promote_types(kept.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        return beta, kept.to(dtype) - beta * (q.to(dtype) @ share_heads(k, q.shape[1]).to(dtype).mT)


def _steps_of(bias: Tensor | None, barred: Tensor | None) -> list[rules.Step]:
    steps: list[rules.Step] = [] if bias is None else [rules.Plus(bias)]
    return steps if barred is None else [*steps, rules.Fill(barred, -math.inf)]


def _step(doing: Doing, tensor: Tensor | None) -> rules.Step:
    match doing.kind:
        case "times" if tensor is None:
            number = doing.number
            return rules.Apply(f"·{number:.4g}", lambda x: x * number)
        case "times":
            assert tensor is not None
            return rules.Times(tensor)
        case "plus":
            assert tensor is not None
            return rules.Plus(tensor if doing.number == 1 else tensor * doing.number)
        case "fill":
            assert tensor is not None
            return rules.Fill(tensor, doing.number)
        case "mix":
            assert doing.tensor is not None
            return rules.MixHeads(doing.tensor, doing.bias)
    assert doing.function is not None
    return rules.Apply(doing.name, doing.function)
