"""What may stand between the two products of an attention, by the name of the function that does it.

Each step takes the trail of a tensor and a call that it went into, and gives the trail of what came out, or raises
`Lost`. A name stands for a function, a method, an operator and for each of them in place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.watching import axes as layout
from pellucid.watching.axes import Axes, broadcast, find_order, size_of
from pellucid.watching.trails import Doing, Lost, Trail


@dataclass(frozen=True, eq=False)
class FollowedCall:
    """One call of a function of PyTorch's: `x` is the argument whose trail is followed."""

    name: str
    x: Tensor
    args: tuple
    kwargs: dict
    out: Tensor

    @property
    def unfollowed(self) -> str:
        return f"its scores go through {self.name}, which isn't followed"

    @property
    def other(self) -> Any:
        """The other one of two arguments."""
        if len(self.args) < 2:
            raise Lost(self.unfollowed)
        return self.args[1] if self.args[0] is self.x else self.args[0]


def read_factor(name: str, args: tuple) -> float | None:
    """The number by which a call multiplies its tensor."""
    if len(args) < 2:
        return None
    numbers = [_number(x) for x in args[:2]]
    if (numbers[0] is None) == (numbers[1] is None):
        return None
    if name not in DIVISIONS:
        return numbers[0] if numbers[1] is None else numbers[1]
    return 1.0 / numbers[1] if numbers[1] else None


def _number(x: Any) -> float | None:
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return float(x)
    if isinstance(x, Tensor) and x.ndim == 0 and x.device.type == "cpu":
        return float(x.item())
    return None


# Layout.


def _keep(trail: Trail, step: FollowedCall) -> Trail:
    if step.out.shape != step.x.shape:
        raise Lost(f"{step.name} changes the shape of its scores")
    return trail.held_in(step.out.dtype)


def _reshape(trail: Trail, step: FollowedCall) -> Trail:
    shape = step.out.shape
    if trail.extended:
        if shape[-1] != step.x.shape[-1]:
            raise Lost("its scores are reshaped beside their sinks")
        shape = (*shape[:-1], size_of(trail.axes[-1]))
    axes = layout.reshape(trail.axes, shape)
    if axes is None:
        raise Lost(f"{step.name} mixes its axes")
    return replace(trail, axes=axes)


def _permute(trail: Trail, step: FollowedCall) -> Trail:
    order = find_order(step.name, step.x.ndim, [*step.args[1:], *step.kwargs.values()])
    return replace(trail, axes=tuple(trail.axes[d] for d in order))


def _cut(trail: Trail, step: FollowedCall) -> Trail:
    """Indexing: axes of size one that come and go, or the sinks that are cut off again."""
    x, out = step.x, step.out
    if out.numel() == x.numel() and step.name in ("getitem", "select") and _keeps_order(step):
        return _reshape(trail, step)
    if trail.extended and trail.softmax and trail.sinks and out.ndim == x.ndim:
        for i, axis in enumerate(trail.axes):
            n = size_of(axis)
            if axis != trail.softmax.over or x.shape[i] != n + trail.extended:
                continue
            kept = x.narrow(i, trail.extended if trail.sinks.first else 0, n)
            if out.shape == kept.shape and out.data_ptr() == kept.data_ptr() and out.stride() == kept.stride():
                return replace(trail, extended=0)
    raise Lost("a part of its scores is cut out")


def _keeps_order(step: FollowedCall) -> bool:
    """Whether an index only adds or takes axes of size one: no lists of places, and no step backwards."""
    index = step.args[1] if step.name == "getitem" else 0
    items = index if isinstance(index, tuple) else (index,)
    return all(item is None or item is Ellipsis or isinstance(item, (int, slice)) for item in items)


# Arithmetic.


def _scale(trail: Trail, step: FollowedCall) -> Trail:
    trail = _keep(trail, step)
    factor = read_factor(step.name, step.args)
    if factor is not None and not (step.name in DIVISIONS and step.args[0] is not step.x):
        _refuse_sinks(trail, step)
        return trail.do(Doing("times", factor))
    other = step.other
    if (step.name in DIVISIONS and step.args[0] is not step.x) or not isinstance(other, Tensor):
        raise Lost(step.unfollowed)
    _refuse_sinks(trail, step)
    if other is step.x:
        if step.name in DIVISIONS:
            raise Lost("its scores are divided by themselves")
        return trail.do(Doing("apply", name="square", function=torch.square))
    other = 1.0 / other if step.name in DIVISIONS else other
    return trail.do(Doing("times", tensor=other, axes=_under(trail, step, other)))


def _negate(trail: Trail, step: FollowedCall) -> Trail:
    _refuse_sinks(trail, step)
    return _keep(trail, step).do(Doing("times", -1.0))


def _add(trail: Trail, step: FollowedCall) -> Trail:
    scores, other = step.x, step.other
    if step.out.shape != scores.shape and step.out.numel() == scores.numel():  # a mask with more axes of size one
        trail = _reshape(trail, step).held_in(step.out.dtype)
    else:
        trail = _keep(trail, step)
    alpha = float(step.kwargs.get("alpha", 1))
    signs = {"add": (1.0, alpha), "rsub": (-alpha, 1.0)}.get(step.name, (1.0, -alpha))
    mine, theirs = signs if step.args[0] is scores else signs[::-1]
    if other is scores:
        mine, theirs, other = mine + theirs, 0.0, 0.0
    if mine != 1:
        _refuse_sinks(trail, step)
        trail = trail.do(Doing("times", mine))
    if isinstance(other, (int, float)):
        other = torch.tensor(float(other), dtype=step.out.dtype, device=step.out.device)
    if not isinstance(other, Tensor):
        raise Lost(step.unfollowed)
    axes = _under(trail, step, other)
    if trail.extended and trail.softmax is None:  # the same for all keys and sinks: no softmax sees it
        return trail
    return trail.do(Doing("plus", theirs, other, axes)) if theirs else trail


def _fill(trail: Trail, step: FollowedCall) -> Trail:
    x, out = step.x, step.out
    if step.name == "where":
        condition, yes, no = step.args
        if (yes is x) == (no is x) or condition is x:
            raise Lost(step.unfollowed)
        mask, value = (~condition, no) if yes is x else (condition, yes)
    else:
        mask, value = step.args[1:]
    if out.shape != x.shape and out.numel() == x.numel():
        trail = _reshape(trail, step)
    elif out.shape != x.shape:
        raise Lost(f"{step.name} changes the shape of its scores")
    _refuse_sinks(trail, step)
    axes = _under(trail, step, mask)
    if isinstance(value, Tensor) and value.numel() > 1:
        trail = trail.do(Doing("fill", 0.0, mask, axes))
        other = torch.where(mask, value, 0.0)
        return trail.do(Doing("plus", 1.0, other, _under(trail, step, other)))
    return trail.do(Doing("fill", float(value), mask, axes))


def fill_written(trail: Trail, x: Tensor, mask: Tensor, value: float) -> Trail:
    """x[mask] = value, where the mask may have fewer axes: those that come first."""
    mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
    return _fill(trail, FollowedCall("masked_fill", x, (x, mask, value), {}, x))


def fill_masked(trail: Trail, x: Tensor, mask: Tensor) -> Trail:
    """What PyTorch's own masked softmax leaves out."""
    return _fill(trail, FollowedCall("masked_fill", x, (x, mask, -math.inf), {}, x))


def _apply(trail: Trail, step: FollowedCall) -> Trail:
    given = (*step.args[1:], *step.kwargs.values())
    if any(isinstance(y, Tensor) and y.numel() > 1 for y in given) or step.args[0] is not step.x:
        raise Lost(step.unfollowed)
    trail = _keep(trail, step)
    if step.name != "exp":  # which scores and sinks go through together if their softmax is written out
        _refuse_sinks(trail, step)
    rest = [float(y) if isinstance(y, Tensor) else y for y in step.args[1:]]
    named = {k: float(y) if isinstance(y, Tensor) else y for k, y in step.kwargs.items() if k != "inplace"}
    plain = {"maximum": "clamp_min", "max": "clamp_min", "min": "clamp_max", "minimum": "clamp_max"}
    name = plain.get(step.name, step.name)
    function = getattr(torch, name, None) or getattr(nn.functional, name)
    return trail.do(Doing("apply", name=step.name, function=lambda s: function(s, *rest, **named)))


def _drop(trail: Trail, step: FollowedCall) -> Trail:
    trail, args, kwargs = _keep(trail, step), step.args, step.kwargs
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    if not training or not p:
        return trail
    if trail.softmax is None:
        raise Lost("its scores are dropped at random before the softmax")
    return replace(trail, dropout=1 - (1 - trail.dropout) * (1 - p))


def _refuse_sinks(trail: Trail, step: FollowedCall) -> None:
    if trail.extended and trail.softmax is None:
        raise Lost(f"its scores and sinks go through {step.name} together, which isn't followed")


def _under(trail: Trail, step: FollowedCall, other: Tensor) -> Axes:
    axes = broadcast(trail.axes, other.shape)
    if axes is None:
        raise Lost(f"{step.name} takes a tensor that is larger than its scores")
    return axes


DIVISIONS = frozenset({"div", "true_divide", "divide", "truediv"})
SCALING = frozenset({"mul", "multiply", *DIVISIONS})
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone", "detach"})
LIKENESSES = frozenset(
    {"full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones"}
    | {"new_full", "new_tensor", "new_empty", "isfinite", "isnan", "isinf"}
)  # they take a shape and no numbers
REDUCTIONS = frozenset(
    ["amax", "amin", "sum", "mean", "logsumexp", "argmax", "topk", "norm", "std", "var", "any", "all"]
)
_RESHAPES = ["view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "_unsafe_view"]
_PERMUTES = [
    "transpose",
    "swapaxes",
    "swapdims",
    "permute",
    "movedim",
    "moveaxis",
    "mT",
    "mH",
    "adjoint",
    "t",
    "T",
    "H",
]
_POINTWISE = [
    "tanh",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clip",
    "maximum",
    "minimum",
    "max",
    "min",
    "relu",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "sigmoid",
    "softplus",
    "abs",
    "exp",
    "log",
    "log1p",
    "sqrt",
    "square",
    "pow",
    "nan_to_num",
]
LAYOUT = frozenset({*_RESHAPES, *_PERMUTES, "getitem", "expand"})
STEPS: dict[str, Callable[[Trail, FollowedCall], Trail]] = {
    **dict.fromkeys(CASTS, _keep),
    **dict.fromkeys(("identity", "alias", "requires_grad", "retain_grad", "pin_memory", "cuda", "cpu"), _keep),
    **dict.fromkeys(("expand", "expand_as"), _keep),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(_PERMUTES, _permute),
    **dict.fromkeys(("getitem", "narrow", "select"), _cut),
    **dict.fromkeys(SCALING, _scale),
    **dict.fromkeys(("neg", "negative"), _negate),
    **dict.fromkeys(("add", "sub", "subtract", "rsub"), _add),
    **dict.fromkeys(("masked_fill", "where"), _fill),
    **dict.fromkeys(_POINTWISE, _apply),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _drop),
}
