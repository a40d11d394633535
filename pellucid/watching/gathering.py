"""A trail that came to its end, in the terms of a record: all in the order (b h q k), its steps as β, mask or rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from pellucid.ops import rules
from pellucid.ops.exact import share_heads
from pellucid.watching import axes as layout
from pellucid.watching.axes import Atom, Axes, Axis, arrange, leaves, size_of
from pellucid.watching.trails import Doing, Lost, Product, Trail, atoms_of

HEADS = ("num_heads", "heads", "num_attention_heads", "n_heads", "n_head", "nhead", "nb_heads")
LOW = -1e3  # what is filled in for a score that isn't to count lies below: e to this power is nothing


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


def gather(trail: Trail, end: Product, side: int, out: Tensor, module: nn.Module | None) -> Followed:
    """q, k, v, β, mask or rule, and the output of a trail that ends in this product; its weights stand on this side."""
    product, softmax = trail.product, trail.softmax
    assert product is not None
    assert softmax is not None
    if not product.is_unwritten() or not all(x.is_unwritten() for x in (*trail.before, *trail.after)):
        raise Lost("its queries, its keys or a mask were written over before it was done")
    parts = [(product.left, product.left_axes), (product.right, product.right_axes)]
    factors, rows = product.factors, product.rows
    over = leaves(softmax.over)
    if over != leaves(product.columns):
        if over != leaves(product.rows):
            raise Lost("its softmax goes over more or less than the keys")
        parts, factors, rows = parts[::-1], factors[::-1], product.columns  # the keys are rows
    values, value_axes = (end.right, end.right_axes) if side == 0 else (end.left, end.left_axes)
    (q, q_axes), (k, k_axes) = parts
    order = _put_in_order(trail, rows, q_axes, k_axes, value_axes, end.columns if side == 0 else end.rows, module)
    to_q = partial(order.bring, [order.rows, order.inner], q_axes)
    shared = _share_heads(order, k_axes, value_axes)
    to_k = partial(shared.bring, [order.keys, order.inner], k_axes)
    to_v = partial(shared.bring, [order.keys, order.width], value_axes)
    to_out = partial(order.bring, [order.rows, order.width], end.out_axes)

    def held(x: Tensor, dtype: torch.dtype, heads: Axis = order.heads) -> Tensor:
        # Under autocast a product rounds what it multiplies.
        return x.to(dtype).expand(size_of(order.batch), size_of(heads), -1, -1)

    q_held, k_held = held(to_q(q), product.dtype), held(to_k(k), product.dtype, shared.heads)
    if trail.rewritten is None:
        beta, mask = _state_rule(trail, order)
    else:
        beta, mask = _state_rest(trail, order, q_held, k_held)

    def restore(x: Tensor) -> Tensor:
        flat = (order.batch, order.heads, order.rows, order.width)
        return arrange(x, flat, [leaves(axis) for axis in end.out_axes]).to(out.dtype)

    beta *= math.prod(factors)
    q_held, k_held = (x if f == 1 else x / f for x, f in zip((q_held, k_held), factors, strict=True))
    q_back, k_back = ((lambda g, to=to, f=f: to(g) * f) for to, f in zip((to_q, to_k), factors, strict=True))
    live = {"q": (q, q_back), "k": (k, k_back), "v": (values, to_v), "output": (out, to_out)}
    v_held, out_held = held(to_v(values), out.dtype, shared.heads), held(to_out(out), out.dtype)
    dims = _find_dims(q_axes, order.rows), _find_dims(k_axes, order.keys), _find_dims(end.out_axes, order.rows)
    return Followed(q_held, k_held, v_held, mask, beta, trail.dropout, out_held, trail.dtype, live, restore, dims)


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
    trail: Trail, rows: Axis, q_axes: Axes, k_axes: Axes, value_axes: Axes, width: Axis, module: nn.Module | None
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
    batch, heads = _part_heads(lead, set(atoms_of(k_axes)), mixed, module)
    return Order(batch, heads, own_rows, keys, inner, tuple(leaves(width)))


def _part_heads(lead: list[Axis], shared: set[Atom], mixed: list[Axis], module: nn.Module | None) -> tuple[Axis, Axis]:
    """Which of the axes that stand before queries and keys are heads: those that are mixed, as many as the module says,
    or the last axis, with the one before it if that one is a group whose keys it shares."""
    every = tuple(atom for axis in lead for atom in axis)
    if mixed:
        heads = tuple(leaves(mixed[0]))
        if any(tuple(leaves(other)) != heads for other in mixed) or not set(heads) <= set(every):
            raise Lost("axes are mixed with each other that aren't the heads")
        return tuple(a for a in every if a not in heads), heads
    told = next((n for name in HEADS if isinstance(n := getattr(module, name, None), int) and n > 0), 0)
    found = _find_heads(lead, told) if told else None
    if found is not None:
        return tuple(a for a in leaves(every) if a not in found), found
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
    found: list[Atom] = []
    while every and number > 1:
        atom = every.pop()
        if number % atom.size and atom.size % number == 0:  # batch and heads in one
            layout.reshape(((atom,),), (atom.size // number, number))
            atom = leaves([atom])[-1]
        if number % atom.size:
            break
        found.insert(0, atom)
        number //= atom.size
    if number == 1:
        return tuple(found)
    alone = [axis for axis in lead if size_of(axis) == number * size_of(found)]
    return alone[0] if len(alone) == 1 else None


def _state_rest(trail: Trail, order: Order, q: Tensor, k: Tensor) -> tuple[float, Tensor]:
    """β and what the product alone doesn't give, as a bias: for scores into which a part was written."""
    assert trail.rewritten is not None
    if trail.after or trail.sinks:
        raise Lost("a part of its scores is written into")
    beta = math.prod(doing.number for doing in trail.before if doing.kind == "times" and doing.tensor is None)
    kept = order.bring([order.rows, order.keys], trail.softmax_axes, trail.rewritten)
    return beta, kept - beta * (q.to(kept.dtype) @ share_heads(k, q.shape[1]).to(kept.dtype).mT)


def _state_rule(trail: Trail, order: Order) -> tuple[float, Tensor | rules.Rule | None]:
    """β and a mask, where that says it all; else β and a rule."""

    def placed(doing: Doing) -> Tensor | None:
        if doing.tensor is None or doing.kind == "mix":
            return None
        return order.bring([order.rows, order.keys], doing.axes, doing.tensor.detach())

    doings = [(doing, placed(doing)) for doing in trail.before]
    bars = _tell_bars(doings)
    beta, bias, barred, steps = 1.0, None, None, []
    for i, (doing, tensor) in enumerate(doings):
        if doing.kind == "plus" and tensor is not None and tensor.shape[-1] == 1 and not _is_felt(trail, i):
            continue
        if not steps and doing.kind == "times" and tensor is None and (barred is None or doing.number > 0):
            beta *= doing.number
            bias = bias if bias is None else bias * doing.number
        elif doing.kind == "plus" and tensor is not None and _swallows(tensor * doing.number, trail.dtype):
            steps += [*_steps_of(bias, barred), rules.Plus(tensor * doing.number, trail.dtype)]
            bias = barred = None
        elif not steps and doing.kind == "plus" and tensor is not None:
            tensor = tensor * doing.number if doing.number != 1 else tensor
            bias = tensor if bias is None else bias + tensor
        elif not steps and bars[i] and tensor is not None:
            barred = tensor if barred is None else barred | tensor
        else:
            steps += [*_steps_of(bias, barred), _step(doing, tensor)]
            bias = barred = None
    after = tuple(_step(doing, placed(doing)) for doing in trail.after)
    sinks = None
    if trail.sinks is not None:
        sinks = order.bring([order.rows, trail.sinks.own], trail.sinks.axes, trail.sinks.scores.detach())
    if steps or after or sinks is not None:
        return beta, rules.Rule((*steps, *_steps_of(bias, barred)), after, sinks)
    if barred is None:
        return beta, bias
    return beta, ~barred if bias is None else bias.masked_fill(barred, -math.inf)


def _is_felt(trail: Trail, i: int) -> bool:
    """Whether a bias that is the same for all keys makes a difference: if what follows isn't linear."""
    later = trail.before[i + 1 :]
    return trail.sinks is not None or any(other.kind in ("apply", "mix", "fill") for other in later)


def _swallows(bias: Tensor, dtype: torch.dtype) -> bool:
    """Whether the scores of a whole row are rounded away beside a bias, so that the row is spread evenly.

    One that rounds them, but not away, leaves what can't be computed anew.
    """
    if dtype == torch.float64 or bias.shape[-1] == 1:
        return False
    highest = bias.amax(-1)
    highest = highest[(highest < -1e5) & (highest > -1e30)]
    if not highest.numel():
        return False
    if torch.finfo(dtype).eps * -float(highest.max()) < 50:
        raise Lost("a whole row of its mask lies so low that of its scores little is left but rounding")
    return True


def _tell_bars(doings: list[tuple[Doing, Tensor | None]]) -> list[bool]:
    """For each of the doings whether it fills in a value that is the same as not allowing.

    A finite one isn't where something later could lift it again, or where a whole row lies that low: such a row spreads
    its attention evenly over what was filled in.
    """

    def lifts(doing: Doing) -> bool:
        return doing.kind in ("apply", "mix") or (
            doing.kind == "times" and (doing.tensor is not None or doing.number <= 0)
        )

    low, finite = None, False
    for doing, tensor in doings:
        if tensor is not None and doing.kind == "fill" and doing.number <= LOW:
            low, finite = tensor if low is None else low | tensor, finite or doing.number > -math.inf
        elif tensor is not None and doing.kind == "plus" and tensor.dtype != torch.bool:
            under = tensor * doing.number <= LOW
            low = under if low is None else low | under
    finite_bars = finite and low is not None and not bool(low.all(-1).any())
    return [
        doing.kind == "fill"
        and (
            doing.number == -math.inf
            or (doing.number <= LOW and finite_bars and not any(lifts(later) for later, _ in doings[i + 1 :]))
        )
        for i, (doing, _) in enumerate(doings)
    ]


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
