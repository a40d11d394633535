"""A trail that came to its end, in the terms of a record: all in the order (b h q k), its steps as β, mask or rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from pellucid.ops import rules
from pellucid.watching import axes as layout
from pellucid.watching.axes import Atom, Axes, Axis, arrange, leaves, size_of
from pellucid.watching.stating import state, state_rest
from pellucid.watching.streams import Streams
from pellucid.watching.trails import Lost, Product, Trail, atoms_of

HEADS = ("num_heads", "heads", "num_attention_heads", "n_heads", "n_head", "nhead", "nb_heads")


@dataclass(frozen=True, eq=False)
class Followed:
    """What a trail came to: all that a record needs, (b h q d) and so on, and how gradients are brought there."""

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
    dims: tuple[list[int], list[int], list[int]]
    """Which axes of the model's own q, k and output are the queries', the keys' and the queries'."""
    weights: Tensor
    """The model's own, as they meet the values."""
    rounded: Callable[[], tuple[float, rules.Rule]] | None
    """β and a rule that rounds after each step as the model does, unless a part of its scores was written into."""
    low: bool
    """Whether scores were put so far down that what becomes of them may hang on how they are rounded."""
    odd: list[int]
    """Some of the queries all of whose keys lie that low."""


@dataclass(frozen=True, eq=False)
class Order:
    """Which atoms are which in the end."""

    batch: Axis
    heads: Axis
    rows: Axis
    keys: Axis
    inner: Axis
    width: Axis

    def bring(self, inner: Sequence[Axis], axes: Axes, x: Tensor) -> Tensor:
        try:
            return arrange(x, axes, [self.batch, self.heads, *inner])
        except ValueError:
            raise Lost("its axes are mixed in a way that isn't followed") from None


def gather(trail: Trail, end: Product, side: int, out: Tensor, module: nn.Module | None, streams: Streams) -> Followed:
    """q, k, v, β, mask or rule, and the output of a trail that ends in this product; its weights stand on this side."""
    product = trail.product
    assert product is not None
    (q, q_axes), (k, k_axes), factors, rows = _tell_queries(trail, product)
    right = end.right, end.right_axes, end.columns
    values, value_axes, width = right if side == 0 else (end.left, end.left_axes, end.rows)
    order = _put_in_order(trail, rows, q_axes, k_axes, value_axes, width, module, streams)
    to_q = partial(order.bring, [order.rows, order.inner], q_axes)
    shared = _share_heads(order, k_axes, value_axes)
    to_k = partial(shared.bring, [order.keys, order.inner], k_axes)
    to_v = partial(shared.bring, [order.keys, order.width], value_axes)
    to_out = partial(order.bring, [order.rows, order.width], end.out_axes)

    def held(x: Tensor, dtype: torch.dtype, heads: Axis = order.heads) -> Tensor:
        # Under autocast a product rounds what it multiplies.
        return x.to(dtype).expand(size_of(order.batch), size_of(heads), -1, -1)

    q_held, k_held = held(to_q(q), product.dtype), held(to_k(k), product.dtype, shared.heads)
    rounded, low, odd = None, True, []

    def bring(last: Axis, x_axes: Axes, x: Tensor) -> Tensor:
        return order.bring([order.rows, last], x_axes, x)

    if trail.rewritten is None:
        statement = state(trail, bring)
        (beta, mask), rounded = statement.plain(), statement.rounded
        low, odd = statement.low is not None, statement.list_odd()
    else:
        beta, mask = state_rest(trail, bring, q_held, k_held)

    def restore(x: Tensor) -> Tensor:
        flat = (order.batch, order.heads, order.rows, order.width)
        return arrange(x, flat, [leaves(axis) for axis in end.out_axes]).to(out.dtype)

    factors = [f if _divides(f, product.dtype) else 1.0 for f in factors]
    scale = math.prod(factors)
    q_held, k_held = (x if f == 1 else x / f for x, f in zip((q_held, k_held), factors, strict=True))
    q_back, k_back = ((lambda g, to=to, f=f: to(g) * f) for to, f in zip((to_q, to_k), factors, strict=True))
    live = {"q": (q, q_back), "k": (k, k_back), "v": (values, to_v), "output": (out, to_out)}
    v_held, out_held = held(to_v(values), out.dtype, shared.heads), held(to_out(out), out.dtype)
    dims = _find_dims(q_axes, order.rows), _find_dims(k_axes, order.keys), _find_dims(end.out_axes, order.rows)
    own = order.bring([order.rows, order.keys], trail.axes, end.left if side == 0 else end.right)
    return Followed(
        q=q_held,
        k=k_held,
        v=v_held,
        mask=mask,
        beta=beta * scale,
        dropout=trail.dropout,
        output=out_held,
        dtype=trail.dtype,
        live=live,
        restore=restore,
        dims=dims,
        weights=own.expand(size_of(order.batch), size_of(order.heads), -1, -1),
        rounded=None if rounded is None else lambda: (scale, rounded()),
        low=low,
        odd=odd,
    )


def _tell_queries(
    trail: Trail, product: Product
) -> tuple[tuple[Tensor, Axes], tuple[Tensor, Axes], tuple[float, ...], Axis]:
    """Queries and keys, each with its axes, the numbers that they were multiplied by, and the axis of the queries."""
    if not product.is_unwritten() or not all(x.is_unwritten() for x in (*trail.before, *trail.after)):
        raise Lost("its queries, its keys or a mask were written over before it was done")
    assert trail.softmax is not None
    left, right = (product.left, product.left_axes), (product.right, product.right_axes)
    over = leaves(trail.softmax.over)
    if over == leaves(product.columns):
        return left, right, product.factors, product.rows
    if over != leaves(product.rows):
        raise Lost("its softmax goes over more or less than the keys")
    return right, left, product.factors[::-1], product.columns


def _divides(factor: float, dtype: torch.dtype) -> bool:
    """Whether a factor can be taken out again: what was rounded to a few digits must not be rounded once more."""
    return dtype.itemsize > 2 or math.frexp(factor)[0] == 0.5


def _share_heads(order: Order, k_axes: Axes, value_axes: Axes) -> Order:
    """Keys and values that several heads share stand once, if the heads of a group are neighbours."""
    own = set(atoms_of([*k_axes, *value_axes]))
    groups = len(order.heads)
    while groups and order.heads[groups - 1] not in own:
        groups -= 1
    return replace(order, heads=order.heads[:groups])


def _find_dims(axes: Axes, atoms: Axis) -> list[int]:
    return [d for d, axis in enumerate(axes) if set(leaves(axis)) & set(atoms)]


def _put_in_order(
    trail: Trail,
    rows: Axis,
    q_axes: Axes,
    k_axes: Axes,
    value_axes: Axes,
    width: Axis,
    module: nn.Module | None,
    streams: Streams,
) -> Order:
    assert trail.product is not None
    assert trail.softmax is not None
    mixed = [doing.axes[0] for doing in (*trail.before, *trail.after) if doing.kind == "mix"]
    # Heads that came as rows, (r q) against one head of keys, are told by their own values or by being mixed.
    apart = set(atoms_of([*value_axes, *mixed]))
    own_rows = tuple(a for a in leaves(rows) if a not in apart)
    keys, inner = tuple(leaves(trail.softmax.over)), tuple(leaves(trail.product.inner))
    used = {*own_rows, *keys, *inner, *leaves(width)}
    lead: list[Axis] = []
    for axis in (
        *q_axes,
        *trail.axes,
        *value_axes,
    ):  # queries first: wherever batch and heads go, there they are in order
        fresh = tuple(a for a in leaves(axis) if a not in used)
        used |= set(fresh)
        lead += [fresh] if fresh else []
    alone = [axes for axes in (q_axes, trail.axes) if len(axes) == 4 and not axes[0]]
    if len(lead) == 1 and any(tuple(leaves(axes[1])) == lead[0] for axes in alone):
        lead.insert(0, ())  # a batch of one, and heads
    q = trail.product.left if q_axes is trail.product.left_axes else trail.product.right
    outer = {atom for d in streams.spread(q) for atom in leaves(q_axes[d])}
    within = [axis for axis in lead if not outer.issuperset(axis) or not axis]
    count = next((n for name in HEADS if isinstance(n := getattr(module, name, None), int) and n > 0), 0)
    if within and count == size_of(within[-1]) * size_of(own_rows) and all(size_of(axis) != count for axis in within):
        within[-1], own_rows = (*within[-1], *own_rows), ()  # one query, of heads that share their keys
    heads = None if mixed else _read_heads(lead, q, q_axes, streams)
    if heads is None or count not in (0, size_of(heads)):
        _, heads = _part_heads(within, set(atoms_of(k_axes)), mixed, count)
    batch = tuple(atom for axis in lead for atom in leaves(axis) if atom not in heads)
    return Order(batch, heads, own_rows, keys, inner, tuple(leaves(width)))


def _read_heads(lead: list[Axis], q: Tensor, q_axes: Axes, streams: Streams) -> Axis | None:
    """Which of the axes that stand before queries and keys are heads, if it is known where the queries come from."""
    every = set(atoms_of(lead))
    dims = [d for d, axis in enumerate(q_axes) if not every.isdisjoint(leaves(axis))]
    known = streams.part_heads(q, dims)
    if known is None or not every.issubset(atoms_of([q_axes[d] for d in dims])):
        return None
    heads: list[Atom] = []
    for d, parts in zip(dims, known, strict=True):
        apart = layout.reshape((q_axes[d],), [n for n, _ in parts])
        if apart is None:
            return None
        heads += [atom for axis, (_, is_head) in zip(apart, parts, strict=True) if is_head for atom in leaves(axis)]
    return tuple(leaves(heads))


def _part_heads(lead: list[Axis], shared: set[Atom], mixed: list[Axis], count: int) -> tuple[Axis, Axis]:
    """Which of the axes that stand before queries and keys are heads: those that are mixed, as many as the module says
    (count, 0 if it doesn't), or the last axis, with the one before it if that one is a group whose keys it shares."""
    every = tuple(atom for axis in lead for atom in axis)
    if mixed:
        heads = tuple(leaves(mixed[0]))
        if any(tuple(leaves(other)) != heads for other in mixed) or not set(heads) <= set(every):
            raise Lost("axes are mixed with each other that aren't the heads")
        return tuple(a for a in every if a not in heads), heads
    heads = _find_heads(lead, count) if count else None
    if heads is not None:
        return tuple(a for a in leaves(every) if a not in heads), heads
    if len(lead) == 1:
        return every[:-1] or every, every[-1:] if len(every) > 1 else ()
    last = lead[-1:]
    if len(lead) > 2 and not set(lead[-1]) & shared:
        last = lead[-2:]
    heads = tuple(atom for axis in last for atom in axis)
    return every[: len(every) - len(heads)], heads


def _find_heads(lead: list[Axis], number: int) -> Axis | None:
    """The last atoms that make up this number, or the one axis of this size."""
    if number == 1:
        return ()
    every = [atom for axis in lead for atom in axis]
    atoms: list[Atom] = []
    while every and number > 1:
        atom = every.pop()
        if number % atom.size and atom.size % number == 0:  # batch and heads in one
            layout.reshape(((atom,),), (atom.size // number, number))
            atom = leaves([atom])[-1]
        if number % atom.size:
            break
        atoms.insert(0, atom)
        number //= atom.size
    if number == 1:
        return tuple(atoms)
    alone = [axis for axis in lead if size_of(axis) == number * size_of(atoms)]
    return alone[0] if len(alone) == 1 else None
