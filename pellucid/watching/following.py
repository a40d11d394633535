"""Follow a softmax that a model writes out: from the product of queries and keys to the product with the values.

Each tensor that came out of a product of two others is known by a `Trail` (`trails.py`): which product, which of its
axes is which, and what has been done to the scores since (`steps.py`). At a softmax the trail goes on with weights, and
at their product with the values it ends: q, k, v, β, a mask or a rule and the output are known (`gathering.py`), for
a record. Where a trail is lost, the softmax is kept in mind with the reason. Nothing is computed but a
few rows, which must come out as the model's own: what can't be reproduced isn't recorded.
"""

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.watching.axes import broadcast, fresh, leaves
from pellucid.watching.gathering import Followed, gather
from pellucid.watching.steps import (
    CASTS,
    DIVISIONS,
    LAYOUT,
    LIKENESSES,
    REDUCTIONS,
    SCALING,
    STEPS,
    FollowedCall,
    fill_masked,
    fill_written,
    read_factor,
)
from pellucid.watching.streams import Streams
from pellucid.watching.trails import (
    Doing,
    Equation,
    Lost,
    Product,
    Sinks,
    Softmax,
    Trail,
    name_axes,
    read_equation,
    version,
)

__all__ = ["Followed", "Follower", "Softmax"]

SAMPLED = "it samples values at places that it computes (deformable attention): it has no keys"
ALONE = "it attends for one query at a time, which isn't followed"
IN_PAIRS = "its scores are sums of what was multiplied one by one, which isn't followed"
DRAWN = "its weights are drawn by gumbel_softmax"
NO_PRODUCT = "its weights come from no product of queries and keys"


@dataclass(frozen=True, eq=False)
class Scaled:
    """A tensor that was multiplied by a number: q/√d is q with β = 1/√d."""

    factor: float


@dataclass(frozen=True, eq=False)
class Total:
    """What the exponentials of scores sum up to along an axis, or the logarithm of that."""

    trail: Trail
    dim: int
    is_log: bool = False


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """All of one tensor times all of another, both made of what came in: its sums may be scores."""


@dataclass(frozen=True, eq=False)
class Logarithms:
    """Of the weights: scores less the logarithm of their total."""

    trail: Trail
    dim: int
    scores: Tensor


Known = Trail | Scaled | Total | Logarithms | OuterProduct


class Follower:
    """Knows the trails of the tensors that are alive."""

    def __init__(
        self,
        owner: Callable[[], tuple[str, nn.Module | None] | None],
        record: Callable[[Followed, Softmax], Tensor | None],
        streams: Streams,
    ):
        self.owner = owner
        self.record = record
        self.streams = streams
        self.taken: list[Softmax] = []
        self._known: dict[int, tuple[weakref.ref, Known, int | None]] = {}
        self._features: torch.Size | None = None  # of what a linear layer or a choice of the best put out last
        self._special: dict[str, Callable[[str, tuple, dict, Any], Tensor | None]] = {
            **dict.fromkeys(("matmul", "bmm", "mm", "mv", "einsum", "baddbmm"), self._multiply),
            **dict.fromkeys(("linear", "conv2d"), self._project),
            "setitem": self._write,
            "softmax": self._take_softmax,
            "_masked_softmax": self._take_masked_softmax,
            "log_softmax": self._take_logarithms,
            "cat": self._join,
            "softmin": self._take_softmin,
            "gumbel_softmax": self._take_sampled,
            "normalize": self._take_normalised,
        }

    def see(self, name: str, args: tuple, kwargs: dict, out: Any) -> Tensor | None:
        """One call and what came out; the tensor that is to take its place, if the model is steered."""
        special = self._special.get(name)
        if special is not None:
            return special(name, args, kwargs, out)
        known = self._known
        if known:
            for x in args:
                if id(x) in known:
                    self._continue(name, args, kwargs, out)
                    return None
                if type(x) in (list, tuple) and any(id(y) in known for y in x):
                    self._scatter(name, x, out)
                    return None
        if name in SCALING:
            self._note_scale(name, args, out)
        elif name == "topk":
            self._features = out[0].shape
        return None

    # What is known of a tensor.

    def trail(self, x: Any) -> Trail | None:
        known = self._find(x)
        return known if isinstance(known, Trail) else None

    def _find(self, x: Any, written: int = 0) -> Known | None:
        """What is known of a tensor, unless it was written to in ways that were not seen: more than `written` times."""
        entry = self._known.get(id(x))
        if entry is None:
            return None
        known, before = entry[1:]
        if before is None or version(x) in (before, before + written):
            return known
        del self._known[id(x)]
        if not isinstance(known, Trail):
            return None
        return self._lose(known, x, "it is written into through another view of it")

    def _remember(self, x: Tensor, known: Known | None) -> None:
        key, table = id(x), self._known
        if known is None:
            table.pop(key, None)
        else:
            table[key] = weakref.ref(x, lambda _: table.pop(key, None)), known, version(x)

    def _lose(self, trail: Trail, out: Tensor, reason: str) -> Trail | None:
        """What is left of a trail that can't be followed: scores remember why, a softmax keeps it in mind."""
        if trail.softmax is not None:
            trail.softmax.reason = trail.softmax.reason or reason
            return None
        return None if out.ndim < 3 else Trail(None, (), lost=reason)

    def _scatter(self, name: str, args: Iterable[Any], out: Any) -> None:
        """A function of several tensors, or one that gives several: none of them is followed."""
        trails = [trail for trail in map(self.trail, args) if trail is not None]
        for trail in trails:
            if trail.softmax is not None and not trail.softmax.reason:
                trail.softmax.reason = f"its weights go into {name}, which isn't followed"
        if name not in ("max", "min") and any(trail.softmax is None for trail in trails):
            for x in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(x, Tensor) and x.is_floating_point():
                    self._remember(x, Trail(None, (), lost=f"its scores go through {name}, which isn't followed"))

    def _note_scale(self, name: str, args: tuple, out: Any) -> None:
        if isinstance(out, Tensor) and out.ndim > 1 and out.is_floating_point():
            factor = read_factor(name, args)
            if factor is not None and factor > 0:
                self._remember(out, Scaled(factor))
            elif self._are_pairs(name, args, out):
                self._remember(out, OuterProduct())

    def _are_pairs(self, name: str, args: tuple, out: Tensor) -> bool:
        one, other = args if len(args) == 2 else (None, None)
        if name != "mul" or not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return False
        return out.numel() > max(one.numel(), other.numel()) and self.streams.knows(one) and self.streams.knows(other)

    def _scale_of(self, x: Tensor) -> float:
        known = self._find(x)
        return known.factor if isinstance(known, Scaled) else 1.0

    # Steps.

    def _continue(self, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        """A function that isn't a product, one of whose arguments is known."""
        if not isinstance(out, Tensor):
            if isinstance(out, (tuple, list)):
                self._scatter(name, args, out)
                self._features = out[0].shape if name == "topk" else self._features
            return
        if name in LIKENESSES:
            return
        x, known = self._choose(args, out)
        if x is None or known is None:
            return
        if isinstance(known, Scaled):
            self._remember(
                out, OuterProduct() if self._are_pairs(name, args, out) else _continue_scale(known, name, args)
            )
        elif isinstance(known, (Total, Logarithms)):
            self._remember(out, self._continue_total(known, name, args, out))
        elif isinstance(known, OuterProduct):
            self._remember(out, Trail(None, (), lost=IN_PAIRS) if name == "sum" and out.ndim > 1 else None)
        elif not self._divide(known, x, name, args, kwargs, out):
            self._remember(out, self._take_step(known, FollowedCall(name, x, args, kwargs, out)))

    def _choose(self, args: tuple, out: Tensor) -> tuple[Tensor | None, Known | None]:
        """The argument that is followed: of two products that are added up, the one with the larger keys."""
        followed = []
        for x in args:
            if id(x) in self._known and isinstance(x, Tensor):
                known = self._find(x, written=int(out is x))
                if known is not None:
                    followed.append((x, known))
        if len(followed) < 2:
            return followed[0] if followed else (None, None)

        def weight(known: Known) -> tuple[bool, int]:
            product = known.product if isinstance(known, Trail) else None
            return isinstance(known, Trail), min(product.left.numel(), product.right.numel()) if product else 0

        return max(followed, key=lambda pair: weight(pair[1]))

    def _take_step(self, trail: Trail, step: FollowedCall) -> Trail | None:
        name, out = step.name, step.out
        if name in REDUCTIONS or not out.is_floating_point():
            return None
        if trail.lost:
            return _continue_lost(trail, name) if out.ndim != 2 or name in LAYOUT else None
        if name == "exp2":
            trail, step = trail.do(Doing("times", math.log(2))), replace(step, name="exp")
        follow = STEPS.get(step.name)
        try:
            if follow is None:
                raise Lost(f"its {trail.what} go through {name}, which isn't followed")
            followed, dtype = follow(trail, step), out.dtype
            if len(followed.before) > len(trail.before) or dtype.itemsize < step.x.dtype.itemsize:
                return followed.rounded_to(dtype, len(trail.before))
            return followed
        except Lost as reason:
            if trail.softmax is not None and trail.softmax.reason and out.numel() > step.x.numel():
                trail.softmax.is_attention = True  # each weight meets a value of its own
            return self._lose(trail, out, str(reason))

    def _write(self, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        """x[index] = value: the same as filling in, if the index is a mask and the value a number."""
        x, index, value = args
        known = self._find(x, written=1)
        if not isinstance(known, Trail):
            self._remember(x, None)
            return
        if known.lost:
            self._remember(x, known)
            return
        try:
            if isinstance(index, Tensor) and index.dtype == torch.bool and isinstance(value, (int, float)):
                self._remember(x, fill_written(known, x, index, value))
            elif known.product is not None and known.softmax is None and not known.extended:
                self._remember(x, replace(known, rewritten=x))
            else:
                raise Lost("it is written into")
        except Lost as reason:
            self._remember(x, self._lose(known, x, str(reason)))

    def _join(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        """Sinks, joined to the scores along the keys."""
        parts = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        trails = [self.trail(x) for x in parts]
        trail = next((trail for trail in trails if trail is not None), None)
        if trail is None:
            return
        if trail.lost:
            self._remember(out, trail)
            return
        place = trails.index(trail)
        dim = (kwargs.get("dim", args[1] if len(args) > 1 else 0)) % out.ndim
        product = trail.product
        keys = product and leaves(trail.axes[dim]) in (leaves(product.columns), leaves(product.rows))
        where, own = None, ()
        if keys and trail.softmax is None and len(parts) == 2 and not trail.extended and trails[1 - place] is None:
            sinks = parts[1 - place]
            own = fresh(sinks.shape[dim])
            where = broadcast(trail.axes[:dim] + (own,) + trail.axes[dim + 1 :], sinks.shape)
        if where is None:
            several = "the scores of several products are joined"
            alone = f"its {trail.what} go through cat, which isn't followed"
            known = self._lose(trail, out, several if len([t for t in trails if t]) > 1 else alone)
            self._remember(out, known)
            return
        # What was done before the sinks came in was done to the scores alone; what is done afterwards to both.
        held = Sinks(parts[1 - place], where, own, first=place == 1)
        self._remember(out, replace(trail, sinks=held, extended=parts[1 - place].shape[dim]))

    # Products.

    def _multiply(self, name: str, args: tuple, kwargs: dict, out: Any) -> Tensor | None:
        if name == "einsum":
            operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        else:
            operands = args[-2:] if name != "baddbmm" else args[1:3]
        trails = [self.trail(x) for x in operands]
        side, weights = next(((i, trail) for i, trail in enumerate(trails) if trail and trail.softmax), (0, None))
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        if out.ndim == 1 and weights is None and not any(trails) and all(map(self.streams.knows, operands)):
            self._remember(out, Trail(None, (), lost=ALONE))
            return None
        try:
            if len(operands) != 2 or not all(isinstance(x, Tensor) and x.ndim > 1 for x in operands):
                raise Lost(f"its weights go into a product ({name}) that isn't one of two matrices")
            pair = operands[0], operands[1]
            equation = read_equation(name, args, pair)
            if any(trails) and self._mix_by_product(trails, pair, equation, out):
                return None
            if weights is not None:
                return self._end(weights, side, pair, equation, out)
            if any(trail is not None and trail.is_exponential and trail.product is not None for trail in trails):
                return self._name_undivided(trails, pair, equation, out)
            if isinstance(pair[1], nn.Parameter) and pair[1].ndim == 2:  # a linear map
                self._features = out.shape
                return None
            product = name_axes(pair, equation, out.dtype)
        except Lost as reason:
            if weights is not None and weights.softmax is not None:
                weights.softmax.reason, weights.softmax.is_attention = weights.softmax.reason or str(reason), True
            return None
        self._begin(
            name,
            args,
            kwargs,
            replace(product, factors=tuple(map(self._scale_of, pair)), is_sum=name == "baddbmm"),
            out,
        )
        return None

    def _begin(self, name: str, args: tuple, kwargs: dict, product: Product, out: Tensor) -> None:
        """A product that may be one of queries and keys."""
        trail = Trail(product, product.out_axes, dtype=out.dtype)
        if name == "baddbmm":
            alpha, beta = (float(kwargs.get(key, 1)) for key in ("alpha", "beta"))
            trail = trail.do(Doing("times", alpha)) if alpha != 1 else trail
            axes = broadcast(trail.axes, args[0].shape)
            if beta and axes is not None:
                trail = trail.do(Doing("plus", beta, args[0], axes))
            trail = trail.rounded_to(out.dtype, 0)
        self._remember(out, trail)

    def _project(self, name: str, args: tuple, kwargs: dict, out: Any) -> Tensor | None:
        """A linear map: talking heads, if it mixes those of scores or weights, by a linear layer or 1×1 convolution."""
        weight, bias = _given("weight", 1, None, args, kwargs), _given("bias", 2, None, args, kwargs)
        if name == "linear" and bias is None and self.streams.knows(weight):  # not by weights, but by what came in
            return self._multiply(name, (args[0], weight), kwargs, out)
        trail = self.trail(args[0]) if args else None
        if trail is None or not isinstance(out, Tensor):
            self._features = getattr(out, "shape", None)
            return None
        if trail.lost:
            self._remember(out, trail if out.shape == args[0].shape else None)
            return None
        x = args[0]
        axis = x.ndim - 1 if name == "linear" else x.ndim - 3
        square = out.shape == x.shape and (name == "linear" or weight.shape[2:] == (1, 1))
        matrix = weight.detach().reshape(weight.shape[:2]) if square else weight
        mixed = self._mix(trail, axis, matrix, None if bias is None else bias.detach()) if square else None
        reason = f"its {trail.what} go through {name}, which isn't followed"
        self._remember(out, mixed.held_in(out.dtype) if mixed is not None else self._lose(trail, out, reason))
        return None

    def _mix_by_product(
        self, trails: list[Trail | None], pair: tuple[Tensor, Tensor], equation: Equation, out: Tensor
    ) -> bool:
        """Talking heads as a product: scores or weights times a square matrix, over an axis that is neither q nor k."""
        for side in (0, 1):
            trail, matrix = trails[side], pair[1 - side]
            if trail is None or trail.product is None or matrix.ndim != 2 or out.shape != pair[side].shape:
                continue
            letters, (one, other), result = equation[side], equation[1 - side], equation[2]
            inner, outer = (one, other) if one in letters else (other, one)
            if inner not in letters or outer in letters or result != [outer if x == inner else x for x in letters]:
                continue
            matrix = matrix.detach().mT if inner == one else matrix.detach()
            mixed = self._mix(trail, letters.index(inner), matrix, None)
            if mixed is not None:
                self._remember(out, mixed.held_in(out.dtype))
                return True
        return False

    def _mix(self, trail: Trail, axis: int, matrix: Tensor, bias: Tensor | None) -> Trail | None:
        heads, product = leaves(trail.axes[axis]), trail.product
        if product is None or trail.extended or trail.dropout:  # what was dropped can't be told once it is mixed
            return None
        if not heads:
            weight, plus = matrix.item(), 0.0 if bias is None else bias.item()
            return trail.do(Doing("apply", name="one head", function=lambda x: x * weight + plus))
        if any(set(leaves(axis)) <= set(heads) for axis in (product.rows, product.columns) if axis):
            return None
        return trail.do(Doing("mix", tensor=matrix, axes=(tuple(heads),), bias=bias))

    # Softmax.

    def _take_softmax(self, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        if args and isinstance(out, Tensor) and (out.ndim > 1 or self.trail(args[0])):
            trail = self._find(args[0], written=int(out is args[0]))
            trail = trail if isinstance(trail, Trail) else None
            if trail is not None and trail.extended and trail.is_exponential:
                trail = Trail(None, (), lost="its scores and sinks go through exp together")
            self._note_softmax(trail, args[0], _dim(args, kwargs, out), out)

    def _take_masked_softmax(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        """PyTorch's own, of the CPU's fast path: with a mask of what is left out."""
        scores, mask = args[:2]
        trail = self.trail(scores)
        if trail is not None and not trail.lost:
            if kwargs.get("mask_type", args[3] if len(args) > 3 else None) == 1 and mask.ndim == 2:
                mask = mask[:, None, None]
            trail = fill_masked(trail, scores, mask)
        self._note_softmax(trail, scores, _dim(args[:1] + args[2:3], kwargs, out), out)

    def _take_softmin(self, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        trail = self.trail(args[0]) if args else None
        if trail is not None:
            trail = trail if trail.lost else trail.do(Doing("times", -1.0))
            self._note_softmax(trail, args[0], _dim(args, kwargs, out), out)

    def _take_sampled(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        if self.trail(args[0]) is not None:
            dim = _given("dim", 4, -1, args, kwargs) % out.ndim
            self._note_softmax(Trail(None, (), lost=DRAWN), args[0], dim, out)

    def _take_normalised(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        """Exponentials over the sum of them."""
        trail, p, dim = self.trail(args[0]), _given("p", 1, 2.0, args, kwargs), _given("dim", 2, 1, args, kwargs)
        if trail is not None and p == 1 and trail.softmax is None and trail.before and trail.before[-1].name == "exp":
            self._note_quotient(trail, args[0], dim % out.ndim, out)
        elif self._find(args[0]) is not None:
            self._continue(name, args, kwargs, out)

    def _take_logarithms(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        trail = self.trail(args[0])
        if trail is not None and trail.softmax is None:
            self._remember(out, Logarithms(trail, _dim(args, kwargs, out), args[0]))

    def _divide(self, trail: Trail, x: Tensor, name: str, args: tuple, kwargs: dict, out: Tensor) -> bool:
        """A softmax written as exponentials over their total, or as scores less its logarithm: one of these steps."""
        if trail.softmax is not None:
            return False
        total = self._find(args[1]) if len(args) > 1 and args[0] is x else None
        total = total if isinstance(total, Total) and total.trail is trail else None
        exponentials = bool(trail.before) and trail.before[-1].name == "exp"
        if name == "logsumexp" or (name == "sum" and exponentials):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
            if isinstance(dim, int) and out.ndim == x.ndim:
                self._remember(out, Total(trail, dim % x.ndim, is_log=name == "logsumexp"))
            return True
        if name in DIVISIONS and exponentials and total is not None and not total.is_log:
            self._note_quotient(trail, x, total.dim, out)
            return True
        if name in ("sub", "subtract") and total is not None and total.is_log:
            self._remember(out, Logarithms(trail, total.dim, x))
            return True
        return False

    def _note_quotient(self, trail: Trail, x: Tensor, dim: int, out: Tensor) -> None:
        """Exponentials over their total: a softmax of what they were made of."""
        left = Trail(None, (), lost="a part of its scores is written into")
        kept = replace(trail, before=trail.before[:-1])
        self._note_softmax(kept if trail.rewritten is None else left, x, dim, out)

    def _continue_total(self, known: Total | Logarithms, name: str, args: tuple, out: Tensor) -> Known | None:
        if name in CASTS:
            return known
        if isinstance(known, Logarithms):
            if name == "exp":
                self._note_softmax(known.trail, known.scores, known.dim, out)
                return self.trail(out)
            return self._lose(
                known.trail, out, f"the logarithms of its weights go through {name}, which isn't followed"
            )
        tiny = name == "add" and any(
            isinstance(x, float) and 0 <= x < 1e-4 for x in args
        )  # so as not to divide by zero
        return known if name in ("clamp", "clamp_min") or tiny else None

    def _note_softmax(self, trail: Trail | None, scores: Tensor, dim: int, out: Tensor) -> None:
        """The trail goes on with weights; without one, it is kept in mind that here a softmax was taken."""
        owner = self.owner()
        if owner is None:
            return
        softmax = Softmax(owner[0], tuple(out.shape), (), "" if trail is None else trail.lost)
        kind = type(owner[1]).__name__.lower()
        # A choice may be made so, too: it is known to be attention when its weights meet values.
        sure = out.ndim > 1 and softmax.reason not in (IN_PAIRS, DRAWN)
        if trail is None or trail.product is None:
            trail = Trail(None, tuple(fresh(size) for size in out.shape))
            if out.ndim > 2 and ("attention" in kind or "attn" in kind) and not softmax.reason:
                softmax.reason = (
                    SAMPLED if "deformable" in kind else "its weights come from no product that was followed"
                )
            softmax.is_attention = sure and bool(softmax.reason)
            softmax.of_features = dim == out.ndim - 1 and out.shape == self._features
        else:
            softmax.is_attention = sure
            if trail.rewritten is not None:
                trail = replace(trail, rewritten=scores.detach())
        softmax.over = trail.axes[dim]
        self.taken.append(softmax)
        trail = replace(trail, softmax=softmax, softmax_axes=trail.axes).held_in(out.dtype)
        self._remember(out, trail)

    # The end.

    def _end(
        self, trail: Trail, side: int, pair: tuple[Tensor, Tensor], equation: Equation, out: Tensor
    ) -> Tensor | None:
        """The product with the values: a record, or a reason."""
        softmax = trail.softmax
        assert softmax is not None
        end = name_axes(pair, equation, out.dtype, {side: trail.axes})
        summed = leaves(end.inner)
        if summed != leaves(softmax.over):
            if trail.product is not None and summed:
                raise Lost("the axis that is summed over is not the one that its softmax goes over")
            return None
        if trail.product is None:
            rows = end.rows if side == 0 else end.columns
            if softmax.of_features and not softmax.is_attention and not rows:
                return None  # a mixture of experts: each token has values of its own
            raise Lost(softmax.reason or NO_PRODUCT)
        softmax.is_attention = True
        if trail.extended:
            raise Lost("its sinks are multiplied by values of their own")
        owner = self.owner()
        if owner is None:
            return None
        followed = gather(trail, end, side, out, owner[1], self.streams)
        softmax.reason = ""
        return self.record(followed, softmax)

    def _name_undivided(
        self, trails: list[Trail | None], pair: tuple[Tensor, Tensor], equation: Equation, out: Tensor
    ) -> None:
        """Exponentials of scores that meet the values before they are divided by their total."""
        side = next(i for i, trail in enumerate(trails) if trail is not None and trail.is_exponential)
        trail, owner = trails[side], self.owner()
        assert trail is not None
        assert trail.product is not None
        end = name_axes(pair, equation, out.dtype, {side: trail.axes})
        summed = leaves(end.inner)
        if owner is not None and summed and summed in (leaves(trail.product.rows), leaves(trail.product.columns)):
            reason = "its exponentials are multiplied by the values before they are divided by their sum"
            self.taken.append(Softmax(owner[0], tuple(pair[side].shape), (), reason, is_attention=True))


def _given(name: str, place: int, default: Any, args: tuple, kwargs: dict) -> Any:
    """An argument, by its name or at its place."""
    return kwargs.get(name, args[place] if len(args) > place else default)


def _dim(args: tuple, kwargs: dict, out: Tensor) -> int:
    dim = _given("dim", 1, None, args, kwargs)
    return (out.ndim - 1 if dim is None else dim) % out.ndim


def _continue_scale(known: Scaled, name: str, args: tuple) -> Scaled | None:
    if name in SCALING:
        factor = read_factor(name, args)
        return Scaled(known.factor * factor) if factor is not None and factor > 0 else None
    return known if name in LAYOUT or name in CASTS else None


def _continue_lost(trail: Trail, name: str) -> Trail:
    """Scores that can't be followed any more: all that is left to see is whether a softmax of them is taken."""
    if name == "exp":
        return replace(trail, before=(Doing("apply", name="exp"),))
    return trail if name in CASTS or name in LAYOUT or not trail.before else replace(trail, before=())
