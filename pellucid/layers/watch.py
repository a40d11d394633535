"""See every attention of a model while it runs, without changing what it computes.

One torch function mode stands at the two seams through which attention passes, ours (`ops.attend`) and PyTorch's
(`scaled_dot_product_attention`), and keeps q, k, v, mask, β and the output of each call. Forward hooks tell in which
module the call was made. The kernel is the one that would have run anyway.
"""

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pellucid.layers.cache import KeysValues
from pellucid.layers.record import PARTS, Live, Record
from pellucid.layers.shapes import ShapeTable, Tokens, describe
from pellucid.ops import attend
from pellucid.ops.checks import resolve_beta

_SOFTMAX = {torch.softmax, torch.special.softmax, F.softmax, Tensor.softmax}
_MHA_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


class Seen(Mapping[str, Record]):
    """The attentions of a watched model by their dotted module names, in the order in which they ran.

    A module that attends more than once gets `name`, `name#2`, `name#3`, …
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._records: dict[str, Record] = {}
        self._tokens: dict[str, Tokens] = {}
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

    def table(self, *, columns: bool = False) -> ShapeTable:
        """Every intermediate of every attention: name, equation, axes and shape."""
        lines = []
        for name, record in self.items():
            module = self._model.get_submodule(name.partition("#")[0])
            lines += describe(record, module, self._tokens.get(name), columns=columns)
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
    _refuse_compiled(model)
    seen = Seen(model)
    watcher = _Watcher(seen, gradients)
    handles = []
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(watcher.enter, name), with_kwargs=True))
            handles.append(module.register_forward_hook(partial(watcher.leave, name), always_call=True))
        with watcher:
            yield seen
    finally:
        for handle in handles:
            handle.remove()
    if watcher.ran and not seen:
        raise ValueError(_why_nothing(model, seen))


class _Watcher(TorchFunctionMode):
    def __init__(self, seen: Seen, gradients: bool):
        super().__init__()
        self.seen = seen
        self.gradients = gradients
        self.ran = False
        self._thread = threading.get_ident()
        self._inside: list[_Call] = []
        self._eager: _EagerHeads | None = None

    def enter(self, name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if threading.get_ident() == self._thread:
            self.ran = True
            self._inside.append(_Call(name, [*args, *kwargs.values()]))

    def leave(self, name: str, module: nn.Module, args: tuple, output: Any) -> None:
        if threading.get_ident() != self._thread or not self._inside or self._inside[-1].name != name:
            return
        call = self._inside.pop()
        tokens = call.tokens(output)
        for record in call.records:
            if tokens is not None:
                self.seen._tokens[record] = tokens

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not self._inside:
            return func(*args, **kwargs)
        if func is attend:
            return self._ours(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._theirs(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._packed(*args, **kwargs)
        out = func(*args, **kwargs)
        if self._eager is not None:
            self._eager.follow(func, args, out, self._record)
        elif func in _SOFTMAX and args[0].ndim > 2 and self._inside[-1].name not in self.seen.own_softmax:
            self.seen.own_softmax.append(self._inside[-1].name)
        return out

    def _ours(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        out = attend(q, k, v, mask, **options)
        beta = resolve_beta(options["beta"], q.shape[-1])
        casts = options["impl"] != "reference"
        self._record(q, k, v, mask, beta, options["causal"], options["dropout"], out, casts=casts)
        return out

    def _theirs(
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
        self._record(query, key, value, mask, beta, is_causal, dropout_p, out)
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
        given = _MHA_SIGNATURE.bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments["need_weights"]:  # it multiplies the matrices itself instead of calling the kernel
            dropout = given.arguments["dropout_p"] if given.arguments["training"] else 0.0
            self._eager = _EagerHeads(given.arguments["num_heads"], dropout)
        try:
            with self:
                return inner(*args, **kwargs)
        finally:
            self._eager = None

    def _record(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        beta: float,
        causal: bool,
        dropout: float,
        out: Tensor,
        *,
        casts: bool = True,
        live: Live | None = None,
    ) -> None:
        if not self.gradients:
            live = None
        else:
            live = live or {part: (x, _four_axes) for part, x in zip(PARTS, (q, k, v, out), strict=True)}
            if not live["output"][0].requires_grad:
                raise ValueError(
                    f"watch(gradients=True): the output of {self._inside[-1].name!r} carries no gradient; run the "
                    "model outside no_grad(), with parameters or inputs that require one"
                )
            for tensor, _ in live.values():
                if tensor.requires_grad:
                    tensor.retain_grad()
        if mask is not None and q.ndim != 4:
            mask = _four_axes(mask if q.ndim < 4 else mask.expand(*q.shape[:-2], *mask.shape[-2:]))
        q, k, v = (_four_axes(_as_the_kernel_sees(x) if casts else x).detach() for x in (q, k, v))
        name, out = self._free_name(), _four_axes(out).detach()
        self.seen._records[name] = Record(name, q, k, v, mask, beta, causal, dropout, out, live)
        self._inside[-1].records.append(name)

    def _free_name(self) -> str:
        name, times = self._inside[-1].name, 1
        while (free := name if times == 1 else f"{name}#{times}") in self.seen._records:
            times += 1
        return free


@dataclass
class _Call:
    """A module that is running: its name, what it was given, and the records made in it."""

    name: str
    inputs: list[Any]
    records: list[str] = field(default_factory=list)

    def tokens(self, output: Any) -> Tokens | None:
        """The shapes of the tokens that went in and came out, where they can be told."""
        result = output[0] if isinstance(output, tuple) else output
        given = [x for x in self.inputs if isinstance(x, Tensor) and x.ndim == 3 and x.is_floating_point()]
        if not given or not isinstance(result, Tensor):
            return None
        context = tuple(given[1].shape) if len(given) > 1 and given[1] is not given[0] else None
        crossing = context is not None or any(isinstance(x, KeysValues) for x in self.inputs)
        return Tokens(tuple(given[0].shape), context, tuple(result.shape), crossing)


class _EagerHeads:
    """Follows nn.MultiheadAttention with need_weights=True: scores = [mask +] (q/√d)·kᵀ, softmax, weights·v."""

    def __init__(self, heads: int, dropout: float):
        self.heads = heads
        self.dropout = dropout
        self.scored: tuple[Tensor, Tensor, Tensor | None] | None = None

    def follow(self, func: Callable, args: tuple, out: Tensor, record: Callable[..., None]) -> None:
        if func not in (torch.bmm, torch.baddbmm):
            return
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


def _as_the_kernel_sees(x: Tensor) -> Tensor:
    """Under autocast the kernel rounds its inputs; so must the record, or it would not reproduce the output."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _four_axes(x: Tensor) -> Tensor:
    """(… t d) as (b h t d): one head if there is no axis for it."""
    if x.ndim > 4:
        return x.flatten(0, x.ndim - 4)
    if x.ndim == 3:
        return x[:, None]
    return x[None, None] if x.ndim == 2 else x


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError(
                f"watch can't see inside a compiled module ({name or type(model).__name__!r}); "
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
        f"watch saw no attention in {kind}: nothing in it called pellucid.ops.attend, PyTorch's "
        "scaled_dot_product_attention or nn.MultiheadAttention"
    )
