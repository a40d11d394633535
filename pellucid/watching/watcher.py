"""See every attention of a model while it runs, without changing what it computes.

Attention passes through three seams: ours (`ops.attend`), PyTorch's kernels (`scaled_dot_product_attention`, flex
attention, the fast path of `nn.TransformerEncoder`), and the softmax that a model writes out, which is followed from
product to product. A torch function mode stands at the last two, and at ours too if the model has modules that aren't
ours. From each attention q, k, v, mask, β and the output are kept. Which module made it is read off the call stack, so
the model itself is never touched. The kernel is the one that would have run anyway. What can't be recorded is named.
"""

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from pellucid.layers.attention import MultiHeadAttention
from pellucid.ops.attention import observed_by, to_autocast
from pellucid.watching import kernels
from pellucid.watching.following import Followed, Follower, Softmax
from pellucid.watching.kernels import Call
from pellucid.watching.missed import Missed, MissedAttention, list_outside, list_scripted, say_missed
from pellucid.watching.record import RECORD_PARTS, Live, Record
from pellucid.watching.shapes import ShapeTable, TokenShapes, list_shapes


class Seen(Mapping[str, Record]):
    """The attentions of a watched model by their dotted module names, in the order in which they ran.

    A module that attends more than once gets `name`, `name#2`, `name#3`, …
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._records: dict[str, Record] = {}
        self._tokens: dict[str, TokenShapes] = {}
        self.missed: list[Missed] = []
        """Attentions that could not be recorded, each with its module, shape and reason, when the block is left."""

    def __getitem__(self, name: str) -> Record:
        try:
            return self._records[name]
        except KeyError:
            known = ", ".join(map(repr, self._records)) or "nothing yet"
            raise KeyError(f"no attention {name!r} was seen; seen: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Seen({', '.join(map(repr, self._records))})"

    def check(self) -> float:
        """Check every record and return the largest error."""
        return max((record.check() for record in self.values()), default=0.0)

    def _add(self, record: Record, tokens: TokenShapes | None) -> None:
        self._records[record.name] = record
        if tokens is not None:
            self._tokens[record.name] = tokens

    def table(self, *, columns: bool = False) -> ShapeTable:
        """Every intermediate of every attention: name, equation, axes and shape."""
        lines = []
        for name, record in self.items():
            module = self._model.get_submodule(name.partition("#")[0])
            lines += list_shapes(record, module, self._tokens.get(name), columns=columns)
        return ShapeTable(tuple(lines))


@contextmanager
def watch(
    model: nn.Module, *, gradients: bool = False, copy: bool = False, strict: bool = False, exact_output: bool = True
) -> Iterator[Seen]:
    """Record the attentions of `model` while the block runs.

    >>> from pellucid.layers.attention import MultiHeadAttention
    >>> from pellucid.watching import watch
    >>> model = nn.Sequential(MultiHeadAttention(64, heads=4), MultiHeadAttention(64, heads=4))
    >>> with watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 64))
    >>> list(seen), seen["1"].weights().shape
    (['0', '1'], torch.Size([1, 4, 5, 5]))

    gradients: keep the graph, so that after backward() a record knows the gradients of q, k, v, its output and
        its weights. Without it the records are detached.
    copy: keep copies, for a model that writes over its tensors later, as a static cache does. Without it a record that
        was written over says so when it is asked.
    strict: raise instead of warning if an attention could not be recorded; `seen.missed` names them in any case.
    exact_output: leave PyTorch's fast path of encoder layers and functions that are compiled as they are, even where
        they can't be recorded. False switches both off, so that they are, and the output may differ in its last bits.
    """
    names, kinds = {}, set()
    for name, module in model.named_modules():
        _refuse_compiled(name, module)
        names[id(module)] = name
        kinds.add(type(module))
    seen = Seen(model)
    recorder = _Recorder(seen, names, gradients, copy)
    ours = _all_ours(kinds)
    with ExitStack() as stack:
        stack.enter_context(observed_by(recorder.ours))
        if not ours:
            stack.enter_context(_flex_shown_to(recorder.flex))
            stack.enter_context(_fast_path_kept() if exact_output else torch.compiler.set_stance("force_eager"))
            stack.enter_context(_threads_watched(model, recorder))
            stack.enter_context(recorder.mode())
        yield seen
    seen.missed += recorder.list_missed()
    if recorder.ran:
        seen.missed += [*list_scripted(model), *list_outside(model, seen)]
    if seen.missed and strict:
        raise ValueError(say_missed(model, seen.missed, len(seen)))
    if recorder.ran and not seen:
        raise ValueError(say_missed(model, seen.missed, 0))
    if seen.missed:
        warnings.warn(say_missed(model, seen.missed, len(seen)), MissedAttention, stacklevel=3)


class _Mode(TorchFunctionMode):
    """Stands at PyTorch's functions, in one thread. `ops.attend` passes it unseen: it has its observers."""

    def __init__(self, recorder: "_Recorder"):
        super().__init__()
        self.recorder = recorder
        self.follower = Follower(recorder.module, recorder.followed)

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = _name(func)
        kwargs = kwargs or {}
        self.recorder.ran = True
        if name == "multi_head_attention_forward":
            return self._packed(func, *args, **kwargs)
        out = func(*args, **kwargs)
        if name in SILENT:
            return out
        read = KERNELS.get(name)
        if read is not None:
            replaced = self.recorder.kernel(name, partial(read, out), args, kwargs)
        elif name.startswith("_scaled_dot_product"):
            replaced = self.recorder.kernel(name, partial(kernels.read_aten, out, func), args, kwargs)
        elif "attention" in name or "attn" in name:
            replaced = self.recorder.unknown(name, args)
        else:
            if kwargs:
                named = tuple(kwargs[key] for key in TENSORS if key in kwargs)
                args, kwargs = (*args, *named), {k: x for k, x in kwargs.items() if k not in TENSORS}
            replaced = self.follower.see(name, args, kwargs, out)
        return out if replaced is None else replaced

    def _packed(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        """nn.MultiheadAttention's function, re-entered so that its inner calls are seen.

        PyTorch hands the whole function to the mode; called again under the mode it would be handed back for ever.
        So the same code runs with one global name changed: it is told that nobody is watching the outer call.
        """
        original = F.multi_head_attention_forward
        unwatched = {**vars(F), "has_torch_function": lambda tensors: False}
        inner = FunctionType(original.__code__, unwatched, original.__name__, original.__defaults__)
        inner.__kwdefaults__ = original.__kwdefaults__
        with self:
            return inner(*args, **kwargs)


class _Recorder:
    """Makes records of the calls that come from the watched model, in whichever thread."""

    def __init__(self, seen: Seen, names: dict[int, str], gradients: bool, copy: bool):
        self.seen = seen
        self.names = names
        self.gradients = gradients
        self.copy = copy
        self.ran = False
        self.modes: list[_Mode] = []
        self.unread: list[Missed] = []
        self.starter = threading.local()  # the module that started this thread, as its owner
        self._lock = threading.RLock()

    def mode(self) -> _Mode:
        """A mode for this thread."""
        mode = _Mode(self)
        self.modes.append(mode)
        return mode

    def ours(self, *call: Any) -> None:
        """One call of `ops.attend`: q, k, v, mask, β, causal, dropout, output."""
        self.record(Call(*call))

    def flex(self, out: Any, *args: Any, **kwargs: Any) -> None:
        """One call of flex attention."""
        self.kernel("flex_attention", partial(kernels.read_flex, out), args, kwargs)

    def kernel(self, name: str, read: Callable[..., Call], args: tuple, kwargs: dict) -> Tensor | None:
        """One call of a kernel of PyTorch's, or a word on why it can't be told what it did."""
        if self.owner() is None:
            return None
        if any(torch._C._functorch.is_batchedtensor(x) for x in args if isinstance(x, Tensor)):
            self._miss(args, "it runs under vmap, whose tensors can't be kept; call it with a batch instead")
            return None
        try:
            return self.record(read(*args, **kwargs))
        except kernels.Unlike as reason:
            self._miss(args, f"PyTorch's fused kernel {name} ran, and {reason}; use watch(model, exact_output=False)")
        return None

    def unknown(self, name: str, args: tuple) -> None:
        """A function that calls itself attention and is none that we know."""
        if self.owner() is not None:
            self._miss(args, f"it calls {name}, which isn't known; let it call scaled_dot_product_attention")

    def followed(self, followed: Followed, softmax: Softmax) -> Tensor | None:
        """One softmax that was written out, followed from end to end."""
        f = followed
        call = Call(f.q, f.k, f.v, f.mask, f.beta, False, f.dropout, f.output)
        live: Live = {part: f.live[part] for part in RECORD_PARTS}
        out = self.record(call, live=live, written=f.dtype, softmax=softmax)
        return out if out is None else f.restore(out)

    def record(
        self,
        call: Call,
        live: Live | None = None,
        written: torch.dtype | None = None,
        softmax: Softmax | None = None,
    ) -> Tensor | None:
        owner = self.owner()
        if owner is None:  # an attention outside the watched model
            return None
        name, _, tokens = owner
        q, k, v, mask, out = call.q, call.k, call.v, call.mask, call.output
        live = self._keep_graph(name, live, (q, k, v, out)) if self.gradients else None
        if isinstance(mask, Tensor) and q.ndim != 4:
            mask = _four_axes(mask if q.ndim < 4 else mask.expand(*q.shape[:-2], *mask.shape[-2:]))
        if written is None and torch.is_autocast_enabled(out.device.type):  # what the kernel rounded, the record must
            q, k, v = to_autocast(q), to_autocast(k), to_autocast(v)
        q, k, v, out = (_four_axes(x).detach() for x in (q, k, v, out))
        if q.shape[0] != k.shape[0]:  # PyTorch's kernel lets one sequence stand for a whole batch
            b = max(q.shape[0], k.shape[0])
            q, k, v = (x.expand(b, -1, -1, -1) for x in (q, k, v))
        mask = mask if mask is None else mask.detach()
        if self.copy:
            q, k, v, out = (x.clone() for x in (q, k, v, out))
            mask = mask.clone() if isinstance(mask, Tensor) else mask
        with self._lock:
            record = Record(self._free(name), q, k, v, mask, call.beta, call.causal, call.dropout, out, live, written)
            if softmax is not None and not call.dropout and not self._holds(record):
                softmax.reason = "it was followed, but what it gives can't be reproduced"
                return None
            if softmax is not None:
                softmax.recorded = True
            self.seen._add(record, tokens)
        return None

    def _holds(self, record: Record) -> bool:
        """Whether the first and the last row of what was followed are the model's own."""
        n = record.q.shape[2]
        with torch._C.DisableTorchFunction():
            return all(record.check_row(i) for i in {0, n - 1}) if n else True

    def _keep_graph(self, name: str, live: Live | None, parts: tuple[Tensor, ...]) -> Live:
        live = live or {part: (x, _four_axes) for part, x in zip(RECORD_PARTS, parts, strict=True)}
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

    def list_missed(self) -> list[Missed]:
        """Every softmax that looked like attention and was not recorded."""
        missed = list(self.unread)
        for softmax in (s for mode in self.modes for s in mode.follower.taken):
            if softmax.is_attention and not softmax.recorded and softmax.reason:  # with none, nothing was made of it
                missed.append(Missed(softmax.module, softmax.shape, softmax.reason))
        return missed

    def _miss(self, args: tuple, reason: str) -> None:
        owner, query = self.owner(), next((x for x in args if isinstance(x, Tensor)), None)
        shape = () if query is None or query.is_nested else tuple(query.shape)
        self.unread.append(Missed("" if owner is None else owner[0], shape, reason))

    def module(self) -> tuple[str, nn.Module | None] | None:
        owner = self.owner()
        return None if owner is None else owner[:2]

    def owner(self) -> tuple[str, nn.Module | None, TokenShapes | None] | None:
        """The innermost module of the model on the call stack, and what it was called with."""
        name, module = None, None
        for frame in _frames():
            mine = _self(frame)
            if name is None and id(mine) in self.names:
                name, module = self.names[id(mine)], mine
            if name is not None and mine is module and frame.f_code.co_name == "_call_impl":  # of nn.Module
                inputs = frame.f_locals
                given = [*inputs.get("args", ()), *inputs.get("kwargs", {}).values()]
                return name, module, TokenShapes.among(given)
        return getattr(self.starter, "owner", None) if name is None else (name, module, None)

    def _free(self, name: str) -> str:
        times = 1
        while (free := name if times == 1 else f"{name}#{times}") in self.seen._records:
            times += 1
        return free


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _self(frame: FrameType) -> Any:
    """The object whose method runs in this frame. Other frames are left alone: reading their locals would copy them."""
    code = frame.f_code
    return frame.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None


def _four_axes(x: Tensor) -> Tensor:
    """(… t d) as (b h t d): one head if there is no axis for it."""
    if x.ndim > 4:
        return x.flatten(0, x.ndim - 4)
    if x.ndim == 3:
        return x[:, None]
    return x[None, None] if x.ndim == 2 else x


KERNELS: dict[str, Callable[..., Call]] = {
    "scaled_dot_product_attention": kernels.read_sdpa,
    "_native_multi_head_attention": kernels.read_fast_attention,
    "_transformer_encoder_layer_fwd": kernels.read_fast_layer,
}
SILENT = frozenset({"size", "dim", "shape", "dtype", "device", "ndim", "is_nested", "requires_grad", "numel", "stride"})
SILENT |= {"is_floating_point", "is_contiguous", "data_ptr", "item", "attend", "layout", "is_cuda", "grad_fn"}
TENSORS = ("condition", "self", "input", "tensors", "batch1", "batch2", "mat1", "mat2", "mask", "other", "value")
_names: dict[Any, str] = {}


def _name(func: Callable) -> str:
    """What a function is called, in place or not, a method or not: `mul` for torch.mul, Tensor.mul_ and x *= y."""
    try:
        return _names[func]
    except KeyError:
        pass
    name = getattr(func, "__name__", "") or str(func)
    if name == "__get__":  # a property
        name = getattr(func.__self__, "__name__", "")
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        name = name[1:] if name in ("imul", "iadd", "isub", "itruediv", "rmul", "radd", "rmatmul") else name
    elif name not in KERNELS:
        name = name.rstrip("_")
    name = {"concat": "cat", "concatenate": "cat", "_softmax": "softmax", "_safe_softmax": "softmax"}.get(name, name)
    _names[func] = name
    return name


@contextmanager
def _fast_path_kept() -> Iterator[None]:
    """PyTorch leaves its fast path if anything watches its functions. While the block runs, a mode of ours doesn't count."""
    global _fast_path_users
    with _patching:
        if _fast_path_users == 0:
            torch.overrides.has_torch_function = _has_others
        _fast_path_users += 1
    try:
        yield
    finally:
        with _patching:
            _fast_path_users -= 1
            if _fast_path_users == 0:
                torch.overrides.has_torch_function = _has_torch_function


_patching = threading.RLock()
_fast_path_users = 0
_has_torch_function = torch.overrides.has_torch_function


def _has_others(tensors: Any) -> bool:
    if not _has_torch_function(tensors):
        return False
    if all(isinstance(mode, _Mode) for mode in torch.overrides._get_current_function_mode_stack()):
        plain = torch._C._disabled_torch_function_impl
        kinds = {type(x) for x in tensors if isinstance(x, Tensor)} - {Tensor}
        return any(kind.__torch_function__ is not plain for kind in kinds)
    return True


@contextmanager
def _flex_shown_to(observe: Callable[..., None]) -> Iterator[None]:
    """While the block runs, every call of flex attention is shown to `observe`, whoever holds the function.

    It compiles what it is given, which can't be done under a mode, and others have imported it by name: so its code is
    exchanged for one that runs the old code without our modes and shows what came out.
    """
    function = flex.flex_attention
    with _patching:
        code, before = function.__code__, vars(flex).get("_shown")
        original = FunctionType(code, vars(flex), function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__

        def shown(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            with _without_modes():
                out = original(*args, **kwargs)
            observe(out, *args, **kwargs)
            return out

        vars(flex)["_shown"] = shown
        function.__code__ = inspect.unwrap(_call_shown).__code__
    try:
        yield
    finally:
        with _patching:
            function.__code__ = code
            vars(flex)["_shown"] = before


def _call_shown(*args: Any, **kwargs: Any) -> Any:
    return _shown(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def _without_modes() -> Iterator[None]:
    with ExitStack() as stack:
        while torch.overrides._get_current_function_mode_stack():
            stack.enter_context(torch.overrides._pop_mode_temporarily())
        yield


@contextmanager
def _threads_watched(model: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Modes belong to a thread: one that is started meanwhile, or in which the model is called, gets its own."""
    depths = threading.local()
    start = threading.Thread.start

    def watching() -> bool:
        modes = torch.overrides._get_current_function_mode_stack()
        return any(isinstance(mode, _Mode) and mode.recorder is recorder for mode in modes)

    def start_watched(thread: threading.Thread) -> None:
        run, owner = thread.run, recorder.owner()

        def run_watched() -> None:
            recorder.starter.owner = owner
            with recorder.mode():
                run()

        if watching():
            thread.run = run_watched  # type: ignore[method-assign]
        start(thread)

    def enter(module: nn.Module, args: Any) -> None:
        entered = getattr(depths, "entered", 0)
        if entered or not watching():
            depths.entered = entered + 1
            if not entered:
                depths.mode = recorder.mode()
                depths.mode.__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if getattr(depths, "entered", 0):
            depths.entered -= 1
            if not depths.entered:
                depths.mode.__exit__(None, None, None)

    hooks = []
    for module in {model, *model.children()}:
        if not isinstance(module, torch.jit.ScriptModule):
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    threading.Thread.start = start_watched
    try:
        yield
    finally:
        threading.Thread.start = start
        for hook in hooks:
            hook.remove()


def _all_ours(kinds: set[type[nn.Module]]) -> bool:
    """Whether all attention of such a model must come through our seam: it has some, and no stranger's modules."""
    origins = {kind.__module__.partition(".")[0] for kind in kinds}
    return MultiHeadAttention in kinds and nn.MultiheadAttention not in kinds and origins <= {"pellucid", "torch"}


def _refuse_compiled(name: str, module: nn.Module) -> None:
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        raise ValueError(
            f"watch can't see inside a compiled module ({name or type(module).__name__!r}); "
            "watch the model that was given to torch.compile instead: it shares the weights"
        )
