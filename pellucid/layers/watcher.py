"""See every attention of a model while it runs, without changing what it computes.

Attention passes through two seams, ours (`ops.attend`, which shows each call to its observers) and PyTorch's
(`scaled_dot_product_attention`, at which a torch function mode stands if the model has modules that aren't ours). From
each call q, k, v, mask, β and the output are kept. Which module made it is read off the call stack, so the model itself
is never touched: there is nothing to put back. The kernel is the one that would have run anyway.
"""

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pellucid.layers.attention import MultiHeadAttention
from pellucid.layers.record import RECORD_PARTS, Live, Record
from pellucid.layers.shapes import ShapeTable, TokenShapes, list_shapes
from pellucid.ops.attention import observed_by, to_autocast
from pellucid.ops.checks import resolve_beta

_SOFTMAX = frozenset({torch.softmax, torch.special.softmax, F.softmax, Tensor.softmax})
_PRODUCTS = frozenset({torch.bmm, torch.baddbmm})
_SEAMS = {F.scaled_dot_product_attention, F.multi_head_attention_forward} | _SOFTMAX | _PRODUCTS
_MHA_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


class Seen(Mapping[str, Record]):
    """The attentions of a watched model by their dotted module names, in the order in which they ran.

    A module that attends more than once gets `name`, `name#2`, `name#3`, …
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._records: dict[str, Record] = {}
        self._tokens: dict[str, TokenShapes] = {}
        self.own_softmax: list[str] = []  # modules that took a softmax of their own, which can't be recorded

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
def watch(model: nn.Module, *, gradients: bool = False) -> Iterator[Seen]:
    """Record the attentions of `model` while the block runs.

    >>> from pellucid.layers import MultiHeadAttention, watch
    >>> model = nn.Sequential(MultiHeadAttention(64, heads=4), MultiHeadAttention(64, heads=4))
    >>> with watch(model) as seen:
    ...     y = model(torch.randn(1, 5, 64))
    >>> list(seen), seen["1"].weights().shape
    (['0', '1'], torch.Size([1, 4, 5, 5]))

    gradients: keep the graph, so that after backward() a record knows the gradients of q, k, v, its output and
    its weights. Without it the records are detached.
    """
    names, kinds = {}, set()
    for name, module in model.named_modules():
        _refuse_compiled(name, module)
        names[id(module)] = name
        kinds.add(type(module))
    seen = Seen(model)
    recorder = _Recorder(seen, names, gradients)
    mode = _Theirs(recorder)
    with observed_by(recorder.ours), nullcontext() if _all_ours(kinds) else mode:
        yield seen
    if mode.ran and not seen:
        raise ValueError(_why_nothing(model, seen))


class _Theirs(TorchFunctionMode):
    """Stands at PyTorch's seam. `ops.attend` passes it unseen: it has its observers."""

    def __init__(self, recorder: "_Recorder"):
        super().__init__()
        self.recorder = recorder
        self.ran = False
        self._eager: _EagerHeads | None = None

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.ran = True
        if func not in _SEAMS:  # nearly every call, so this line is what watching costs
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._kernel(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._packed(*args, **kwargs)
        out = func(*args, **kwargs)
        if self._eager is not None and func in _PRODUCTS:
            self._eager.follow(func, args, out, self.recorder.record)
        elif self._eager is None and func in _SOFTMAX and out.ndim > 2:
            self.recorder.own_softmax()
        return out

    def _kernel(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        mask = attn_mask
        if is_causal and query.shape[-2] != key.shape[-2]:  # PyTorch's triangle starts at the top left, ours ends
            n_q, n_k = query.shape[-2], key.shape[-2]  # at the bottom right: the same only for a square
            mask, is_causal = torch.ones(n_q, n_k, dtype=torch.bool, device=query.device).tril(), False
        beta = resolve_beta(scale, query.shape[-1])
        self.recorder.record(query, key, value, mask, beta, is_causal, dropout_p, out)
        return out

    def _packed(self, *args: Any, **kwargs: Any) -> Any:
        """nn.MultiheadAttention's function, re-entered so that its inner call is seen.

        PyTorch hands the whole function to the mode; called again under the mode it would be handed back for ever.
        So the same code runs with one global name changed: it is told that nobody is watching the outer call.
        """
        original = F.multi_head_attention_forward
        unwatched = {**vars(F), "has_torch_function": lambda tensors: False}
        inner = FunctionType(original.__code__, unwatched, original.__name__, original.__defaults__)
        inner.__kwdefaults__ = original.__kwdefaults__
        call = _MHA_SIGNATURE.bind(*args, **kwargs)
        call.apply_defaults()
        if call.arguments["need_weights"]:  # it multiplies the matrices itself instead of calling the kernel
            dropout = call.arguments["dropout_p"] if call.arguments["training"] else 0.0
            self._eager = _EagerHeads(call.arguments["num_heads"], dropout)
        try:
            with self:
                return inner(*args, **kwargs)
        finally:
            self._eager = None


class _Recorder:
    """Makes records of the calls that come from the watched model, in the thread that watches."""

    def __init__(self, seen: Seen, names: dict[int, str], gradients: bool):
        self.seen = seen
        self.names = names
        self.gradients = gradients
        self._thread = threading.get_ident()

    def ours(self, *call: Any) -> None:
        """One call of `ops.attend`: q, k, v, mask, β, causal, dropout, output."""
        if threading.get_ident() == self._thread:
            self.record(*call)

    def own_softmax(self) -> None:
        """A softmax of somebody's own: its module is noted, in case nothing else is seen."""
        owner = self._owner()
        if owner is not None and owner[0] not in self.seen.own_softmax:
            self.seen.own_softmax.append(owner[0])

    def record(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        beta: float,
        causal: bool,
        dropout: float,
        out: Tensor,
        live: Live | None = None,
    ) -> None:
        owner = self._owner()
        if owner is None:  # an attention outside the watched model
            return
        name, tokens = owner
        if not self.gradients:
            live = None
        else:
            live = live or {part: (x, _four_axes) for part, x in zip(RECORD_PARTS, (q, k, v, out), strict=True)}
            if not live["output"][0].requires_grad:
                raise ValueError(
                    f"watch(gradients=True): the output of {name!r} carries no gradient; run the model outside "
                    "no_grad(), with parameters or inputs that require one"
                )
            for tensor, _ in live.values():
                if tensor.requires_grad:
                    tensor.retain_grad()
        if mask is not None and q.ndim != 4:
            mask = _four_axes(mask if q.ndim < 4 else mask.expand(*q.shape[:-2], *mask.shape[-2:]))
        if torch.is_autocast_enabled(out.device.type):  # what the kernel rounded, the record must round
            q, k, v = to_autocast(q), to_autocast(k), to_autocast(v)
        q, k, v, out = (_four_axes(x).detach() for x in (q, k, v, out))
        if q.shape[0] != k.shape[0]:  # PyTorch's kernel lets one sequence stand for a whole batch
            b = max(q.shape[0], k.shape[0])
            q, k, v = (x.expand(b, -1, -1, -1) for x in (q, k, v))
        name = self._free(name)
        record = Record(name, q, k, v, mask, beta, causal, dropout, out, live)
        self.seen._add(record, tokens)

    def _owner(self) -> tuple[str, TokenShapes | None] | None:
        """The innermost module of the model on the call stack, and what it was called with."""
        frame, name, module = sys._getframe(3), None, None  # the nearest three are this file's own
        while frame is not None:
            mine = _self(frame)
            if name is None and id(mine) in self.names:
                name, module = self.names[id(mine)], mine
            if name is not None and mine is module and frame.f_code.co_name == "_call_impl":  # of nn.Module
                inputs = frame.f_locals
                return name, TokenShapes.among([*inputs.get("args", ()), *inputs.get("kwargs", {}).values()])
            frame = frame.f_back
        return None if name is None else (name, None)

    def _free(self, name: str) -> str:
        times = 1
        while (free := name if times == 1 else f"{name}#{times}") in self.seen._records:
            times += 1
        return free


class _EagerHeads:
    """Follows nn.MultiheadAttention with need_weights=True: scores = [mask +] (q/√d)·kᵀ, softmax, weights·v."""

    def __init__(self, heads: int, dropout: float):
        self.heads = heads
        self.dropout = dropout
        self.scored: tuple[Tensor, Tensor, Tensor | None] | None = None

    def follow(self, func: Callable, args: tuple, out: Tensor, record: Callable[..., None]) -> None:
        if self.scored is None:
            mask, q, k = (None, *args) if func is torch.bmm else args
            self.scored = q, k, mask
            return
        (q, k, mask), v = self.scored, args[1]
        beta, split = 1.0 / math.sqrt(q.shape[-1]), partial(torch.unflatten, dim=0, sizes=(-1, self.heads))
        if mask is not None:
            mask = split(mask) if mask.shape[0] == q.shape[0] else mask[None]
        live: Live = {
            "q": (q, lambda g: split(g) * beta),
            "k": (k, lambda g: split(g).mT),
            "v": (v, split),
            "output": (out, split),
        }
        record(split(q) / beta, split(k).mT, split(v), mask, beta, False, self.dropout, split(out), live=live)


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


def _why_nothing(model: nn.Module, seen: Seen) -> str:
    kind = type(model).__name__
    if seen.own_softmax:
        return (
            f"watch saw no attention in {kind}: it computes its own softmax in {seen.own_softmax[0]!r}, where q and k "
            "can't be told; let it call scaled_dot_product_attention (Hugging Face: attn_implementation='sdpa'; timm: "
            "fused attention) or pellucid.ops.attend"
        )
    return (
        f"watch saw no attention in {kind}: inside the block nothing in it called pellucid.ops.attend, PyTorch's "
        "scaled_dot_product_attention or nn.MultiheadAttention"
    )
