"""Which axis of a tensor is which, followed through reshapes: every axis is a row of atoms, the last one the fastest.

A product of queries (b h q d) and keys (b h k d) has the axes b, h, q and k. A model may join them (b·h), split them
(windows in rows and columns) or exchange them before its softmax. As long as no atom is mixed with another, the axes of
whatever comes out are known, and any tensor that shares some of them can be brought into one order.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

_serials = itertools.count()


class Atom:
    """An axis, or a part of one that was split."""

    __slots__ = ("kind", "parent", "parts", "serial", "size")

    def __init__(self, size: int, kind: str = "", parent: "Atom | None" = None):
        self.size = size
        self.parent = parent  # what it was split off from
        self.serial = next(_serials)
        self.kind = kind  # what it counts, where that is known: batch, token or feature
        self.parts: tuple[Atom, ...] | None = None


Axis = tuple[Atom, ...]  # none for an axis of size one
Axes = tuple[Axis, ...]


def fresh(size: int, kind: str = "") -> Axis:
    """A new axis."""
    return () if size == 1 else (Atom(size, kind),)


def leaves(axis: Sequence[Atom]) -> list[Atom]:
    """The axis as it has been split so far."""
    atoms: list[Atom] = []
    for atom in axis:
        atoms += [atom] if atom.parts is None else leaves(atom.parts)
    return atoms


def whole_of(atom: Atom, among: Collection[Atom]) -> Atom:
    """The largest axis that this one is a part of and that has no parts but these.

    Where tokens were merged, half of an axis has become features: what is left of it is an axis of its own.
    """
    while atom.parent is not None and all(part in among for part in leaves((atom.parent,))):
        atom = atom.parent
    return atom


def size_of(axis: Sequence[Atom]) -> int:
    return math.prod(atom.size for atom in axis)


def reshape(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """The axes after a view, reshape, flatten, squeeze or unsqueeze; None if atoms would have to be mixed."""
    rest = leaves([atom for axis in axes for atom in axis])[::-1]
    made: list[Axis] = []
    for size in shape:
        axis: list[Atom] = []
        while size > 1:
            if not rest:
                return None
            atom = rest.pop()
            if atom.size > size:
                if atom.size % size:
                    return None
                atom.parts = Atom(size, atom.kind, atom), Atom(atom.size // size, atom.kind, atom)
                rest.append(atom.parts[1])
                atom = atom.parts[0]
            if size % atom.size:
                return None
            axis.append(atom)
            size //= atom.size
        made.append(tuple(axis))
    return None if rest else tuple(made)


def arrange(tensor: Tensor, axes: Axes, groups: Sequence[Sequence[Atom]]) -> Tensor:
    """The tensor with one axis for each group of atoms, in this order; of size one where it has none of them.

    ValueError if it has atoms of no group.
    """
    held = leaves([atom for axis in axes for atom in axis])
    wanted = [leaves(group) for group in groups]
    order = [held.index(atom) for group in wanted for atom in group if atom in held]
    if len(order) != len(held):
        raise ValueError("an axis belongs to no group")
    tensor = tensor.reshape([atom.size for atom in held]).permute(order)
    apart, joined, whole = [], [], []
    for group in wanted:
        here = any(atom in held for atom in group)
        apart += [atom.size if atom in held else 1 for atom in group]
        whole += [atom.size if here else 1 for atom in group]
        joined.append(size_of(group) if here else 1)
    return tensor.reshape(apart).expand(whole).reshape(joined)


def broadcast(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """The axes of a tensor of this shape that is broadcast to the axes; None if it is larger than they are."""
    if len(shape) > len(axes):
        extra, shape = shape[: len(shape) - len(axes)], shape[len(shape) - len(axes) :]
        if math.prod(extra) != 1:
            return None
        lead: Axes = ((),) * len(extra)
    else:
        lead = ()
    under = axes[len(axes) - len(shape) :]
    if any(size not in (1, size_of(axis)) for size, axis in zip(shape, under, strict=True)):
        return None
    return lead + tuple(axis if size != 1 else () for size, axis in zip(shape, under, strict=True))


def find_order(name: str, rank: int, given: Sequence[Any]) -> list[int]:
    """In which order a transpose or permutation puts the axes."""
    order = list(range(rank))
    if name in ("mT", "mH", "adjoint", "t"):
        order[-2:] = order[:-3:-1]
    elif name in ("T", "H"):
        order = order[::-1]
    elif name in ("transpose", "swapaxes", "swapdims"):
        one, other = (d % rank for d in given)
        order[one], order[other] = order[other], order[one]
    elif name == "permute":
        order = [d % rank for d in (given[0] if isinstance(given[0], tuple | list) else given)]
    else:  # movedim, moveaxis
        source, target = ([d % rank for d in (x if isinstance(x, tuple | list) else [x])] for x in given)
        order = [d for d in order if d not in source]
        for place, d in sorted(zip(target, source, strict=True)):
            order.insert(place, d)
    return order
