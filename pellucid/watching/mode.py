"""Where PyTorch's functions pass: a mode for each thread that shows them to the recorder, and what must give way to it.

A torch function mode belongs to a thread, switches PyTorch's fast path of encoder layers off, and can't be compiled
through. So threads get their own, the fast path is told that nobody watches, and flex attention, which compiles itself,
shows what it did afterwards.
"""

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from pellucid.watching import kernels
from pellucid.watching.kernels import Call
from pellucid.watching.recorder import Recorder


class Mode(TorchFunctionMode):
    """Stands at PyTorch's functions, in one thread. `ops.attend` passes it unseen: it has its observers."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder
        self.follower, self.streams = recorder.follow()

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name, kind = _known.get(func) or _know(func)
        if kind == "silent":
            return func(*args, **kwargs or {})
        self.recorder.ran = True
        if kind == "packed":
            return self._packed(func, *args, **kwargs or {})
        out = func(*args, **kwargs) if kwargs else func(*args)
        if kind == "followed":
            if kwargs:
                named = tuple(kwargs[key] for key in TENSORS if key in kwargs)
                args, kwargs = (*args, *named), {k: x for k, x in kwargs.items() if k not in TENSORS}
            self.streams.see(name, args, kwargs or {}, out)
            replaced = self.follower.see(name, args, kwargs or {}, out)
        elif kind == "unknown":
            replaced = self.recorder.unknown(name, args)
        else:
            read = partial(KERNELS[name], out) if name in KERNELS else partial(kernels.read_aten, out, func)
            replaced = self.recorder.kernel(name, read, args, kwargs or {})
        if replaced is None:
            return out
        if isinstance(given := (kwargs or {}).get("out"), Tensor):
            return given.copy_(replaced)
        several = isinstance(out, tuple)  # an operator that gives its log-sum-exp, too
        self.streams.exchange(out[0] if several else out, replaced)
        return (replaced, *out[1:]) if several else replaced

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


KERNELS: dict[str, Callable[..., Call]] = {
    "scaled_dot_product_attention": kernels.read_sdpa,
    "_native_multi_head_attention": kernels.read_fast_attention,
    "_transformer_encoder_layer_fwd": kernels.read_fast_layer,
}
SILENT = frozenset({"size", "dim", "shape", "dtype", "device", "ndim", "is_nested", "requires_grad", "numel", "stride"})
SILENT |= {"is_floating_point", "is_contiguous", "data_ptr", "item", "attend", "layout", "is_cuda", "grad_fn"}
TENSORS = ("condition", "self", "input", "tensors", "batch1", "batch2", "mat1", "mat2", "mask", "other", "value")
_known: dict[Any, tuple[str, str]] = {}


def _know(func: Callable) -> tuple[str, str]:
    """What a function is called, and what is done with a call of it."""
    name = _name(func)
    if name in SILENT:
        kind = "silent"
    elif name == "multi_head_attention_forward":
        kind = "packed"
    elif name in KERNELS or name.startswith("_scaled_dot_product"):
        kind = "kernel"
    else:
        kind = "unknown" if "attention" in name or "attn" in name else "followed"
    return _known.setdefault(func, (name, kind))


def _name(func: Callable) -> str:
    """What a function is called, in place or not, a method or not: `mul` for torch.mul, Tensor.mul_ and x *= y."""
    name = getattr(func, "__name__", "") or str(func)
    if name == "__get__":  # a property
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        name = name[1:] if name in ("imul", "iadd", "isub", "itruediv", "rmul", "radd", "rmatmul") else name
    elif name not in KERNELS:
        name = name.rstrip("_")
    return {"concat": "cat", "concatenate": "cat", "_softmax": "softmax", "_safe_softmax": "softmax"}.get(name, name)


# What is exchanged in PyTorch while anybody watches, in whichever thread: put in by the first, taken out by the last.

_patching = threading.RLock()
_users: Counter[str] = Counter()
_undo: dict[str, Callable[[], None]] = {}


@contextmanager
def _exchanged(what: str, put: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """put: exchanges it and gives back what undoes that."""
    with _patching:
        if not _users[what]:
            _undo[what] = put()
        _users[what] += 1
    try:
        yield
    finally:
        with _patching:
            _users[what] -= 1
            if not _users[what]:
                _undo.pop(what)()


def _recorders() -> list[Recorder]:
    """Who watches in this thread."""
    modes = torch.overrides._get_current_function_mode_stack()
    return [mode.recorder for mode in modes if isinstance(mode, Mode)]


def fast_path_kept() -> AbstractContextManager[None]:
    """PyTorch leaves its fast path if anything watches its functions. Meanwhile a mode of ours doesn't count."""

    def put() -> Callable[[], None]:
        def undo() -> None:
            torch.overrides.has_torch_function = _has_torch_function

        torch.overrides.has_torch_function = _has_others
        return undo

    return _exchanged("fast path", put)


_has_torch_function = torch.overrides.has_torch_function


def _has_others(tensors: Any) -> bool:
    if not _has_torch_function(tensors):
        return False
    modes = torch.overrides._get_current_function_mode_stack()
    # What is changed, or is to be recorded at any price, can't run in the fast path.
    if all(isinstance(mode, Mode) and mode.recorder.keeps_fast_path for mode in modes):
        plain = torch._C._disabled_torch_function_impl
        kinds = {type(x) for x in tensors if isinstance(x, Tensor)} - {Tensor}
        return any(kind.__torch_function__ is not plain for kind in kinds)
    return True


def compiled_shown() -> AbstractContextManager[None]:
    """Meanwhile functions that were compiled run uncompiled in a thread that is watched, and its recorder hears of it.

    PyTorch's compiler would trace our mode along with them.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")  # if it isn't imported, nothing is compiled yet
    if dynamo is None or not hasattr(dynamo, "_callback_from_stance"):
        return nullcontext()

    def put() -> Callable[[], None]:
        original = dynamo._callback_from_stance

        def run_uncompiled(callback: Any) -> Any:
            recorders = _recorders()
            if callback in (None, False) or not recorders:
                return original(callback)
            for recorder in recorders:
                recorder.note("a compiled function runs uncompiled while it is watched")
            return None

        dynamo._callback_from_stance = run_uncompiled
        return lambda: setattr(dynamo, "_callback_from_stance", original)

    return _exchanged("compiled functions", put)


def scripted_shown() -> AbstractContextManager[None]:
    """A function that is TorchScript calls none of PyTorch's that we could see: its recorder hears that it ran."""

    def put() -> Callable[[], None]:
        original = torch.jit.ScriptFunction.__call__

        def call(self: torch.jit.ScriptFunction, *args: Any, **kwargs: Any) -> Any:
            for recorder in _recorders():
                recorder.scripted(self, args)
            return original(self, *args, **kwargs)

        torch.jit.ScriptFunction.__call__ = call
        return lambda: setattr(torch.jit.ScriptFunction, "__call__", original)

    return _exchanged("scripted functions", put)


@contextmanager
def flex_shown_to(observe: Callable[..., Tensor | None]) -> Iterator[None]:
    """While the block runs, every call of flex attention is shown to `observe`, whoever holds the function.

    What it gives back, if anything, takes the place of what came out.

    It compiles what it is given, which can't be done under a mode, and others have imported it by name: so its code is
    exchanged for one that runs the old code without our modes and shows what came out.
    """
    with _exchanged("flex attention", _show_flex):
        _flex_observers.append(observe)
        try:
            yield
        finally:
            _flex_observers.remove(observe)


_flex_observers: list[Callable[..., Tensor | None]] = []


def _show_flex() -> Callable[[], None]:
    function, names = cast(FunctionType, flex.flex_attention), cast(dict[str, Any], flex.__dict__)
    code = function.__code__
    original = FunctionType(code, names, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__

    def shown(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        with _without_modes():  # nor is it seen what a change computes
            out = original(*args, **kwargs)
            for observe in tuple(_flex_observers):
                changed = observe(out, *args, **kwargs)
                out = out if changed is None else changed
        return out

    def undo() -> None:
        function.__code__ = code
        del names["_shown"]

    names["_shown"] = shown
    function.__code__ = inspect.unwrap(_call_shown).__code__
    return undo


def _call_shown(*args: Any, **kwargs: Any) -> Any:
    return _shown(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def _without_modes() -> Iterator[None]:
    with ExitStack() as stack:
        while torch.overrides._get_current_function_mode_stack():
            stack.enter_context(torch.overrides._pop_mode_temporarily())
        yield


def started_threads_watched() -> AbstractContextManager[None]:
    """Modes belong to a thread: one that is started by a thread that is watched gets its own."""

    def put() -> Callable[[], None]:
        start = threading.Thread.start

        def start_watched(thread: threading.Thread) -> None:
            run, owners = thread.run, [(recorder, recorder.owner()) for recorder in _recorders()]

            def run_watched() -> None:
                with ExitStack() as stack:
                    for recorder, owner in owners:
                        recorder.starter.owner = owner
                        stack.enter_context(Mode(recorder))
                    run()

            if owners:
                thread.run = run_watched  # type: ignore[method-assign]
            start(thread)

        threading.Thread.start = start_watched  # type: ignore[assignment]
        return lambda: setattr(threading.Thread, "start", start)

    return _exchanged("threads", put)


@contextmanager
def model_entered(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """The model's inputs are where everything comes from; a thread in which it is called gets a mode of its own."""
    depths = threading.local()

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered = getattr(depths, "entered", 0)
        if entered or recorder not in _recorders():
            depths.entered = entered + 1
            if not entered:
                depths.mode = Mode(recorder)
                depths.mode.__enter__()
        with torch._C.DisableTorchFunction():
            recorder.local.streams.enter(args, kwargs)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if getattr(depths, "entered", 0):
            depths.entered -= 1
            if not depths.entered:
                depths.mode.__exit__(None, None, None)

    hooks = []
    for module in {model, *model.children()}:
        if not isinstance(module, torch.jit.ScriptModule):
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
