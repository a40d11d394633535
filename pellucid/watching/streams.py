"""Which attention reads which, found by following the data: the tokens of a tensor, and what they were made from.

A tensor that passes through a model carries its axes along (`axes.py`): a linear map changes its features, a reshape
splits or joins axes, a sum of two keeps the tokens of both. So the queries and keys of an attention are known as tokens
of this stream or that, of one window or of all, and not by their number. Beside them goes what the tensor depends on:
the inputs of the model and the attentions before it.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    windows: int = 1
    """How many of them lie in the batch for each input."""
    grids: "tuple[Grid | None, Grid | None]" = (None, None)
    """How the queries and the keys lie on a picture; None if it isn't known that they do."""


@dataclass(frozen=True)
class Grid:
    """Tokens that lie on a picture, rows by columns, those from `first` on; no rows if they were moved and on none."""

    rows: int
    columns: int
    first: int = 0
    in_order: bool = True
    """Whether they follow row by row; if not, `Reading.places` may say which is which."""


@dataclass(frozen=True, eq=False)
class Moved:
    """An axis that was rolled, turned or padded: what it was, and which of its places stands where; −1 for padding."""

    axis: Axis
    places: tuple[int, ...]


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
        self._made: dict[tuple, Axis] = {}  # the same tokens moved alike in every layer are the same again
        self._moved: dict[Atom, Moved] = {}
        self._taken: dict[Atom, Taken] = {}
        self._mixed: set[Atom] = set()  # parts of one axis, joined in another order
        self._found: dict[Axis, list[Taken]] = {}  # in which axes these stand, as what was taken or joined
        self._sides: dict[Atom, int] = {}  # of a picture: 0 for its rows, 1 for its columns
        self._parts: dict[Atom, list[tuple[int, Axis]]] = {}  # what was joined to one axis, in order
        self._is_picture = False  # whether one came in: only what is followed to its sides lies on it
        self._entered: set[Atom] = set()  # axes of the inputs, of which only their number and order are known

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
                    if x.ndim == 4:
                        sides = rest[1:] if place == 0 else rest[:-1]
                        self._is_picture = True
                        self._sides |= {atom: side for side, axis in enumerate(sides) for atom in axis}
                self._entered.update(atom for axis in rest for atom in axis)
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

    def knows(self, x: Any) -> bool:
        """Whether it was made of what came in, and not of weights alone."""
        return self._flow(x) is not None

    def exchange(self, old: Tensor, new: Tensor) -> None:
        """What takes the place of a tensor has its axes."""
        if (flow := self._flow(old)) is not None:
            self._keep(new, flow)

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
        is_tensor = isinstance(out, Tensor)
        is_ragged = is_tensor and out.is_nested
        for x, _ in flows:
            is_ragged = is_ragged or x.is_nested
        if is_ragged:
            if name in RAGGED:
                self._keep(out, Flow(flows[0][1].axes, sources))
            return  # the axes of others have no sizes
        if is_tensor:
            x, flow = flows[0] if len(flows) == 1 else self._main(flows, out)
            if out is x and len(flows) == 1:  # dropout that drops nothing
                return
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
        shaped = [pair for pair in flows if pair[0].shape == out.shape] or flows[:1]
        least = min(pair[1].sources.bit_count() for pair in shaped)
        near = [pair for pair in shaped if pair[1].sources.bit_count() == least]
        return near[0] if len(near) == 1 else min(near, key=lambda pair: self._is_moved(pair[1].axes))

    def _is_moved(self, axes: Axes) -> bool:
        """Whether its tokens are others', moved: of a sum of each token and the one before it, they are none."""
        return any(atom in self._moved or atom in self._taken for axis in axes for atom in axis)

    def _follow(
        self, name: str, x: Tensor, axes: Axes, args: tuple, kwargs: dict, out: Tensor, flows: list[tuple[Tensor, Flow]]
    ) -> Axes:
        if name not in FOLLOWED and out.shape == x.shape:
            return axes
        if name in RESHAPES:
            return layout.reshape(axes, out.shape, anew=True) or _new(out.shape, axes)
        if name in PERMUTES:
            order = find_order(name, x.ndim, [*args[1:], *kwargs.values()])
            return tuple(axes[d] for d in order)
        if name == "getitem":
            return self._index(axes, x.shape, args[1], out.shape)
        if name == "cat":
            return self._join(axes, x.shape, args, kwargs, out, flows)
        if name == "pad" and out.ndim == len(axes):
            return self._pad(axes, x.shape, args, kwargs)
        if name in TURNS and len(axes) == x.ndim:
            return self._turn(name, axes, args, kwargs)
        if name == "narrow" and len(axes) == x.ndim:
            dim, start, size = [*args[1:], *(kwargs[key] for key in ("dim", "start", "length") if key in kwargs)]
            return _replaced(axes, dim, self._take(axes[dim], int(start) % max(x.shape[dim], 1), size))
        if name == "index_select" and x is args[0] and len(axes) == x.ndim:
            dim, index = [*args[1:], *(kwargs[key] for key in ("dim", "index") if key in kwargs)]
            return _replaced(axes, dim, self._choose(axes[dim], index, out.shape[dim]))
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
            sides = axes[2:] if len(axes) == 4 else ((), ())
            if not any(self._side_of(leaves(axis)) is not None for axis in sides):  # of sounds, too: bands and times
                if self._is_picture:  # turned, cut or put in another order since
                    return (axes[0], fresh(out.shape[1], "feature"), *(fresh(n, "token") for n in out.shape[2:]))
                plane = [fresh(n, "token") for n in out.shape[2:]]
                self._sides |= {atom: side for side, axis in enumerate(plane) for atom in axis}
                return (axes[0], fresh(out.shape[1], "feature"), *plane)
            return (axes[0], fresh(out.shape[1], "feature"), *map(self._resize, sides, out.shape[2:], ("token",) * 2))
        if out.ndim in (x.ndim, x.ndim - 1) and name not in MOVES:
            return self._cut(axes, x.shape, out.shape, name, args, kwargs)
        return _new(out.shape, axes)

    def _resize(self, axis: Axis, size: int, kind: str = "") -> Axis:
        """An axis of another size in the place of this one: what was a side of a picture is one, coarser or finer."""
        made = fresh(size, kind or _kind_of(axis))
        side = self._side_of(leaves(axis))
        if side is not None and self._covers(axis, layout.size_of(leaves(axis)) / max(size, 1)):
            self._sides |= dict.fromkeys(made, side)
        return made

    def _covers(self, axis: Axis, cell: float) -> bool:
        """Whether all of a side lies there as it came in; what was cut off or padded before it is less than a cell."""
        whole = layout.wholes(axis)
        if len(whole) != 1:
            return all(map(self._is_whole, whole))
        root, here = self._coordinates(whole[0], taken=True)
        inside = [place for place in here if place >= 0]
        if not inside or not self._is_whole(root) or inside != [*range(inside[0], inside[-1] + 1)]:
            return False
        return max(inside[0], root.size - 1 - inside[-1], here.index(inside[0])) < cell

    def _is_whole(self, root: Atom) -> bool:
        """Whether it is no part of something that was cut, or moved otherwise than by padding behind it."""
        origin = layout.origin_of(root)
        moved = self._moved.get(origin)
        return origin not in self._taken and (
            moved is None or all(place in (i, -1) for i, place in enumerate(moved.places))
        )

    def _side_of(self, atoms: Sequence[Atom]) -> int | None:
        """Which side of a picture they all count; None if none, or not one alone."""
        sides = {self._sides.get(layout.origin_of(self._coordinates(atom)[0])) for atom in atoms}
        return sides.pop() if len(sides) == 1 else None

    def _cut(self, axes: Axes, old: Sequence[int], new: Sequence[int], name: str, args: tuple, kwargs: dict) -> Axes:
        """Parts of a tensor: what kept its size is what it was."""
        if len(old) == len(new) == len(axes):
            every = zip(axes, old, new, strict=True)
            return tuple(axis if n == m else self._resize(axis, m) for axis, n, m in every)
        if len(new) == len(old) - 1 and len(axes) == len(old):
            dim = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else 0) % len(old)
            return tuple(axis for d, axis in enumerate(axes) if d != dim)
        return _new(new, axes)

    def _grid(self, atoms: Sequence[Atom]) -> Grid | None:
        """How tokens of these axes lie on a picture, other tokens beside them."""
        joined = self._parts.get(atoms[0]) if len(atoms) == 1 else None
        if not self._mixed.isdisjoint(atoms):
            return Grid(0, layout.size_of(atoms), in_order=False)
        if joined is not None:
            sizes = [size for size, _ in joined]
            found = [(i, grid) for i, (_, axis) in enumerate(joined) if (grid := self._grid(leaves(axis))) is not None]
            if len(found) != 1:
                return None
            i, grid = found[0]
            return replace(grid, first=grid.first + sum(sizes[:i]))
        found = [self._coordinates(atom) for atom in layout.wholes(atoms)]
        roots = [root for root, _ in found]
        sides = [side for root in roots if (side := self._side_of([root])) is not None]
        if len(roots) == 1 and not sides and roots[0] not in atoms and sorted(found[0][1]) == [*range(roots[0].size)]:
            return Grid(0, roots[0].size, in_order=False)
        if len(sides) < len(roots) or {*sides} != {0, 1} or not all(map(self._is_whole, roots)):
            return None
        rows, columns = (math.prod(r.size for r, s in zip(roots, sides, strict=True) if s == side) for side in (0, 1))
        places = [(side, layout.path_of(root)) for root, side in zip(roots, sides, strict=True)]
        in_order = places == sorted(places) and all(here == [*range(root.size)] for root, here in found)
        return Grid(rows, columns, in_order=in_order)

    def _pad(self, axes: Axes, old: Sequence[int], args: tuple, kwargs: dict) -> Axes:
        pads = list(args[1] if len(args) > 1 else kwargs["pad"])
        padded = list(axes)
        for i, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
            axis, start, stop = axes[-i], max(-before, 0), old[-i] - max(-after, 0)
            kept = self._take(axis, start, stop - start)
            places = [*[-1] * before, *range(stop - start), *[-1] * after]
            padded[-i] = made = self._move(kept, places)
            if len(layout.wholes(kept)) > 1 and len(made) == 1 and made != kept:  # all patches, and a token beside them
                self._parts[made[0]] = [(max(before, 0), ()), (stop - start, kept), (max(after, 0), ())]
        return tuple(padded)

    def _turn(self, name: str, axes: Axes, args: tuple, kwargs: dict) -> Axes:
        """Rolled, mirrored, or turned by right angles."""
        turned = list(axes)
        given: list[Any] = [*args[1:], *(kwargs[key] for key in ("shifts", "k", "dims") if key in kwargs)]
        if name == "roll":
            if len(given) < 2 or not (isinstance(given[1], int) or given[1]):  # over all axes as one
                return _new([layout.size_of(leaves(axis)) for axis in axes])
            for shift, dim in zip(*((x,) if isinstance(x, int) else x for x in given[:2]), strict=True):
                n = layout.size_of(leaves(turned[dim]))
                turned[dim] = self._move(turned[dim], [(i - shift) % n for i in range(n)])
            return tuple(turned)
        k, plane = 0, [0, 1]
        if name == "rot90":
            k = given.pop(0) % 4 if given and isinstance(given[0], int) else 1
            plane = given[-1] if given else plane
            mirrored = ((), plane[1:], plane, plane[:1])[k]
        else:
            named = {"fliplr": [1], "flipud": [0]}.get(name) or given
            mirrored = named[0] if isinstance(named[0], tuple | list) else named
        for dim in mirrored:
            turned[dim] = self._move(turned[dim], range(layout.size_of(leaves(turned[dim])))[::-1])
        if k % 2:
            turned[plane[0]], turned[plane[1]] = turned[plane[1]], turned[plane[0]]
        return tuple(turned)

    def _choose(self, axis: Axis, index: Any, size: int) -> Axis:
        """What an index picks: the same axis in another order, if a list of all of it says so; else others."""
        n = layout.size_of(leaves(axis))
        if isinstance(index, list) and sorted(places := [i % n for i in index]) == [*range(n)]:
            return self._move(axis, places)
        return fresh(size, _kind_of(axis))

    def _move(self, axis: Axis, places: Sequence[int]) -> Axis:
        """The axis with these of its places, one after the other; moved back, it is what it was."""
        base = tuple(layout.wholes(axis))
        if len(base) == 1 and (moved := self._moved.get(base[0])) is not None:
            base, places = tuple(layout.wholes(moved.axis)), [-1 if i < 0 else moved.places[i] for i in places]
        places = tuple(places)
        if places == (*range(layout.size_of(base)),):
            return base
        made = self._made.setdefault((base, places), fresh(len(places), _kind_of(base)))
        for atom in made:
            self._moved.setdefault(atom, Moved(base, places))
            if (side := self._side_of(base)) is not None:
                self._sides[atom] = side
        return made

    def _coordinates(self, atom: Atom, *, taken: bool = False) -> tuple[Atom, list[int]]:
        """Where each place of an axis lay before it was moved, and the axis that it was; −1 for padding.

        taken: before it was taken out of another, too.
        """
        here = [*range(atom.size)]
        while True:
            moved, cut = self._moved.get(atom), self._taken.get(atom) if taken else None
            before = moved or cut
            parts = [] if before is None else layout.wholes(before.axis)
            if len(parts) != 1:
                return atom, here
            start = 0 if cut is None else cut.start
            here = [i if i < 0 else i + start if moved is None else moved.places[i] for i in here]
            atom = parts[0]

    def _place(self, rows: list[Atom], windows: list[Atom]) -> Tensor | None:
        """Which token stands at each place of each window: from the axes that were split into windows."""
        among = {*rows, *windows}
        roots = sorted({layout.whole_of(atom, among) for atom in among}, key=self._order)
        if any(len(layout.wholes(self._moved[root].axis)) != 1 for root in roots if root in self._moved):
            return None  # rolled or padded, and of parts that are no whole
        number, padding = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.bool)
        for root in roots:
            whole, here = self._coordinates(root)
            placed = layout.arrange(torch.tensor(here), (tuple(layout.parts_of(root, among) or ()),), [windows, rows])
            padding = padding | (placed < 0)
            number = number * whole.size + placed
        return number.masked_fill(padding, -1)

    def _order(self, atom: Atom) -> tuple[int, tuple[int, ...]]:
        """Of a picture rows come before columns; else as the axes came."""
        return self._side_of([atom]) or 0, layout.path_of(self._coordinates(atom)[0])

    def _join(
        self, axes: Axes, shape: Sequence[int], args: tuple, kwargs: dict, out: Tensor, flows: list[tuple[Tensor, Flow]]
    ) -> Axes:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.ndim
        if len(axes) != out.ndim:
            return _new(out.shape, axes)
        given = args[0] if args else kwargs["tensors"]
        again = self._rejoin(dim, given, out)
        if isinstance(again, tuple):
            return _replaced(axes, dim, again)
        if (turned := self._lay_behind(dim, [self._flow(part) for part in given])) is not None:
            return turned
        old = leaves(axes[dim])
        kind = old[0].kind if old else "token" if dim == out.ndim - 2 else ""
        made = fresh(out.shape[dim], kind)
        for atom in made:
            parts = [part for part in given if part.ndim == out.ndim]
            known = [self._flow(part) for part in parts]
            near = [flow.axes[dim] if flow and len(flow.axes) == out.ndim else () for flow in known]
            self._parts[atom] = [(part.shape[dim], axis) for part, axis in zip(parts, near, strict=True)]
            start = 0
            for size, axis in self._parts[atom] if again is None else ():
                self._found.setdefault(tuple(layout.wholes(axis)), []).append(Taken(made, start))
                start += size
            if again is False:
                self._mixed.add(atom)
            self._joined[atom] = {a for _, flow in flows if len(flow.axes) == out.ndim for a in leaves(flow.axes[dim])}
            for part in tuple(self._joined[atom]):
                self._joined[atom] |= self._joined.get(part, set())
        return (*axes[:dim], made, *axes[dim + 1 :])

    def _rejoin(self, dim: int, parts: Sequence[Tensor], out: Tensor) -> Axis | Literal[False] | None:
        """The axis that these parts were taken out of or joined to: positions may be given to some of them.

        None if there is no such axis, False if they stand in another order than they did, and it isn't known in which.
        """
        stood: list[tuple[int, Axis]] = []  # from where on, and what
        start = 0
        for part in parts:
            flow = self._flow(part)
            if flow is None or len(flow.axes) != out.ndim:
                return None
            if old := tuple(layout.wholes(flow.axes[dim])):  # one token alone can't be told from another
                stood.append((start, old))
            start += part.shape[dim]
        for whole in self._found.get(stood[0][1], ()) if stood else ():
            same = all(
                any((t.axis, t.start) == (whole.axis, at) for t in self._found.get(old, ())) for at, old in stood
            )
            if same and layout.size_of(leaves(whole.axis)) == start:
                return whole.axis
        taken = [self._taken.get(old[0]) if len(old) == 1 else None for _, old in stood]
        if not taken or taken[0] is None or any(each is None or each.axis != taken[0].axis for each in taken):
            return None
        each = zip(taken, stood, strict=True)
        places = [i for t, (_, old) in each if t is not None for i in range(t.start, t.start + layout.size_of(old))]
        whole = taken[0].axis
        return self._move(whole, places) if sorted(places) == [*range(layout.size_of(whole))] else False

    def _lay_behind(self, dim: int, parts: Sequence[Flow | None]) -> Axes | None:
        """Axes of which one was cut into these equal parts, each of which was laid behind the other along another."""
        every = [part.axes for part in parts if part is not None]
        if len(every) < max(2, len(parts)) or any(len(axes) != len(every[0]) for axes in every):
            return None
        places = [d for d, axis in enumerate(every[0]) if any(axes[d] != axis for axes in every)]
        if len(places) != 1 or places[0] == dim:
            return None
        cut = [self._taken.get(axes[places[0]][0]) if len(axes[places[0]]) == 1 else None for axes in every]
        size = layout.size_of(every[0][places[0]])
        if any(taken is None or taken.start != i * size for i, taken in enumerate(cut)):
            return None
        whole = {taken.axis for taken in cut if taken is not None}
        if len(whole) != 1 or (apart := layout.reshape(tuple(whole), (len(cut), size))) is None:
            return None
        turned = list(every[0])
        turned[places[0]], turned[dim] = apart[1], (*apart[0], *turned[dim])
        return tuple(turned)

    def _take(self, axis: Axis, start: int, size: int) -> Axis:
        """Neighbours of an axis; the same ones are the same again."""
        old = tuple(layout.wholes(axis))
        if not old or size == layout.size_of(old):
            return axis
        if len(old) == 1 and old[0] in self._moved:
            back = self._move(axis, range(start, start + size))
            if back == tuple(layout.wholes(self._moved[old[0]].axis)):  # what had been padded
                return back
        before = 0
        for count, part in self._parts.get(old[0], ()) if len(old) == 1 else ():
            if (before, count) == (start, size) and part:  # what had been joined
                return part
            before += count
        # One of the slowest part, and all of the rest.
        kind = old[len(old) > 1 and size <= layout.size_of(old[1:])].kind
        made = self._made.setdefault((old, "taken", start, size), fresh(size, kind))
        for atom in made:
            self._taken.setdefault(atom, Taken(old, start))
            self._found.setdefault(made, [Taken(old, start)])
            if (side := self._side_of(old)) is not None:
                self._sides[atom] = side
        return made

    def _split(
        self, axes: Axes, old: Sequence[int], new: Sequence[int], start: int, name: str, args: tuple, kwargs: dict
    ) -> Axes:
        if name not in SPLITS or len(axes) != len(old):
            return self._cut(axes, old, new, name, args, kwargs)
        dim = _dim_of(name, args, kwargs, len(old))
        return (*axes[:dim], self._take(axes[dim], start, new[dim]), *axes[dim + 1 :])

    def _index(self, axes: Axes, shape: Sequence[int], index: Any, out: Sequence[int]) -> Axes:
        index = list(index) if isinstance(index, tuple) else [index]
        many = [item for item in index if isinstance(item, Tensor | list)]
        if len(many) > 1 or any(not _is_row(item) for item in many):
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
                axis = axes[d] if d < len(axes) else ()
                if isinstance(item, slice):
                    chosen = range(*item.indices(shape[d]))
                    if layout.size_of(leaves(axis)) == shape[d]:
                        axis = self._take(axis, chosen.start, max(chosen.stop - chosen.start, 0))
                    near = layout.size_of(leaves(axis)) == len(chosen)
                    made.append(axis if near else self._resize(axis, len(chosen)))
                elif isinstance(item, Tensor | list):
                    made.append(self._choose(axis, item, len(item)))
                d += 1
        return tuple(made) if len(made) == len(out) else _new(out, axes)

    # Attention.

    def spread(self, x: Tensor) -> list[int]:
        """The axes of a tensor that are known to count tokens or inputs: no heads are among them."""
        flow = self._flow(x)
        if flow is None or len(flow.axes) != x.ndim:
            return []
        held = [leaves(axis) for axis in flow.axes]
        kinds = [{"" if atom in self._entered else atom.kind for atom in atoms} for atoms in held]
        return [d for d, each in enumerate(kinds) if "token" in each and each <= {"token", "batch"}]

    def part_heads(self, x: Tensor, dims: Sequence[int]) -> list[list[tuple[int, bool]]] | None:
        """Of each of these axes, none of which is the width, the sizes of its parts, and whether each counts heads.

        Heads are features that the model made; those that came with its inputs may be others, unless they stand last.
        None if there are no heads, or if what stands behind them isn't known.
        """
        flow = self._flow(x)
        if flow is None or len(flow.axes) != x.ndim or any(layout.size_of(flow.axes[d]) != x.shape[d] for d in dims):
            return None
        parts = [leaves(flow.axes[d]) for d in dims]
        every = [atom for atoms in parts for atom in atoms]
        features = [atom for atom in every if atom.kind == "feature"]
        heads = [atom for atom in features if layout.origin_of(atom) not in self._entered]
        if not heads and every[len(every) - len(features) :] == features:
            heads = features
        if not heads or any(not atom.kind for atom in every[every.index(heads[0]) :]):
            return None
        return [[(atom.size, atom in heads) for atom in atoms] for atoms in parts]

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
        if mine and all(atom.kind == "batch" for atom in mine):  # (t b d): the tokens came first
            windows = []
        among = {*mine, *windows}
        tokens = frozenset[Atom]()
        if all(atom.kind for atom in mine):  # however they were split, rolled and padded
            tokens = frozenset(self._coordinates(layout.whole_of(atom, among))[0] for atom in among)
        kind = self._kind(mine, theirs, windows, ours.sources == read.sources)
        grids = self._lie(mine, windows), None if windows else self._grid(theirs)
        if kind == "self" and grids[0] is not None and tokens.isdisjoint(layout.whole_of(a, among) for a in mine):
            kind = "windows"  # a single one, of tokens that were padded or rolled
        places = self._place(mine, windows) if kind == "windows" else None
        number, count = len(self.names) - 1, layout.size_of(windows)
        return Reading(kind, number, tokens, ours.sources, read.sources, places, count, grids)

    def _lie(self, mine: list[Atom], windows: list[Atom]) -> Grid | None:
        """How the queries lie on a picture; in windows, where the order is told by their places, all of them."""
        if not windows:
            return self._grid(mine)
        among = {*mine, *windows}
        return self._grid(sorted({layout.whole_of(atom, among) for atom in among}, key=self._order))

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


def _replaced(axes: Axes, dim: int, axis: Axis) -> Axes:
    """The axes with another one in the place of this."""
    return tuple(axis if d == dim % len(axes) else each for d, each in enumerate(axes))


def _is_row(index: Any) -> bool:
    """Whether an index names places of one axis, one by one."""
    if isinstance(index, Tensor):
        return index.ndim == 1 and index.dtype != torch.bool
    return all(type(i) is int for i in index)


def _kind_of(axis: Axis) -> str:
    return next((atom.kind for atom in leaves(axis)), "")


def _dim_of(name: str, args: tuple, kwargs: dict, ndim: int) -> int:
    """The axis that a split is along."""
    return kwargs.get("dim", args[2] if len(args) > 2 else 0) % ndim


RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"})
PERMUTES = frozenset(
    {"transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "mT", "mH", "adjoint", "t", "T", "H"}
)
PRODUCTS = frozenset({"linear", "matmul", "bmm", "einsum", "baddbmm", "mm", "addmm"})
TURNS = frozenset({"roll", "flip", "fliplr", "flipud", "rot90"})
MOVES = frozenset({"gather", "take_along_dim", "sort", "grid_sample", "grid_sampler", "conv1d", "conv2d", "conv3d"})
SPLITS = frozenset({"split", "chunk", "tensor_split", "split_with_sizes"})
RAGGED = frozenset({"_nested_tensor_from_mask", "to_padded_tensor"})
# Of which more is to be said than that what kept its shape kept its axes.
FOLLOWED = RESHAPES | PERMUTES | PRODUCTS | MOVES | TURNS | {"getitem", "cat", "pad", "index_select", "narrow"}
FOLLOWED |= {"view_as_complex", "view_as_real"}
