"""From a call to a record: whose it was, what it was given, and what it is to be changed to."""

import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]

from pellucid.ops.attention import to_autocast
from pellucid.ops.rules import Rule
from pellucid.watching import kernels
from pellucid.watching.axes import Atom
from pellucid.watching.following import Follower
from pellucid.watching.gathering import Followed
from pellucid.watching.kernels import Call
from pellucid.watching.missed import Missed, attends
from pellucid.watching.record import RECORD_PARTS, Live, Record, Versions, Written, read_versions
from pellucid.watching.shapes import TokenShapes
from pellucid.watching.steering import Steering, run
from pellucid.watching.streams import Reading, Streams
from pellucid.watching.trails import Lost, Softmax
from pellucid.watching.verifying import verify


class Keeper(Protocol):
    """What keeps the records."""

    def add(self, record: Record, tokens: TokenShapes | None) -> None: ...
    def holds(self, name: str) -> bool: ...


HERE = str(Path(__file__).parent)
Owner = tuple[str, nn.Module | None, tuple, dict]  # a module's name, itself, what it was called with
Caller = tuple[str, nn.Module | None, TokenShapes | None]  # the same, and of what it was called with the shapes alone


@dataclass(eq=False)
class BlockList:
    """A list of our own blocks: the tokens that go through it, and the attentions that have run in it, one bit each."""

    tokens: frozenset[Atom]
    sources: int


class Recorder:
    """Makes records of the calls that come from the watched model, in whichever thread."""

    def __init__(
        self,
        seen: Keeper,
        names: dict[int, str],
        gradients: bool,
        copy: bool,
        steering: Steering,
        exact_output: bool = True,
        *,
        is_alone: bool = False,
    ):
        """is_alone: all attention comes through our seam, so that no other call is looked at."""
        self.seen: Keeper = weakref.proxy(seen)  # which holds this: when it is dropped, its tensors go at once
        self.names = names
        self.gradients = gradients
        self.copy = copy
        self.steering = steering
        self.exact_output = exact_output
        self.defers = is_alone and not (gradients or copy)
        self.ran = False
        self.notes: list[str] = []  # what the output may differ by
        self.followers: list[Follower] = []
        self.missed: list[Missed] = []
        self.sources: list[str] = []  # inputs and attentions, for the streams
        self.stacks: dict[str, BlockList] = {}  # of our own modules, one for each list that they stand in
        self.local = threading.local()  # the streams of this thread
        self.starter = threading.local()  # the module that started this thread, as its owner
        self._deferred: deque[tuple[tuple, Caller, Versions]] = deque()
        self._lock = threading.RLock()

    def follow(self) -> tuple[Follower, Streams]:
        """What follows the tensors of this thread."""
        self.local.streams = Streams(self.sources)
        self.followers.append(Follower(self.module, self.followed, self.local.streams))
        return self.followers[-1], self.local.streams

    @property
    def keeps_fast_path(self) -> bool:
        """Whether PyTorch's fast path stays, within which nothing can be changed."""
        return self.exact_output and not self.steering

    def finish(self) -> None:
        """The block is over: nothing can be changed any more, and nothing is kept of what was followed."""
        self.missed += self._list_softmaxes()
        self.followers.clear()
        self.local = threading.local()

    def ours(self, *call: Any) -> Tensor | None:
        """One call of `ops.attend`: q, k, v, mask, β, causal, dropout, output.

        A small model waits for Python: where nothing forbids it, the record is made when somebody asks for it.
        """
        q, k, v, mask, *_, output = call
        if not self.defers or self.steering or output.requires_grad or is_batchedtensor(output):
            return self.record(Call(*call))
        if owner := self.owner(sys._getframe(2)):  # who called attend
            self._deferred.append((call, _tell_caller(owner), read_versions(q, k, v, mask, output)))
        return None

    def settle(self) -> None:
        """Make the records that were put off, in the order of their calls."""
        with self._lock:
            while self._deferred:
                call, caller, versions = self._deferred.popleft()
                self.record(Call(*call), caller=caller, versions=versions)

    def flex(self, out: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        """One call of flex attention."""
        changed = self.kernel("flex_attention", partial(kernels.read_flex, out), args, kwargs)
        if changed is not None and not isinstance(out, Tensor):
            raise ValueError("a flex attention that gives more than its output, as its log-sum-exp, can't be changed")
        return changed

    def kernel(self, name: str, read: Callable[..., Call], args: tuple, kwargs: dict) -> Tensor | None:
        """One call of a kernel of PyTorch's, or a word on why it can't be told what it did."""
        owner = self.owner()
        if owner is None:
            return None
        if any(is_batchedtensor(x) for x in args if isinstance(x, Tensor)):
            self._miss(args, "it runs under vmap, whose tensors can't be kept; call it with a batch instead")
            return None
        try:
            call = read(*args, **kwargs)
        except kernels.Unlike as reason:
            self._miss(args, f"PyTorch's fused kernel {name} ran, and {reason}; use watch(model, exact_output=False)")
            return None
        return self.record(call, owner=owner)

    def note(self, what: str) -> None:
        """Something that the model does otherwise while it is watched."""
        if what not in self.notes:
            self.notes.append(what)

    def unknown(self, name: str, args: tuple) -> None:
        """A function that calls itself attention and is none that we know."""
        if self.owner() is not None:
            self._miss(args, f"it calls {name}, which isn't known; let it call scaled_dot_product_attention")

    def scripted(self, function: torch.jit.ScriptFunction, args: tuple) -> None:
        """A function that is TorchScript ran: what it did is read off its graph."""
        if attends(str(function.inlined_graph)) and self.owner() is not None:
            self._miss(args, f"it calls {function.name}, which is TorchScript and runs outside Python")

    def followed(self, followed: Followed, softmax: Softmax) -> Tensor | None:
        """One softmax that was written out, followed from end to end."""
        try:
            with torch._C.DisableTorchFunction():
                f, written = verify(followed)
        except Lost as reason:
            softmax.reason = str(reason)
            return None
        call = Call(f.q, f.k, f.v, f.mask, f.beta, False, f.dropout, f.output)
        live: Live = {part: f.live[part] for part in RECORD_PARTS}
        origin = f.live["q"][0], f.live["k"][0], f.live["output"][0], f.dims
        softmax.recorded = True
        out = self.record(call, live, written, origin)
        return out if out is None else f.restore(out)

    def record(
        self,
        call: Call,
        live: Live | None = None,
        written: Written | None = None,
        origin: tuple[Tensor, Tensor, Tensor, Any] | None = None,
        owner: Owner | None = None,
        caller: Caller | None = None,
        versions: Versions | None = None,
    ) -> Tensor | None:
        """caller, versions: who made the call, and of which tensors, if that is over."""
        if versions is None:
            self.settle()
        if caller is None:
            owner = owner or self.owner()
            caller = None if owner is None else _tell_caller(owner)
        if caller is None:  # an attention outside the watched model
            return None
        self.ran = True
        name, module, tokens = caller
        if isinstance(module, nn.TransformerEncoderLayer):  # the fast path computes it there
            name = f"{name}.self_attn".lstrip(".")
        origin = origin or _origin(call)
        heads = self._find_heads(call) if live is None else None
        own, call, changed = call, call if heads is None else heads.bring(call), None
        if self.steering and (change := self.steering.find(name, self._free(name))) is not None:
            call = change.apply(_bring_to_four(call))
            changed = run(call)
            call = replace(call, output=changed)
            if live is None:
                shape = own.output.shape
                changed = changed.reshape(shape) if heads is None else heads.restore(changed, shape)
            live = None if live is None else {**live, "output": (changed, _four_axes)}
            own, heads = call, None
        live = self._keep_graph(name, live, own, heads) if self.gradients else None
        with self._lock:
            name = self._free(name)
            reading = self._read(name, tokens, origin)
            self.seen.add(self._make(name, call, live, written, reading, versions), tokens)
        return changed

    def _make(
        self,
        name: str,
        call: Call,
        live: Live | None,
        written: Written | None,
        reading: Reading | None,
        versions: Versions | None,
    ) -> Record:
        """A record of its own, that holds on to no graph."""
        call = _bring_to_four(call)
        parts = call.q, call.k, call.v
        if written is None and versions is None and torch.is_autocast_enabled(call.output.device.type):
            parts = tuple(to_autocast(x) for x in parts)  # what the kernel rounded, the record must
        parts = [x.detach().clone() if self.copy else x.detach() for x in (*parts, call.output)]
        mask = call.mask if call.mask is None else call.mask.detach()
        mask = mask.clone() if self.copy and mask is not None else mask
        q, k, v, output = parts
        how = call.beta, call.causal, call.dropout
        record = Record(name, q, k, v, mask, *how, output, live, written, reading, self.steering.replace)
        record.versions.update(versions or {})
        return record

    def _read(
        self, name: str, tokens: TokenShapes | None, origin: tuple[Tensor, Tensor, Tensor, Any]
    ) -> Reading | None:
        """Which tokens it reads. Of our own modules, which run without a mode, the stack they stand in says it."""
        streams = getattr(self.local, "streams", None)
        if streams is not None:
            return streams.read(name, *origin)
        stack, _, place = name.partition("#")[0].rpartition(".")
        while stack and not place.isdigit():
            stack, _, place = stack.rpartition(".")
        stack = stack if place.isdigit() else name
        if stack not in self.stacks:
            before = sum(1 << i for i, other in enumerate(self.sources) if _is_in(other, stack))
            self.stacks[stack] = BlockList(frozenset([Atom(1)]), before)
        number, inside = len(self.sources), self.stacks[stack].sources
        for path, other in self.stacks.items():
            if _is_in(name, path):
                other.sources |= 1 << number
        self.sources.append(name)
        crosses = tokens is not None and tokens.crossing
        outside = ((1 << number) - 1) ^ inside
        return Reading(
            "cross" if crosses else "self",
            number,
            self.stacks[stack].tokens,
            inside,
            outside if crosses else inside,
        )

    def _find_heads(self, call: Call) -> "HeadPlaces | None":
        """Where the heads are, if not right before the queries on an axis of their own."""
        streams, q = getattr(self.local, "streams", None), call.q
        if streams is None or q.is_nested or q.ndim == 2 or isinstance(call.mask, Rule):
            return None
        lead = q.shape[:-2]
        parts = streams.part_heads(q, range(q.ndim - 2))
        if parts is None and q.ndim > 4:
            spread = streams.spread(q)
            rest = [d for d in range(1, q.ndim - 2) if d not in spread]
            rest = [d for d in rest if q.shape[d] > 1] or rest
            parts = [[(n, [d] == rest)] for d, n in enumerate(lead)]
        if parts is None or not all(_spreads(x.shape[:-2], lead) for x in (call.k, call.v, call.output)):
            return None
        heads = [[is_head for _, is_head in axis] for axis in parts]
        if not any(map(any, heads)) or (len(heads) > 1 and all(heads[-1]) and not any(map(any, heads[:-1]))):
            return None
        return HeadPlaces(lead, tuple(part for axis in parts for part in axis))

    def _keep_graph(self, name: str, live: Live | None, call: Call, heads: "HeadPlaces | None") -> Live:
        shaped = _four_axes if heads is None else lambda x: _four_axes(heads.apart(x))
        live = live or {part: (getattr(call, part), shaped) for part in RECORD_PARTS}
        if not live["output"][0].requires_grad:
            checkpointed = any(
                frame.f_code.co_filename.endswith("checkpoint.py") and frame.f_code.co_name == "forward"
                for frame in _frames()
            )
            raise ValueError(
                f"watch(gradients=True): {name!r} is checkpointed in the reentrant way, which runs it without a graph; "
                "use use_reentrant=False (Hugging Face: gradient_checkpointing_kwargs={'use_reentrant': False})"
                if checkpointed
                else f"watch(gradients=True): the output of {name!r} carries no gradient; run the model outside "
                "no_grad(), with parameters or inputs that require one"
            )
        for tensor, _ in live.values():
            if tensor.requires_grad:
                tensor.retain_grad()
        return live

    def _list_softmaxes(self) -> list[Missed]:
        """Every softmax that looked like attention and was not recorded; with no reason, nothing was made of it."""
        taken = [softmax for follower in self.followers for softmax in follower.taken]
        lost = [softmax for softmax in taken if softmax.is_attention and not softmax.recorded and softmax.reason]
        return [Missed(softmax.module, softmax.shape, softmax.reason) for softmax in lost]

    def _miss(self, args: tuple, reason: str) -> None:
        owner, query = self.owner(), next((x for x in args if isinstance(x, Tensor)), None)
        shape = () if query is None or query.is_nested else tuple(query.shape)
        self.missed.append(Missed("" if owner is None else owner[0], shape, reason))

    def module(self) -> tuple[str, nn.Module | None] | None:
        owner = self.owner()
        return None if owner is None else owner[:2]

    def owner(self, frame: FrameType | None = None) -> Owner | None:
        """The innermost module of the model on the call stack, from this frame on, and what it was called with."""
        name, module = None, None
        frame = frame or sys._getframe(1)
        while frame is not None:
            code, above = frame.f_code, frame.f_back
            # Reading the locals of a frame copies them. So those are left alone in which no method runs, or one of
            # ours; and what a module runs when it is called: nn.Module's frame above holds the same self.
            if code.co_name == "_call_impl":
                inputs = frame.f_locals
                if name is None:
                    module = inputs.get("self")
                    name = self.names.get(id(module))
                if name is not None and inputs.get("self") is module:
                    return name, module, inputs.get("args", ()), inputs.get("kwargs", {})
            elif (
                name is None
                and (above is None or above.f_code.co_name != "_call_impl")
                and code.co_argcount
                and code.co_varnames[0] == "self"
                and not code.co_filename.startswith(HERE)
            ):
                module = frame.f_locals.get("self")
                name = self.names.get(id(module))
            frame = above
        return getattr(self.starter, "owner", None) if name is None else (name, module, (), {})

    def _free(self, name: str) -> str:
        times = 1
        while self.seen.holds(free := name if times == 1 else f"{name}#{times}"):
            times += 1
        return free


def _is_in(name: str, stack: str) -> bool:
    return not stack or name == stack or name.startswith((f"{stack}.", f"{stack}#"))


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _origin(call: Call) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Whose tokens ask, whose are read and whose come out, and which axes of each they are."""
    tensors = call.tokens or (call.q, call.k, call.output)
    return (*tensors, [[x.dim() - 2] for x in tensors])


@dataclass(frozen=True)
class HeadPlaces:
    """Which of the axes that stand before (t d) in a call, or which parts of them, are heads."""

    lead: tuple[int, ...]
    parts: tuple[tuple[int, bool], ...]
    """Of all these axes, the size of each part and whether it is heads."""

    @property
    def order(self) -> list[int]:
        """The parts that are inputs, then those that are heads."""
        return sorted(range(len(self.parts)), key=lambda i: self.parts[i][1])

    def apart(self, x: Tensor) -> Tensor:
        """The tensor as (b h t d)."""
        tail = x.shape[-2:]
        x = x.expand(*self.lead, *tail).reshape(*(n for n, _ in self.parts), *tail)
        number = math.prod(n for n, is_head in self.parts if is_head)
        return x.permute(*self.order, -2, -1).reshape(math.prod(self.lead) // number, number, *tail)

    def restore(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """(b h t d) as it was."""
        x = x.reshape(*(self.parts[i][0] for i in self.order), *x.shape[-2:])
        back = sorted(range(len(self.parts)), key=self.order.__getitem__)
        return x.permute(*back, -2, -1).reshape(shape)

    def bring(self, call: Call) -> Call:
        """The call with the heads of all that it has so."""
        q, k, v, output = (self.apart(getattr(call, part)) for part in RECORD_PARTS)
        mask = self.apart(call.mask) if isinstance(call.mask, Tensor) else call.mask
        return replace(call, q=q, k=k, v=v, mask=mask, output=output)


def _spreads(shape: Sequence[int], wide: Sequence[int]) -> bool:
    """Whether these axes are those, or are broadcast to them."""
    return len(shape) == len(wide) and all(n in (1, m) for n, m in zip(shape, wide, strict=True))


def _tell_caller(owner: Owner) -> Caller:
    name, module, args, kwargs = owner
    return name, module, TokenShapes.among([*args, *kwargs.values()])


def _bring_to_four(call: Call) -> Call:
    """(b h q d) and so on, for a call that may have fewer axes or more."""
    mask, q = call.mask, call.q
    if q.ndim == call.k.ndim == call.output.ndim == 4 and q.shape[0] == call.k.shape[0]:
        return call
    if isinstance(mask, Tensor) and q.ndim != 4:
        mask = _four_axes(mask if q.ndim < 4 else mask.expand(*q.shape[:-2], *mask.shape[-2:]))
    q, k, v = (_four_axes(x) for x in (q, call.k, call.v))
    b = max(q.shape[0], k.shape[0])  # PyTorch's kernel lets one sequence stand for a whole batch
    q, k, v = (x if x.shape[0] == b else x.expand(b, -1, -1, -1) for x in (q, k, v))
    return replace(call, q=q, k=k, v=v, mask=mask, output=_four_axes(call.output))


def _four_axes(x: Tensor) -> Tensor:
    """(… t d) as (b h t d): one head if there is no axis for it."""
    if x.ndim > 4:
        return x.flatten(0, x.ndim - 4)
    if x.ndim == 3:
        return x[:, None]
    return x[None, None] if x.ndim == 2 else x
