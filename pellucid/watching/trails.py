"""What is known of a tensor between the product of queries and keys and the product with the values: its trail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.watching.axes import Atom, Axes, Axis, fresh, leaves, size_of

Equation = tuple[list[str], list[str], list[str]]  # the letters of the left, of the right and of what comes out


class Lost(Exception):
    """A trail that can't be followed any further, and why."""


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
    is_sum: bool = False
    """Whether something was added before the product was rounded."""
    versions: tuple[int | None, int | None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", (version(self.left), version(self.right)))

    def is_unwritten(self) -> bool:
        return self.versions == (version(self.left), version(self.right))


@dataclass(frozen=True, eq=False)
class Doing:
    """One thing that was done to scores or weights, with the axes of the tensor that it was done with."""

    kind: str  # times, plus, fill, apply, mix
    number: float = 1.0
    tensor: Tensor | None = None
    axes: Axes = ()
    function: Callable[[Tensor], Tensor] | None = None
    name: str = ""
    bias: Tensor | None = None
    """What mixed heads get on top."""
    held: torch.dtype | None = None
    """What came out was rounded to this."""
    version: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", None if self.tensor is None else version(self.tensor))

    def is_unwritten(self) -> bool:
        return self.tensor is None or self.version == version(self.tensor)


@dataclass(frozen=True, eq=False)
class Sinks:
    """Scores of no key that were joined to those of the keys."""

    scores: Tensor
    axes: Axes
    own: Axis
    first: bool
    """Whether they stand before the keys."""


@dataclass(eq=False)
class Softmax:
    """A softmax that was taken: over which axis, by whom, and why it isn't recorded, unless it is."""

    module: str
    shape: tuple[int, ...]
    over: Axis
    reason: str
    is_attention: bool = False
    recorded: bool = False
    of_features: bool = False
    """Whether it goes over what a linear layer puts out, as a router's does: such weights choose, they don't attend."""


@dataclass(frozen=True, eq=False)
class Trail:
    """From which product a tensor came and by which steps, or why that isn't known any more."""

    product: Product | None
    axes: Axes
    before: tuple[Doing, ...] = ()
    softmax: Softmax | None = None
    after: tuple[Doing, ...] = ()
    sinks: Sinks | None = None
    softmax_axes: Axes = ()
    extended: int = 0  # how many sinks the axis of the keys still holds
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64  # the coarsest it was held in
    rewritten: Tensor | None = None  # the scores themselves, where a part of them was written into
    lost: str = ""

    def do(self, doing: Doing) -> "Trail":
        if self.softmax is None:
            return replace(self, before=(*self.before, doing))
        return replace(self, after=(*self.after, doing))

    def rounded_to(self, dtype: torch.dtype, done: int) -> "Trail":
        """What came out of the last step, before which so much had been done to the scores, was held in this type."""
        if self.softmax is not None:
            return self
        if len(self.before) == done:
            return self.do(Doing("times", held=dtype))
        return replace(self, before=(*self.before[:-1], replace(self.before[-1], held=dtype)))

    def held_in(self, dtype: torch.dtype) -> "Trail":
        coarser = max(self.dtype, dtype, key=lambda d: torch.finfo(d).eps)
        return self if coarser == self.dtype else replace(self, dtype=coarser)

    @property
    def what(self) -> str:
        return "scores" if self.softmax is None else "weights"

    @property
    def is_exponential(self) -> bool:
        return self.softmax is None and any(doing.name == "exp" for doing in self.before)


def version(x: Tensor) -> int | None:
    """How often a tensor or one that shares its memory has been written to; unknown in inference mode."""
    return None if x.is_inference() else x._version


def read_equation(name: str, args: Sequence[Any], pair: tuple[Tensor, Tensor]) -> Equation:
    """A product as Einstein wrote it: the letters of the left, of the right and of what comes out."""
    lead = [f"…{i}" for i in range(24)]
    left, right = pair
    if name == "linear":
        rows = lead[len(lead) - left.ndim + 1 :]
        return [*rows, "d"], ["k", "d"], [*rows, "k"]
    if name != "einsum":
        n, m = left.ndim - 2, right.ndim - 2
        a, b, out = ([*lead[len(lead) - rank :]] for rank in (n, m, max(n, m)))
        return [*a, "q", "d"], [*b, "d", "k"], [*out, "q", "k"]
    inputs, arrow, result = str(args[0]).replace(" ", "").partition("->")
    sides = inputs.split(",")
    if len(sides) != 2 or not arrow:
        raise Lost("it is an einsum that isn't of two tensors or doesn't say what comes out")

    def letters(term: str, rank: int) -> list[str]:
        head, dots, tail = term.partition("...")
        return [*head, *lead[len(lead) - rank + len(head) + len(tail) :], *tail] if dots else list(term)

    a, b = letters(sides[0], left.ndim), letters(sides[1], right.ndim)
    if len(set(a)) != len(a) or len(set(b)) != len(b):
        raise Lost("it is an einsum that repeats a letter")
    wide = max(sum(letter in lead for letter in term) for term in (a, b))
    return a, b, letters(result, wide + len(result.replace("...", "")))


def name_axes(
    pair: tuple[Tensor, Tensor], equation: Equation, dtype: torch.dtype, known: dict[int, Axes] | None = None
) -> Product:
    """Name the axes of both sides and of the product; those of one side may be known already."""
    sides, result = equation[:2], equation[2]
    axes: dict[tuple[int, str], Axis] = {}
    for side, given in (known or {}).items():
        axes |= {(side, letter): axis for letter, axis in zip(sides[side], given, strict=True)}
    for side in (0, 1):
        for letter, size in zip(sides[side], pair[side].shape, strict=True):
            if (side, letter) not in axes:
                other = axes.get((1 - side, letter))
                axes[side, letter] = other if other is not None and size_of(other) == size else fresh(size)
    named = [tuple(axes[side, letter] for letter in sides[side]) for side in (0, 1)]
    out = [max((axes[s, letter] for s in (0, 1) if letter in sides[s]), key=size_of) for letter in result]
    inner = tuple(a for x in sides[0] if x in sides[1] and x not in result for a in axes[0, x])
    own = [[x for x in sides[side] if x not in sides[1 - side] and x in result] for side in (0, 1)]
    if known is None:
        own = _tell_queries(own, result, {x for side in (0, 1) for x in own[side] if not axes[side, x]})
    rows, columns = (tuple(a for x in own[side] for a in axes[side, x]) for side in (0, 1))
    return Product(pair[0], named[0], pair[1], named[1], tuple(out), rows, columns, inner, dtype)


def _tell_queries(own: list[list[str]], result: list[str], single: set[str]) -> list[list[str]]:
    """Where keys are shared by heads, b h q d, b k d → b h q k: the queries stand next to the keys, the rest leads."""
    for side in (0, 1):
        if len(own[side]) > 1 and len(own[1 - side]) == 1:
            place = result.index(own[1 - side][0])
            away = {x: abs(result.index(x) - place) for x in own[side]}
            own[side] = [min(own[side], key=lambda x: (away[x], x in single, result.index(x) > place))]
            break
    return own


def atoms_of(axes: Sequence[Axis]) -> list[Atom]:
    return leaves([atom for axis in axes for atom in axis])
