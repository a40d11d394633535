"""Which attention reads which, found by following the data: the tokens of a tensor, and what they were made from.

A tensor that passes through a model carries its axes along (`axes.py`): a linear map changes its features, a reshape
splits or joins axes, a sum of two keeps the tokens of both. So the queries and keys of an attention are known as tokens
of this stream or that, of one window or of all, and not by their number. Beside them goes what the tensor depends on:
the inputs of the model and the attentions before it.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_leaves_with_path

from pellucid.watching import axes as layout
from pellucid.watching.axes import Atom, Axes, Axis, find_order, fresh, leaves

Kind = Literal["self", "cross", "windows", "channels"]
ROOM = 4096  # tensors that are known before those that are gone are looked for


@dataclass(slots=True, eq=False)
class Flow:
    """What is known of one tensor: its axes, and the inputs and attentions it depends on, one bit each."""

    axes: Axes
    sources: int


@dataclass(frozen=True, eq=False)
class Reading:
    """What one attention reads.

    self: queries and keys are the same tokens, the keys of earlier steps beside them where there is a cache.
    cross: the keys are other tokens.
    windows: queries and keys are the tokens of one window; the windows lie in the batch.
    channels: it attends to features and not to tokens.
    """

    kind: Kind
    number: int
    tokens: frozenset[Atom]
    """Those of the queries, in all windows: attentions with the same belong to one tower. None if they aren't known."""
    queries: int
    """What the queries depend on, one bit for each input and attention."""
    keys: int
    places: Int[Tensor, "windows q"] | None = None
    """Which token of the whole stands at each place of each window, row by row; −1 where there is only padding.

    The windows lie in the batch, those of one input after each other. None where there are none, or it isn't known.
    """


@dataclass(frozen=True, eq=False)
class Moved:
    """An axis that was rolled or padded: what it was, and by how much it was rolled."""

    axis: Axis
    shift: int


@dataclass(frozen=True, eq=False)
class Taken:
    """Neighbours that were taken out of an axis: which axis, and from where."""

    axis: Axis
    start: int


class Streams:
    """Knows where the tensors that are alive come from."""

    def __init__(self, names: list[str]):
        self.names = names  # of the sources: inputs, and attentions as they come
        self._known: dict[int, tuple[weakref.ref, Flow]] = {}
        self._room = ROOM
        self._joined: dict[Atom, set[Atom]] = {}
        self._made: dict[tuple, Axis] = {}  # the same tokens rolled or padded alike in every layer are the same again
        self._moved: dict[Atom, Moved] = {}
        self._taken: dict[Atom, Taken] = {}

    def enter(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """The model is called: its inputs are where everything comes from."""
        for path, x in tree_leaves_with_path((tuple(args), kwargs)):
            name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path[1:])
            if isinstance(x, Tensor) and not x.is_nested and id(x) not in self._known:
                batch = fresh(x.shape[0], "batch") if x.ndim else ()
                rest = [fresh(n, "token") for n in x.shape[1:]]
                if x.ndim == 3 and x.is_floating_point():
                    rest[-1] = fresh(x.shape[-1], "feature")
                elif x.ndim > 3 and x.is_floating_point() and min(x.shape[1], x.shape[-1]) <= 4:  # a picture's colours
                    place = 0 if x.shape[1] <= 4 else -1
                    rest[place] = fresh(x.shape[1:][place], "feature")
                self._keep(x, Flow((batch, *rest) if x.ndim else (), self._source(name)))

    def _source(self, name: str) -> int:
        self.names.append(name)
        return 1 << (len(self.names) - 1)

    def _keep(self, x: Tensor, flow: Flow) -> None:
        """Entries of tensors that are gone stay until there are many: a callback for each would cost more."""
        if len(self._known) >= self._room:
            self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
            self._room = max(ROOM, 2 * len(self._known))
        self._known[id(x)] = weakref.ref(x), flow

    def _flow(self, x: Any) -> Flow | None:
        entry = self._known.get(id(x))
        return None if entry is None or entry[0]() is not x else entry[1]

    def see(self, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        """One call and what came out."""
        known = self._known
        flows: list[tuple[Tensor, Flow]] = []
        sources = 0
        for x in args:
            if (entry := known.get(id(x))) is not None:
                if entry[0]() is x:
                    flows.append((x, entry[1]))
                    sources |= entry[1].sources
            elif type(x) in (tuple, list):
                for y in x:
                    if (flow := self._flow(y)) is not None:
                        flows.append((y, flow))
                        sources |= flow.sources
        if not flows:
            return
        if any(x.is_nested for x, _ in flows) or (isinstance(out, Tensor) and out.is_nested):
            if name in RAGGED:
                self._keep(out, Flow(flows[0][1].axes, sources))
            return  # the axes of others have no sizes
        if isinstance(out, Tensor):
            x, flow = flows[0] if len(flows) == 1 else self._main(flows, out)
            axes = self._follow(name, x, flow.axes, args, kwargs, out, flows)
            self._keep(out, flow if axes is flow.axes and sources == flow.sources else Flow(axes, sources))
        elif isinstance(out, (tuple, list)):
            x, flow = flows[0]
            start = 0
            for part in out:
                if isinstance(part, Tensor):
                    axes = self._split(flow.axes, x.shape, part.shape, start, name, args, kwargs)
                    start += part.shape[_dim_of(name, args, kwargs, part.ndim)] if name in SPLITS else 0
                    self._keep(part, Flow(axes, sources))
        elif name == "setitem" and isinstance(args[0], Tensor):
            flow = self._flow(args[0])
            axes = flow.axes if flow is not None else _new(args[0].shape)
            self._keep(args[0], Flow(axes, sources))

    def _main(self, flows: list[tuple[Tensor, Flow]], out: Tensor) -> tuple[Tensor, Flow]:
        """Of several tensors the one whose tokens the result has: of its shape, and the one that depends on least.

        That is the residual stream, where something that was made from it is added to it.
        """
        shaped = [pair for pair in flows if pair[0].shape == out.shape]
        return min(shaped or flows[:1], key=lambda pair: pair[1].sources.bit_count())

    def _follow(
        self, name: str, x: Tensor, axes: Axes, args: tuple, kwargs: dict, out: Tensor, flows: list[tuple[Tensor, Flow]]
    ) -> Axes:
        if name not in FOLLOWED and out.shape == x.shape:
            return axes
        if name in RESHAPES:
            return layout.reshape(axes, out.shape) or _new(out.shape, axes)
        if name in PERMUTES:
            order = find_order(name, x.ndim, [*args[1:], *kwargs.values()])
            return tuple(axes[d] for d in order)
        if name == "getitem":
            return self._index(axes, x.shape, args[1], out.shape)
        if name == "cat":
            return self._join(axes, x.shape, args, kwargs, out, flows)
        if name == "pad" and out.ndim == len(axes):
            return tuple(
                axis if n == m else self._move(axis, m) for axis, n, m in zip(axes, x.shape, out.shape, strict=True)
            )
        if name == "roll":
            return self._roll(axes, args, kwargs)
        if name == "embedding" and out.ndim == x.ndim + 1:  # looked up twice, the same words are tokens of two streams
            return (*axes[:1], *(fresh(n, "token") for n in out.shape[1:-1]), fresh(out.shape[-1], "feature"))
        if name == "view_as_complex":
            return axes[:-1]
        if name == "view_as_real":
            return (*axes, ())
        if name in PRODUCTS and out.shape[:-1] == x.shape[:-1]:
            return (*axes[:-1], fresh(out.shape[-1], "feature" if x.ndim < 4 or name == "linear" else ""))
        if (
            name == "conv1d" and out.ndim == len(axes) == 3
        ):  # over (b d t): with as many tokens as before they are these
            tokens = axes[2] if out.shape[2] == x.shape[2] and _kind_of(axes[2]) else fresh(out.shape[2], "token")
            return (axes[0], fresh(out.shape[1], "feature"), tokens)
        if out.shape == x.shape and name not in MOVES:
            return axes
        if out.ndim == 4 and x.ndim == 4 and "conv" in name:
            if out.shape[2:] == x.shape[2:] and len(axes) == 4 and all(map(_kind_of, axes[2:])):
                return (axes[0], fresh(out.shape[1], "feature"), *axes[2:])
            return (axes[0], fresh(out.shape[1], "feature"), *(fresh(n, "token") for n in out.shape[2:]))
        if out.ndim in (x.ndim, x.ndim - 1) and name not in MOVES:
            return _cut(axes, x.shape, out.shape, name, args, kwargs)
        return _new(out.shape, axes)

    def _roll(self, axes: Axes, args: tuple, kwargs: dict) -> Axes:
        shifts, dims = [*args[1:], *(kwargs[key] for key in ("shifts", "dims") if key in kwargs)]
        rolled = list(axes)
        for shift, dim in zip(*((x,) if isinstance(x, int) else x for x in (shifts, dims)), strict=True):
            old = leaves(rolled[dim])
            back = next((m for a, m in self._moved.items() if leaves((a,)) == old and m.shift == -shift), None)
            rolled[dim] = back.axis if back is not None else self._move(rolled[dim], layout.size_of(old), shift)
        return tuple(rolled)

    def _move(self, axis: Axis, size: int, shift: int = 0) -> Axis:
        """The axis rolled by so much, or padded to this size."""
        old = tuple(leaves(axis))
        kind = old[0].kind if old else ""
        made = self._made.setdefault((old, size, shift), fresh(size, kind))
        for atom in made:
            self._moved.setdefault(atom, Moved(axis, shift))
        return made

    def _coordinates(self, atom: Atom) -> tuple[Atom, Tensor]:
        """Where each place of an axis lay before it was rolled and padded, and the axis that it was; −1 for padding."""
        here = torch.arange(atom.size)
        while (moved := self._moved.get(atom)) is not None:
            parts = leaves(moved.axis)
            whole = layout.whole_of(parts[0], parts)
            if leaves((whole,)) != parts:
                break
            here = torch.where(here < 0, here, (here - moved.shift) % atom.size)
            here = here.where(here < whole.size, -1)
            atom = whole
        return atom, here

    def _place(self, rows: list[Atom], windows: list[Atom]) -> Tensor | None:
        """Which token stands at each place of each window: from the axes that were split into windows."""
        among = {*rows, *windows}
        roots = sorted({layout.whole_of(atom, among) for atom in among}, key=lambda atom: atom.serial)
        number, padding = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.bool)
        for root in roots:
            whole, here = self._coordinates(root)
            placed = layout.arrange(here, ((root,),), [windows, rows])
            padding = padding | (placed < 0)
            number = number * whole.size + placed
        return number.masked_fill(padding, -1)

    def _join(
        self, axes: Axes, shape: Sequence[int], args: tuple, kwargs: dict, out: Tensor, flows: list[tuple[Tensor, Flow]]
    ) -> Axes:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.ndim
        if len(axes) != out.ndim:
            return _new(out.shape, axes)
        if (whole := self._rejoin(dim, args[0] if args else kwargs["tensors"], out)) is not None:
            return (*axes[:dim], whole, *axes[dim + 1 :])
        old = leaves(axes[dim])
        kind = old[0].kind if old else "token" if dim == out.ndim - 2 else ""
        made = fresh(out.shape[dim], kind)
        for atom in made:
            self._joined[atom] = {a for _, flow in flows if len(flow.axes) == out.ndim for a in leaves(flow.axes[dim])}
            for part in tuple(self._joined[atom]):
                self._joined[atom] |= self._joined.get(part, set())
        return (*axes[:dim], made, *axes[dim + 1 :])

    def _rejoin(self, dim: int, parts: Sequence[Tensor], out: Tensor) -> Axis | None:
        """The axis that these parts were taken out of, each where it was: positions may be given to some of them."""
        whole: Axis | None = None
        start = 0
        for part in parts:
            flow = self._flow(part)
            if flow is None or len(flow.axes) != out.ndim:
                return None
            old = leaves(flow.axes[dim])
            taken = self._taken.get(old[0]) if len(old) == 1 else None
            if taken is not None and taken.start == start and whole in (None, taken.axis):
                whole = taken.axis
            elif old:  # one token alone can't be told from another
                return None
            start += part.shape[dim]
        return whole if whole is not None and layout.size_of(leaves(whole)) == start else None

    def _take(self, axis: Axis, start: int, size: int) -> Axis:
        """Neighbours of an axis; the same ones are the same again."""
        old = tuple(leaves(axis))
        if not old or size == layout.size_of(old):
            return axis
        made = self._made.setdefault((old, "taken", start, size), fresh(size, old[0].kind))
        for atom in made:
            self._taken.setdefault(atom, Taken(old, start))
        return made

    def _split(
        self, axes: Axes, old: Sequence[int], new: Sequence[int], start: int, name: str, args: tuple, kwargs: dict
    ) -> Axes:
        if name not in SPLITS or len(axes) != len(old):
            return _cut(axes, old, new, name, args, kwargs)
        dim = _dim_of(name, args, kwargs, len(old))
        return (*axes[:dim], self._take(axes[dim], start, new[dim]), *axes[dim + 1 :])

    def _index(self, axes: Axes, shape: Sequence[int], index: Any, out: Sequence[int]) -> Axes:
        index = list(index) if isinstance(index, tuple) else [index]
        if any(isinstance(item, Tensor | list) for item in index):
            return _new(out, axes)
        taken = sum(item is not None and item is not Ellipsis for item in index)
        if Ellipsis in index:
            place = index.index(Ellipsis)
            index[place : place + 1] = [slice(None)] * (len(shape) - taken)
        made: list[Axis] = []
        d = 0
        for item in [*index, *[slice(None)] * (len(shape) - taken)]:
            if item is None:
                made.append(())
            elif d < len(shape):
                if isinstance(item, slice):
                    chosen = range(*item.indices(shape[d]))
                    axis = axes[d] if d < len(axes) else ()
                    near = chosen.step == 1 and layout.size_of(leaves(axis)) == shape[d]
                    kept = self._take(axis, chosen.start, len(chosen)) if near else fresh(len(chosen), _kind_of(axis))
                    made.append(kept)
                d += 1
        return tuple(made) if len(made) == len(out) else _new(out, axes)

    # Attention.

    def read(self, name: str, q: Tensor, k: Tensor, out: Tensor, dims: Sequence[Sequence[int]]) -> Reading | None:
        """What an attention reads, if that is known; what comes out of it is made of the queries' tokens."""
        bit = self._source(name)
        if any(x.is_nested for x in (q, k, out)):
            return self._read_ragged(q, k, out, bit)
        ours, read = self._flow(q), self._flow(k)
        if ours is None and read is not None:  # made of nothing that came in: learned
            ours = Flow(_new(q.shape), 0)
        if read is None and ours is not None:
            read = Flow(_new(k.shape), 0)
        known = [flow for flow in (ours, read, self._flow(out)) if flow is not None]
        sources = bit
        for flow in known:
            sources |= flow.sources
        q_dims, k_dims, out_dims = dims
        axes = _new(out.shape)
        if ours is not None and len(ours.axes) == q.ndim:
            same = dict(enumerate(ours.axes))
            axes = tuple(
                same[q_dims[out_dims.index(d)]]
                if d in out_dims and len(out_dims) == len(q_dims)
                else same[d]
                if d not in out_dims and d < q.ndim and d not in q_dims and size == q.shape[d] and d != out.ndim - 1
                else fresh(size, "feature" if d == out.ndim - 1 else "")
                for d, size in enumerate(out.shape)
            )
        self._keep(out, Flow(axes, sources))
        if ours is None or read is None or len(ours.axes) != q.ndim or len(read.axes) != k.ndim:
            return None
        mine = [atom for d in q_dims for atom in leaves(ours.axes[d])]
        theirs = [atom for d in k_dims for atom in leaves(read.axes[d])]
        lead = [atom for d, axis in enumerate(ours.axes[:-1]) if d not in q_dims for atom in leaves(axis)]
        windows = [atom for atom in lead if atom.kind == "token"]
        tokens = frozenset(mine if all(atom.kind for atom in mine) else ())
        if windows and tokens:  # however they were rolled and padded
            among = {*mine, *windows}
            tokens = frozenset(self._coordinates(layout.whole_of(atom, among))[0] for atom in among)
        kind = self._kind(mine, theirs, windows, ours.sources == read.sources)
        places = self._place(mine, windows) if kind == "windows" else None
        return Reading(kind, len(self.names) - 1, tokens, ours.sources, read.sources, places)

    def _read_ragged(self, q: Tensor, k: Tensor, out: Tensor, bit: int) -> Reading | None:
        """Of sentences of several lengths in one tensor, as PyTorch's encoder packs them: it has their axes padded."""
        flow = self._flow(q)
        if flow is None or q is not k or len(flow.axes) != 3:
            return None
        self._keep(out, Flow(flow.axes, flow.sources | bit))
        tokens = frozenset(leaves(flow.axes[1]))
        return Reading("self", len(self.names) - 1, tokens, flow.sources, flow.sources)

    def _kind(self, mine: list[Atom], theirs: list[Atom], windows: list[Atom], is_from_the_same: bool) -> Kind:
        if mine and all(atom.kind == "feature" for atom in mine):
            return "channels"
        cached = any(set(mine) <= self._joined.get(atom, set()) for atom in theirs)
        told_apart = mine != theirs and all(atom.kind for atom in (*mine, *theirs))
        if not cached and (not is_from_the_same or told_apart):
            return "cross"
        return "windows" if windows else "self"


def _new(shape: Sequence[int], axes: Axes = ()) -> Axes:
    """Axes of which nothing is known, but that the batch stays first."""
    rest = tuple(fresh(n) for n in shape)
    same = shape and axes and layout.size_of(leaves(axes[0])) == shape[0]
    return (axes[0], *rest[1:]) if same else rest


def _kind_of(axis: Axis) -> str:
    return next((atom.kind for atom in leaves(axis)), "")


def _cut(axes: Axes, old: Sequence[int], new: Sequence[int], name: str, args: tuple, kwargs: dict) -> Axes:
    """Parts of a tensor: what kept its size is what it was."""
    if len(old) == len(new) == len(axes):
        kinds = map(_kind_of, axes)
        return tuple(axis if n == m else fresh(m, kind) for axis, n, m, kind in zip(axes, old, new, kinds, strict=True))
    if len(new) == len(old) - 1 and len(axes) == len(old):
        dim = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else 0) % len(old)
        return tuple(axis for d, axis in enumerate(axes) if d != dim)
    return _new(new, axes)


def _dim_of(name: str, args: tuple, kwargs: dict, ndim: int) -> int:
    """The axis that a split is along."""
    return kwargs.get("dim", args[2] if len(args) > 2 else 0) % ndim


RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"})
PERMUTES = frozenset(
    {"transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "mT", "mH", "adjoint", "t", "T", "H"}
)
PRODUCTS = frozenset({"linear", "matmul", "bmm", "einsum", "baddbmm", "mm", "addmm"})
MOVES = frozenset({"gather", "index_select", "take_along_dim", "sort", "flip", "conv1d", "conv2d", "conv3d"})
SPLITS = frozenset({"split", "chunk", "tensor_split", "split_with_sizes"})
RAGGED = frozenset({"_nested_tensor_from_mask", "to_padded_tensor"})
# Of which more is to be said than that what kept its shape kept its axes.
FOLLOWED = RESHAPES | PERMUTES | PRODUCTS | MOVES | {"getitem", "cat", "pad", "roll", "view_as_complex", "view_as_real"}
