"""Follow a softmax that a model writes out: from the product of queries and keys to the product with the values.

Each tensor that came out of a product of two others is known by a `Trail`: which product, which of its axes is which
(`axes.py`), and what has been done to the scores since. At a softmax the trail goes on with weights, and at their product
with the values it ends: q, k, v, β, a mask or a rule (`ops/rules.py`) and the output are known, and make a record like
any other. Where a trail is lost, the softmax is kept in mind with the reason. Nothing is computed but a few rows, which
must come out as the model's own: what can't be reproduced isn't recorded.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.ops import rules
from pellucid.watching import axes as layout
from pellucid.watching.axes import Atom, Axes, Axis, arrange, broadcast, fresh, leaves, size_of

Equation = tuple[list[str], list[str], list[str]]  # the letters of the left, of the right and of what comes out
FAR_BELOW = -1e30  # what is filled in or added for a score that isn't to count; float32 scores vanish beside it

SAMPLED = "it samples values at places that it computes (deformable attention): it has no keys"


@dataclass(frozen=True, eq=False)
class Product:
    """left (lead, rows, inner) times right (lead, columns, inner), whatever the order of their axes."""

    left: Tensor
    left_axes: Axes
    right: Tensor
    right_axes: Axes
    out_axes: Axes
    rows: Axis
    columns: Axis
    inner: Axis
    dtype: torch.dtype
    factors: tuple[float, float] = (1.0, 1.0)
    """By which numbers left and right had been multiplied before."""


@dataclass(frozen=True, eq=False)
class Doing:
    """One thing that was done to scores or weights, with the axes of the tensor it was done with."""

    kind: str  # times, plus, fill, apply, mix
    number: float = 1.0
    tensor: Tensor | None = None
    axes: Axes = ()
    function: Callable[[Tensor], Tensor] | None = None
    name: str = ""


@dataclass(eq=False)
class Softmax:
    """A softmax that was taken: over which axis, by whom, and why it isn't recorded, unless it is."""

    module: str
    shape: tuple[int, ...]
    over: Axis
    reason: str
    is_attention: bool = False
    recorded: bool = False


@dataclass(frozen=True, eq=False)
class Trail:
    """What is known of a tensor: from which product it came and by which steps, or why that isn't known any more."""

    product: Product | None
    axes: Axes
    before: tuple[Doing, ...] = ()
    softmax: Softmax | None = None
    after: tuple[Doing, ...] = ()
    sinks: tuple[Tensor, Axes, Axis, int] | None = None  # scores of no key, their axes, their own, where the keys lie
    softmax_axes: Axes = ()
    extended: int = 0  # how many sinks the key axis still holds
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64  # the coarsest it was held in
    rewritten: Tensor | None = None  # the scores themselves, where a part of them was written into
    lost: str = ""

    def do(self, doing: Doing) -> "Trail":
        if self.softmax is None:
            return replace(self, before=(*self.before, doing))
        return replace(self, after=(*self.after, doing))


@dataclass(frozen=True, eq=False)
class Scaled:
    """A tensor that was multiplied by a number: q/√d is q with β = 1/√d."""

    factor: float


@dataclass(frozen=True, eq=False)
class Total:
    """What the exponentials of scores sum up to, along an axis: divided by it they are a softmax."""

    trail: Trail
    dim: int


@dataclass(frozen=True, eq=False)
class Followed:
    """What a trail came to: everything that a record needs, (b h q d) and so on, and how gradients are brought there."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | rules.Rule | None
    beta: float
    dropout: float
    output: Tensor
    dtype: torch.dtype
    live: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]]
    restore: Callable[[Tensor], Tensor]
    """An output (b h q e) in the order that the model has it in."""


class Lost(Exception):
    """A trail that can't be followed, and why."""


class Follower:
    """Knows the trails of the tensors that are alive."""

    def __init__(
        self,
        owner: Callable[[], tuple[str, nn.Module | None] | None],
        record: Callable[[Followed, Softmax], Tensor | None],
    ):
        self.owner = owner
        self.record = record
        self.taken: list[Softmax] = []
        self._known: dict[int, tuple[weakref.ref, Trail | Scaled | Total]] = {}

    def trail(self, x: Any) -> Trail | None:
        entry = self._known.get(id(x))
        return entry[1] if entry is not None and isinstance(entry[1], Trail) else None

    def _scale_of(self, x: Tensor) -> float:
        known = self._known.get(id(x), (None, None))[1]
        return known.factor if isinstance(known, Scaled) else 1.0

    def knows(self, args: Sequence[Any]) -> bool:
        """Whether one of the arguments has a trail."""
        known = self._known
        if not known:
            return False
        for x in args:
            if id(x) in known:
                return True
            if type(x) in (list, tuple) and any(id(y) in known for y in x):
                return True
        return False

    def see(self, name: str, args: tuple, kwargs: dict, out: Any) -> Tensor | None:
        """One call and what came out; the tensor that is to take its place, if the model is steered."""
        if name in PRODUCTS:
            return self._multiply(name, args, kwargs, out)
        if not isinstance(out, Tensor):
            if name == "setitem":
                self._write(args)
            elif type(out) in (tuple, list):
                self._forget(name, args)
            return None
        if name == "softmax":
            self._take_softmax(args, kwargs, out)
            return None
        if name == "_masked_softmax":
            self._take_masked_softmax(args, kwargs, out)
            return None
        if self.knows(args):
            known = self._continue(name, args, kwargs, out)
            if known is not None:
                self._remember(out, known)
            elif id(out) in self._known and out is args[0]:  # written over
                del self._known[id(out)]
        elif name in SCALING and out.ndim > 1 and out.is_floating_point():
            factor = _factor(name, args)
            if factor is not None and factor > 0:
                self._remember(out, Scaled(factor))
        return None

    def _remember(self, x: Tensor, known: Trail | Scaled | Total) -> None:
        key, table = id(x), self._known
        table[key] = weakref.ref(x, lambda _: table.pop(key, None)), known

    def _forget(self, name: str, args: tuple) -> None:
        for x in args:
            trail = self.trail(x)
            if trail is not None and trail.softmax is not None and not trail.softmax.reason:
                trail.softmax.reason = f"its weights go into {name}, which isn't followed"

    def _write(self, args: tuple) -> None:
        """x[index] = value: the same as filling in, if the index is a mask and the value a number."""
        trail = self.trail(args[0])
        if trail is None:
            return
        x, index, value = args
        if isinstance(index, Tensor) and index.dtype == torch.bool and isinstance(value, (int, float)):
            self._remember(x, _fill(trail, "masked_fill", x, (x, index, value), {}, x))
        elif trail.product is not None and trail.softmax is None:
            self._remember(x, replace(trail, rewritten=x))
        else:
            self._remember(x, self._lose(trail, "setitem", x, "it is written into") or Trail(None, ()))

    # Products.

    def _multiply(self, name: str, args: tuple, kwargs: dict, out: Any) -> Tensor | None:
        bias, (left, right), factors = None, args[-2:] if len(args) > 1 else (None, None), (1.0, 1.0)
        if name in ("linear", "conv2d"):
            if self.knows(args[:1]):
                trail = self._mix_heads(name, args, kwargs, out)
                if trail is not None:
                    self._remember(out, trail)
            return None
        if name == "baddbmm":
            bias, left, right = args[:3]
            factors = float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(out, Tensor)):
            return None
        if not out.is_floating_point() or min(left.ndim, right.ndim) < 2:
            return None
        trails = [trail if trail and trail.softmax else None for trail in (self.trail(left), self.trail(right))]
        side = 0 if trails[0] is not None else 1 if trails[1] is not None else None
        try:
            equation = _equation(name, args, left, right)
            mixed = self._mix_by_product((left, right), equation, out)
            if mixed is not None:
                self._remember(out, mixed)
                return None
            if side is not None:
                return self._end(trails[side], side, (left, right), equation, out)
            if isinstance(right, nn.Parameter) and right.ndim == 2:  # a linear map
                return None
            product = _multiply_axes(left, right, equation, out.dtype)
            product = replace(product, factors=(self._scale_of(left), self._scale_of(right)))
        except Lost as reason:
            if side is not None:
                trails[side].softmax.reason = str(reason)
                trails[side].softmax.is_attention = True
            return None
        trail = Trail(product, product.out_axes, dtype=out.dtype)
        if bias is not None:
            trail = trail.do(Doing("times", factors[1])) if factors[1] != 1 else trail
            where = broadcast(trail.axes, bias.shape)
            if factors[0] and where is not None:
                trail = trail.do(Doing("plus", factors[0], bias, where))
        self._remember(out, trail)
        return None

    def _mix_heads(self, name: str, args: tuple, kwargs: dict, out: Any) -> Trail | None:
        """Talking heads: a linear map of the heads, as a linear layer over the last axis or a 1×1 convolution."""
        trail, (x, weight) = self.trail(args[0]), args[:2]
        if trail is None or not isinstance(out, Tensor) or trail.lost:
            return None
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        axis = x.ndim - 1 if name == "linear" else x.ndim - 3
        square = out.shape == x.shape and (name == "linear" or weight.shape[2:] == (1, 1))
        heads = trail.axes[axis]
        product = trail.product
        used = leaves(product.rows) + leaves(product.columns) if product else []
        if not square or not heads or any(atom in used for atom in leaves(heads)):
            return self._lose(trail, name, out)
        bias = None if bias is None else bias.detach()
        doing = Doing("mix", tensor=weight.detach().reshape(weight.shape[:2]), axes=(heads,), function=lambda: bias)
        return trail.do(doing)

    def _mix_by_product(self, pair: tuple[Tensor, Tensor], equation: Equation, out: Tensor) -> Trail | None:
        """Talking heads as a product: scores or weights times a square matrix, over an axis that is neither q nor k."""
        for side in (0, 1):
            trail, matrix = self.trail(pair[side]), pair[1 - side]
            if trail is None or trail.product is None or matrix.ndim != 2 or out.shape != pair[side].shape:
                continue
            letters, (one, other), result = equation[side], equation[1 - side], equation[2]
            inner, outer = (one, other) if one in letters else (other, one)
            if inner not in letters or outer in letters or result != [outer if x == inner else x for x in letters]:
                continue
            heads = trail.axes[letters.index(inner)]
            if not set(leaves(heads)) & set(leaves(trail.product.rows) + leaves(trail.product.columns)):
                matrix = matrix.detach().mT if inner == one else matrix.detach()
                return trail.do(Doing("mix", tensor=matrix, axes=(heads,), function=lambda: None))
        return None

    # Steps.

    def _continue(self, name: str, args: tuple, kwargs: dict, out: Tensor) -> Trail | Scaled | Total | None:
        """What is known of `out`, made by a function that isn't a product from arguments of which one is known."""
        if name == "cat":
            return self._join(args, kwargs, out)
        first = next((x for x in args if id(x) in self._known), None)
        if first is None:
            return None
        known = self._known[id(first)][1]
        if isinstance(known, Total):
            return known if name in CASTS or name == "clamp" else None
        if isinstance(known, Trail) and _is_exponential(known):
            if name == "sum" and out.ndim == first.ndim:
                dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
                return Total(known, (dim if isinstance(dim, int) else dim[0]) % out.ndim)
            total = self._known.get(id(args[1]), (None, None))[1] if name in DIVISIONS and len(args) > 1 else None
            if isinstance(total, Total) and total.trail is known:
                self._take_softmax((first, total.dim), {}, out, replace(known, before=known.before[:-1]))
                return self.trail(out)
        if isinstance(known, Scaled):
            if name in SCALING and (factor := _factor(name, args)) is not None and factor > 0:
                return Scaled(known.factor * factor)
            return known if name in LAYOUT or name in CASTS else None
        if known.lost:
            return known if out.ndim > 2 and name not in REDUCTIONS else None
        if name in REDUCTIONS or out.dtype == torch.bool or not out.is_floating_point():
            return None
        step = STEPS.get(name)
        if step is None:
            return self._lose(known, name, out)
        try:
            return step(known, name, first, args, kwargs, out)
        except Lost as reason:
            return self._lose(known, name, out, str(reason))

    def _lose(self, trail: Trail, name: str, out: Tensor, reason: str = "") -> Trail | None:
        softmax = trail.softmax
        if softmax is not None:
            softmax.reason = softmax.reason or reason or f"its weights go through {name}, which isn't followed"
            return None
        if out.ndim < 3:
            return None
        why = reason or f"its scores go through {name}, which isn't followed"
        return Trail(None, (), lost=why)

    def _join(self, args: tuple, kwargs: dict, out: Tensor) -> Trail | None:
        """Sinks, joined to the scores along the keys."""
        parts = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        trails = [self.trail(x) for x in parts]
        known = [trail for trail in trails if trail is not None]
        if not known:
            return None
        trail = known[0]
        if trail.lost:
            return trail
        if len(known) > 1:
            return self._lose(trail, "cat", out, "the scores of several products are joined")
        dim = (kwargs.get("dim", args[1] if len(args) > 1 else 0)) % out.ndim
        place = trails.index(trail)
        product = trail.product
        keys = product and leaves(trail.axes[dim]) in (leaves(product.columns), leaves(product.rows))
        if trail.softmax is not None or len(parts) != 2 or not keys or trail.extended:
            return self._lose(trail, "cat", out)
        sinks = parts[1 - place]
        own = fresh(sinks.shape[dim])
        rest = trail.axes[:dim] + (own,) + trail.axes[dim + 1 :]
        where = broadcast(rest, sinks.shape)
        if where is None:
            return self._lose(trail, "cat", out)
        # What was done before the sinks came in was done to the scores alone; what is done afterwards to both.
        return replace(trail, sinks=(sinks, where, own, place), extended=sinks.shape[dim])

    # The softmax, and the end.

    def _take_softmax(self, args: tuple, kwargs: dict, out: Tensor, trail: Trail | None = None) -> None:
        if not args or out.ndim < 2:
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dim = (out.ndim - 1 if dim is None else dim) % out.ndim
        trail = trail or self.trail(args[0])
        owner = self.owner()
        if owner is None:
            return
        reason = "" if trail is None else trail.lost
        softmax = Softmax(owner[0], tuple(out.shape), (), reason)
        if trail is None or trail.lost or trail.product is None:
            axes = tuple(fresh(size) for size in out.shape)
            trail = Trail(None, axes, lost=softmax.reason)
        else:
            softmax.is_attention = True
            if trail.rewritten is not None:
                trail = replace(trail, rewritten=args[0].detach())
        softmax.over = trail.axes[dim]
        kind = type(owner[1]).__name__.lower()
        if trail.product is None and out.ndim > 2 and ("attention" in kind or "attn" in kind) and not reason:
            softmax.reason = SAMPLED if "deformable" in kind else "its weights come from no product that was followed"
        softmax.is_attention = softmax.is_attention or bool(softmax.reason)
        self.taken.append(softmax)
        self._remember(
            out, replace(trail, softmax=softmax, softmax_axes=trail.axes, dtype=_coarser(trail.dtype, out.dtype))
        )

    def _take_masked_softmax(self, args: tuple, kwargs: dict, out: Tensor) -> None:
        """PyTorch's own, of the CPU's fast path: with a mask of what is left out."""
        trail, mask = self.trail(args[0]), args[1]
        if trail is not None and not trail.lost:
            if kwargs.get("mask_type", args[3] if len(args) > 3 else None) == 1 and mask.ndim == 2:
                mask = mask[:, None, None]
            trail = _fill(trail, "masked_fill", args[0], (args[0], mask, -math.inf), {}, args[0])
        self._take_softmax((args[0], *args[2:3]), kwargs, out, trail)

    def _end(self, trail: Trail, side: int, pair: tuple, equation: tuple, out: Tensor) -> Tensor | None:
        """The product with the values: a record, or a reason."""
        softmax, product = trail.softmax, trail.product
        assert softmax is not None
        end = _multiply_axes(*pair, equation, out.dtype, {side: trail.axes})
        summed = leaves(end.inner)
        if summed != leaves(softmax.over):
            if product is not None and summed:
                raise Lost("the axis that is summed over is not the one that its softmax goes over")
            return None
        softmax.is_attention = True
        if product is None:
            raise Lost(softmax.reason or "its weights come from no product of queries and keys")
        if trail.extended:
            raise Lost("its sinks are multiplied by values of their own")
        if self.owner() is None:
            return None
        followed = _collect(trail, end, side, pair, out, self.owner())
        softmax.reason = ""
        return self.record(followed, softmax)


def _is_exponential(trail: Trail) -> bool:
    return trail.softmax is None and bool(trail.before) and trail.before[-1].name == "exp"


def _coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return max(one, other, key=lambda dtype: torch.finfo(dtype).eps)


def _factor(name: str, args: tuple) -> float | None:
    """The number by which a call multiplies its tensor."""
    if len(args) < 2:
        return None
    numbers = [x for x in args[:2] if isinstance(x, (int, float)) and not isinstance(x, bool)]
    numbers += [x.item() for x in args[:2] if isinstance(x, Tensor) and x.ndim == 0 and x.device.type == "cpu"]
    if len(numbers) != 1:
        return None
    if name in DIVISIONS:
        divides = args[1] is numbers[0] or not isinstance(args[0], (int, float))
        return 1.0 / numbers[0] if divides and numbers[0] and name != "reciprocal" else None
    return float(numbers[0])


def _equation(name: str, args: tuple, left: Tensor, right: Tensor) -> Equation:
    """A product as Einstein wrote it: the letters of the left, of the right and of what comes out."""
    if name == "einsum":
        text = args[0].replace(" ", "")
        inputs, arrow, result = text.partition("->")
        sides = inputs.split(",")
        if len(sides) != 2 or not arrow:
            raise Lost("an einsum of other than two tensors isn't followed")
        spare = [f"…{i}" for i in range(8)]

        def letters(term: str, rank: int | None) -> list[str]:
            head, dots, tail = term.partition("...")
            if not dots:
                return list(term)
            n = len(spare) if rank is None else rank - len(head) - len(tail)
            return [*head, *spare[len(spare) - n :], *tail]

        a, b = letters(sides[0], left.ndim), letters(sides[1], right.ndim)
        wide = max((term.count("…") for term in ("".join(a), "".join(b))), default=0)
        head, dots, tail = result.partition("...")
        return a, b, [*head, *spare[len(spare) - wide :], *tail] if dots else list(result)
    lead = [f"…{i}" for i in range(8)]
    a = [*lead[8 - (left.ndim - 2) :], "q", "d"]
    b = [*lead[8 - (right.ndim - 2) :], "d", "k"]
    return a, b, [*lead[8 - (max(left.ndim, right.ndim) - 2) :], "q", "k"]


def _multiply_axes(
    left: Tensor,
    right: Tensor,
    equation: Equation,
    dtype: torch.dtype,
    known: dict[int, Axes] | None = None,
) -> Product:
    """Name the axes of both sides and of the product; those of one side may be known already."""
    sides, result = equation[:2], equation[2]
    tensors, axes = (left, right), {}
    for side, given in (known or {}).items():
        axes |= {(side, letter): axis for letter, axis in zip(sides[side], given, strict=True)}
    for side in (0, 1):
        if len(set(sides[side])) != len(sides[side]):
            raise Lost("an einsum that repeats a letter isn't followed")
        for letter, size in zip(sides[side], tensors[side].shape, strict=True):
            if (side, letter) not in axes:
                other = axes.get((1 - side, letter))
                axes[side, letter] = other if other is not None and size_of(other) == size else fresh(size)
    named = [tuple(axes[side, letter] for letter in sides[side]) for side in (0, 1)]

    def only(side: int) -> Axis:
        return tuple(a for l in sides[side] if l not in sides[1 - side] and l in result for a in axes[side, l])

    out = []
    for letter in result:
        options = [axes[side, letter] for side in (0, 1) if letter in sides[side]]
        out.append(max(options, key=size_of))
    inner = tuple(a for l in sides[0] if l in sides[1] and l not in result for a in axes[0, l])
    return Product(left, named[0], right, named[1], tuple(out), only(0), only(1), inner, dtype)


HEADS = ("num_heads", "heads", "num_attention_heads", "n_heads", "n_head", "nhead", "nb_heads")


def _part_heads(trail: Trail, lead: list[Axis], owner: tuple[str, nn.Module | None] | None) -> tuple[Axis, Axis]:
    """Which of the axes that queries and keys share are heads: the last one, or what the module says."""
    lead = [axis for axis in lead if axis]
    module = owner[1] if owner is not None else None
    sizes = (getattr(module, name, None) for name in HEADS)
    heads = next((n for n in sizes if isinstance(n, int) and n > 1), 0)
    if len(lead) == 1:
        (axis,) = lead
        parts = leaves(axis)
        if len(parts) > 1:
            return tuple(parts[:-1]), (parts[-1],)
        if heads and size_of(axis) % heads == 0 and layout.reshape((axis,), (size_of(axis) // heads, heads)):
            parts = leaves(axis)
            return (tuple(parts[:-1]), (parts[-1],)) if len(parts) > 1 else ((), tuple(parts))
        return axis, ()
    if not lead:
        return (), ()
    if heads and len(lead) > 2 and size_of(lead[-2]) * size_of(lead[-1]) == heads:
        return tuple(a for axis in lead[:-2] for a in axis), lead[-2] + lead[-1]
    return tuple(a for axis in lead[:-1] for a in axis), lead[-1]


def _collect(trail: Trail, end: Product, side: int, pair: tuple[Tensor, Tensor], out: Tensor, owner: Any) -> Followed:
    """Bring everything into the order (b h q k)."""
    product, softmax = trail.product, trail.softmax
    assert product is not None and softmax is not None
    over = leaves(softmax.over)
    q, q_axes, k, k_axes, rows = product.left, product.left_axes, product.right, product.right_axes, product.rows
    factors = product.factors
    if over == leaves(product.rows):  # scores with the keys as rows
        q, q_axes, k, k_axes, rows, factors = k, k_axes, q, q_axes, product.columns, factors[::-1]
    elif over != leaves(product.columns):
        raise Lost("its softmax goes over more or less than the keys")
    values, value_axes = (end.right, end.right_axes) if side == 0 else (end.left, end.left_axes)
    width = end.columns if side == 0 else end.rows
    used = set(leaves(rows)) | set(over) | set(leaves(product.inner)) | set(leaves(width))
    lead = [tuple(a for a in leaves(axis) if a not in used) for axis in (*trail.axes, *value_axes)]
    lead = [axis for i, axis in enumerate(lead) if axis and not any(set(axis) & set(other) for other in lead[:i])]
    batch, heads = _part_heads(trail, lead, owner)

    def ordered(inner: Sequence[Sequence[Atom]], axes: Axes, x: Tensor) -> Tensor:
        try:
            return arrange(x, axes, [batch, heads, *inner])
        except ValueError:
            raise Lost("its axes are mixed in a way that isn't followed") from None

    to_q = partial(ordered, [rows, product.inner], q_axes)
    to_k = partial(ordered, [over, product.inner], k_axes)
    to_v = partial(ordered, [over, width], value_axes)
    to_out = partial(ordered, [rows, width], end.out_axes)
    b, h = size_of(leaves(batch)), size_of(leaves(heads))

    def whole(x: Tensor) -> Tensor:
        return x.expand(b, h, -1, -1)

    # Under autocast a product rounds what it multiplies.
    q_held, k_held = (whole(x).to(product.dtype) for x in (to_q(q), to_k(k)))
    v_held = whole(to_v(values)).to(out.dtype)
    if trail.rewritten is not None:  # what was written in is what the product alone doesn't give
        beta = math.prod(doing.number for doing in trail.before if doing.kind == "times" and doing.tensor is None)
        kept = ordered([leaves(rows), over], trail.softmax_axes, trail.rewritten)
        mask = kept - beta * (q_held.to(kept.dtype) @ k_held.to(kept.dtype).mT)
        if trail.after or trail.sinks:
            raise Lost("a part of its scores is written into")
    else:
        beta, mask = _state_rule(trail, [batch, heads, leaves(rows), over], ordered)

    def restore(x: Tensor) -> Tensor:
        groups = [leaves(axis) for axis in end.out_axes]
        flat = tuple(tuple(leaves(axis)) for axis in (batch, heads, rows, width))
        return arrange(x, flat, groups).to(out.dtype)

    beta *= math.prod(factors)
    q_held, k_held = (x if f == 1 else x / f for x, f in zip((q_held, k_held), factors, strict=True))
    to_q, to_k = ((lambda g, to=to, f=f: to(g) * f) for to, f in zip((to_q, to_k), factors, strict=True))
    live = {"q": (q, to_q), "k": (k, to_k), "v": (values, to_v), "output": (out, to_out)}
    return Followed(q_held, k_held, v_held, mask, beta, trail.dropout, whole(to_out(out)), trail.dtype, live, restore)


def _state_rule(trail: Trail, groups: list, ordered: Callable[..., Tensor]) -> tuple[float, Tensor | rules.Rule | None]:
    """β and a mask, where that says it all; else β and a rule."""

    def placed(doing: Doing) -> Tensor:
        assert doing.tensor is not None
        return ordered(groups[2:], doing.axes, doing.tensor.detach())

    beta, bias, barred, steps = 1.0, None, None, []
    for doing in trail.before:
        tensor = None if doing.tensor is None or doing.kind == "mix" else placed(doing)
        alike = tensor is None or tensor.shape[-1] == 1
        if doing.kind == "plus" and alike and not _felt_later(trail, doing):
            continue  # the same for all keys: no softmax sees it
        if not steps and doing.kind == "times" and tensor is None:
            beta *= doing.number
            bias = bias if bias is None else bias * doing.number
        elif not steps and doing.kind == "plus" and tensor is not None:
            tensor = tensor * doing.number if doing.number != 1 else tensor
            bias = tensor if bias is None else bias + tensor
        elif not steps and doing.kind == "fill" and tensor is not None and _bars(tensor, doing.number):
            barred = tensor if barred is None else barred | tensor
        else:
            steps += _steps_of(bias, barred)
            bias = barred = None
            steps.append(_step(doing, tensor))
    after = tuple(
        _step(doing, None if doing.kind == "mix" or doing.tensor is None else placed(doing)) for doing in trail.after
    )
    sinks = None
    if trail.sinks is not None:
        tensor, where, own, _ = trail.sinks
        sinks = ordered([groups[2], own], where, tensor.detach())
    if not steps and not after and sinks is None:
        if barred is None:
            return beta, bias
        return beta, ~barred if bias is None else bias.masked_fill(barred, -math.inf)
    return beta, rules.Rule((*steps, *_steps_of(bias, barred)), after, sinks)


def _felt_later(trail: Trail, doing: Doing) -> bool:
    """Whether a bias that is the same for all keys makes a difference: if what follows isn't linear."""
    later = trail.before[trail.before.index(doing) + 1 :]
    return any(other.kind in ("apply", "mix", "fill") for other in later) or trail.sinks is not None


def _bars(mask: Tensor, value: float) -> bool:
    """Whether filling in this value is the same as not allowing: unless a row is filled wholly with a finite one."""
    if value <= FAR_BELOW:
        return value == -math.inf or not bool(mask.all(-1).any())
    return value <= -1e3 and not bool(mask.all(-1).any())


def _steps_of(bias: Tensor | None, barred: Tensor | None) -> list[rules.Step]:
    steps: list[rules.Step] = [] if bias is None else [rules.Plus(bias)]
    return steps if barred is None else [*steps, rules.Fill(barred, -math.inf)]


def _step(doing: Doing, tensor: Tensor | None) -> rules.Step:
    match doing.kind:
        case "times" if tensor is None:
            number = doing.number
            return rules.Apply(f"·{number:.4g}", lambda x: x * number)
        case "times":
            return rules.Times(tensor)
        case "plus" if tensor is None:
            number = doing.number
            return rules.Apply(f"+{number:.4g}", lambda x: x + number)
        case "plus":
            return rules.Plus(tensor if doing.number == 1 else tensor * doing.number)
        case "fill":
            return rules.Fill(tensor, doing.number)
        case "mix":
            return rules.MixHeads(doing.tensor, doing.function())
    assert doing.function is not None
    return rules.Apply(doing.name, doing.function)


# What may stand between the two products, by the name of the function, with or without the underscore of in place.


def _keep(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    if out.shape != x.shape:
        raise Lost(f"{name} changes the shape of its scores")
    return replace(trail, dtype=_coarser(trail.dtype, out.dtype))


def _reshape(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    if trail.extended and out.shape[-1] != x.shape[-1]:
        raise Lost("its scores are reshaped beside their sinks")
    if trail.extended:
        shape = (*out.shape[:-1], size_of(trail.axes[-1]))
    else:
        shape = out.shape
    axes = layout.reshape(trail.axes, shape)
    if axes is None:
        raise Lost(f"{name} mixes its axes")
    return replace(trail, axes=axes)


def _permute(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    rank, rest = x.ndim, [*args[1:], *kwargs.values()]
    order = list(range(rank))
    if name in ("mT", "mH", "adjoint", "t", "T", "H"):
        order[-2:] = order[:-3:-1]
        if name == "T" and rank > 2:
            order = order[::-1]
    elif name in ("transpose", "swapaxes", "swapdims"):
        one, other = (d % rank for d in rest)
        order[one], order[other] = order[other], order[one]
    elif name == "permute":
        order = [d % rank for d in (rest[0] if isinstance(rest[0], (tuple, list, torch.Size)) else rest)]
    else:  # movedim, moveaxis
        source, target = ([d % rank for d in (x if isinstance(x, (tuple, list)) else [x])] for x in rest)
        order = [d for d in order if d not in source]
        for place, d in sorted(zip(target, source, strict=True)):
            order.insert(place, d)
    return replace(trail, axes=tuple(trail.axes[d] for d in order))


def _cut(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    """Indexing: new axes, or the sinks cut off again."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    plain = all(item is None or item is Ellipsis or isinstance(item, slice) for item in index)
    if plain and out.numel() == x.numel():
        return _reshape(trail, name, x, args, kwargs, out)
    key_axis = next((i for i, axis in enumerate(trail.axes) if trail.softmax and axis == trail.softmax.over), None)
    if plain and trail.extended and key_axis is not None and trail.sinks and out.ndim == x.ndim:
        n, place = size_of(trail.axes[key_axis]), trail.sinks[3]
        begin = trail.extended if place == 1 else 0
        kept = x.narrow(key_axis, begin, n)
        if out.shape == kept.shape and out.data_ptr() == kept.data_ptr():
            return replace(trail, extended=0)
    raise Lost("a part of its scores is cut out")


def _narrow(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    return _cut(trail, name, x, (x, (Ellipsis, slice(0, 1))), kwargs, out)


def _scale(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    _keep(trail, name, x, args, kwargs, out)
    trail = replace(trail, dtype=_coarser(trail.dtype, out.dtype))
    factor = _factor(name, args)
    if factor is not None:
        _refuse_sinks(trail, name)
        return trail.do(Doing("times", factor))
    other = args[1] if args[0] is x else args[0]
    if (name in DIVISIONS and args[0] is not x) or not isinstance(other, Tensor):
        raise Lost(f"its scores go through {name}, which isn't followed")
    other = 1.0 / other if name in DIVISIONS else other
    return trail.do(Doing("times", tensor=other, axes=_under(trail, name, other)))


def _add(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    scores = x
    if out.shape != x.shape and out.numel() == x.numel():  # a mask with more axes of size one
        trail, x = _reshape(trail, name, x, args, kwargs, out), out
    _keep(trail, name, x, args, kwargs, out)
    trail = replace(trail, dtype=_coarser(trail.dtype, out.dtype))
    first, other = args[:2]
    is_first = first is scores
    sign = 1.0 if name in ("add", "iadd", "radd") else -1.0
    sign *= float(kwargs.get("alpha", 1))
    if not is_first:
        first, other = other, first
        if name in ("sub", "rsub", "subtract"):
            trail, sign = trail.do(Doing("times", -1.0)), 1.0
    if name == "rsub":
        trail, sign = trail.do(Doing("times", -1.0)), 1.0
    if isinstance(other, (int, float)):
        return trail.do(Doing("plus", sign * float(other)))
    if not isinstance(other, Tensor):
        raise Lost(f"its scores go through {name}, which isn't followed")
    if trail.extended:
        under = other.shape[-1] == 1
        if not under:
            raise Lost("a bias is added to its scores and sinks together")
        return trail
    return trail.do(Doing("plus", sign, other, _under(trail, name, other)))


def _fill(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    if name == "where":
        condition, yes, no = args
        mask, value = (~condition, no) if yes is x else (condition, yes)
    else:
        mask, value = args[1:]
    if out.shape != x.shape and out.numel() == x.numel():
        trail = _reshape(trail, name, x, args, kwargs, out)
    elif out.shape != x.shape:
        raise Lost(f"{name} changes the shape of its scores")
    _refuse_sinks(trail, name)
    axes = _under(trail, name, mask)
    if isinstance(value, Tensor) and value.numel() > 1:
        trail = trail.do(Doing("fill", 0.0, mask, axes))
        other = torch.where(mask, value, 0.0)
        return trail.do(Doing("plus", 1.0, other, _under(trail, name, other)))
    return trail.do(Doing("fill", float(value), mask, axes))


def _apply(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    if any(isinstance(y, Tensor) and y.numel() > 1 for y in (*args[1:], *kwargs.values())) or args[0] is not x:
        raise Lost(f"its scores go through {name}, which isn't followed")
    trail = _keep(trail, name, x, args, kwargs, out)
    _refuse_sinks(trail, name)
    rest = [float(y) if isinstance(y, Tensor) else y for y in args[1:]]
    named = {key: float(y) if isinstance(y, Tensor) else y for key, y in kwargs.items() if key != "inplace"}
    plain = {"maximum": "clamp_min", "max": "clamp_min", "min": "clamp_max", "minimum": "clamp_max"}.get(name, name)
    function = getattr(torch, plain, None) or getattr(nn.functional, plain)
    return trail.do(Doing("apply", name=name, function=lambda s: function(s, *rest, **named)))


def _drop(trail: Trail, name: str, x: Tensor, args: tuple, kwargs: dict, out: Tensor) -> Trail:
    trail = _keep(trail, name, x, args, kwargs, out)
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return replace(trail, dropout=1 - (1 - trail.dropout) * (1 - p)) if training and p else trail


def _refuse_sinks(trail: Trail, name: str) -> None:
    if trail.extended and trail.softmax is None:
        raise Lost(f"its scores and sinks go through {name} together, which isn't followed")


def _under(trail: Trail, name: str, other: Tensor) -> Axes:
    axes = broadcast(trail.axes, other.shape)
    if axes is None:
        raise Lost(f"{name} takes a tensor that is larger than its scores")
    return axes


DIVISIONS = frozenset({"div", "true_divide", "divide", "truediv", "rdiv"})
SCALING = frozenset({"mul", "multiply", *DIVISIONS})
PRODUCTS = frozenset({"matmul", "bmm", "mm", "einsum", "baddbmm", "linear", "conv2d", "rmatmul"})
CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone", "detach"})
_RESHAPES = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "_unsafe_view")
_PERMUTES = (
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
)
LAYOUT = frozenset({*_RESHAPES, *_PERMUTES, "getitem", "expand"})
REDUCTIONS = frozenset(
    {"amax", "amin", "sum", "mean", "logsumexp", "argmax", "topk", "norm", "std", "var", "any", "all"}
)
_POINTWISE = ("tanh", "clamp", "clamp_min", "clamp_max", "relu", "nan_to_num", "sigmoid", "maximum", "minimum", "abs")
_POINTWISE += ("neg", "exp", "softplus", "square", "max", "min", "clip")
STEPS: dict[str, Callable[..., Trail]] = {
    **dict.fromkeys(CASTS, _keep),
    **dict.fromkeys(("identity", "alias", "requires_grad", "retain_grad", "pin_memory", "cuda", "cpu"), _keep),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(_PERMUTES, _permute),
    **dict.fromkeys(SCALING, _scale),
    **dict.fromkeys(("add", "sub", "subtract", "rsub"), _add),
    **dict.fromkeys(("masked_fill", "where"), _fill),
    **dict.fromkeys(_POINTWISE, _apply),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _drop),
    "getitem": _cut,
    "narrow": _narrow,
    "expand": _keep,
    "expand_as": _keep,
}
