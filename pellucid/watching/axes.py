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

    __slots__ = ("kind", "others", "parent", "parts", "serial", "siblings", "size")

    def __init__(self, size: int, kind: str = "", parent: "Atom | None" = None):
        self.size = size
        self.parent = parent  # what it was split off from
        self.siblings: tuple[Atom, ...] = (self,)  # what it was split off with, itself among them
        self.serial = next(_serials)
        self.kind = kind  # what it counts, where that is known: batch, token or feature
        self.parts: tuple[Atom, ...] | None = None
        self.others: list[tuple[Atom, ...]] = []  # the same axis split otherwise: 56 as 8·7, and as 28·2

    def split(self, size: int) -> "tuple[Atom, ...]":
        """Two parts, the slower one of this size; the same ones each time."""
        for pair in (self.parts or (), *self.others):
            if pair and pair[0].size == size:
                return pair
        pair = Atom(size, self.kind, self), Atom(self.size // size, self.kind, self)
        for part in pair:
            part.siblings = pair
        if self.parts is None:
            self.parts = pair
        else:
            self.others.append(pair)
        return pair


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


def wholes(axis: Sequence[Atom]) -> list[Atom]:
    """The axis with parts that stand side by side as what they are parts of."""
    atoms: list[Atom] = []
    for atom in leaves(axis):
        atoms.append(atom)
        while len(atoms) > 1 and atoms[-1].parent is not None and tuple(atoms[-2:]) == atoms[-1].siblings:
            atoms[-2:] = [atoms[-1].parent]
    return atoms


def parts_of(atom: Atom, among: Collection[Atom]) -> list[Atom] | None:
    """The atom as some of these, which may be another of its splits than the first; None if it is made of others."""
    if atom in among:
        return [atom]
    for pair in (atom.parts or (), *atom.others):
        found = [parts_of(part, among) for part in pair]
        if found and all(found):
            return [part for parts in found for part in parts or ()]
    return None


def whole_of(atom: Atom, among: Collection[Atom]) -> Atom:
    """The largest axis that this one is a part of and that has no parts but these.

    Where tokens were merged, half of an axis has become features: what is left of it is an axis of its own.
    """
    while atom.parent is not None and all(part in among for part in leaves(atom.siblings)):
        atom = atom.parent
    return atom


def origin_of(atom: Atom) -> Atom:
    """The axis that this one was split off from in the beginning."""
    return atom if atom.parent is None else origin_of(atom.parent)


def path_of(atom: Atom) -> tuple[int, ...]:
    """By which parts of an axis stand in its order, and axes in that in which they came."""
    if atom.parent is None:
        return (atom.serial,)
    return (*path_of(atom.parent), atom.siblings.index(atom))


def size_of(axis: Sequence[Atom]) -> int:
    return math.prod(atom.size for atom in axis)


def reshape(axes: Axes, shape: Sequence[int], *, anew: bool = False) -> Axes | None:
    """The axes after a view, reshape, flatten, squeeze or unsqueeze; None if atoms would have to be mixed.

    anew: parts that stand side by side are split as what they are parts of; else as the parts that they are.
    """
    atoms = [atom for axis in axes for atom in axis]
    first, other = (wholes, leaves) if anew else (leaves, wholes)
    return _deal(first(atoms), shape) or _deal(other(atoms), shape)


def _deal(atoms: Sequence[Atom], shape: Sequence[int]) -> Axes | None:
    """The atoms as axes of these sizes, split where they must be."""
    rest = list(atoms)[::-1]
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
                atom, last = atom.split(size)
                rest.append(last)
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
