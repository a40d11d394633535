"""The one seam: every model reaches attention through `attend`, and which kernel runs is decided here.

Axes: b batch, h heads, q query token, k key token, d width of queries and keys, e width of values. Tokens are rows.
"""

import importlib.util
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.weak import WeakTensorKeyDictionary

from pellucid.ops import masks, tiled
from pellucid.ops.checks import check_attention, check_list, is_learned, resolve_beta
from pellucid.ops.exact import share_heads, weight_blocks, weight_rows
from pellucid.ops.listed import attend_listed, takes_lists

Impl = Literal["auto", "reference", "fused", "triton"]
MANY_QUERIES = 64  # from here on a tile of our kernel for masks is full
FEW_QUERIES = 16  # up to here the formula takes a sixth to three quarters of the kernel's time on an H200
_HAS_TRITON = importlib.util.find_spec("triton") is not None
PlainMask = Bool[Tensor, "..."] | Float[Tensor, "..."] | None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    listed: Tensor | None = None,
    dropout: float = 0.0,
    impl: Impl = "auto",
) -> Float[Tensor, "b h q e"]:
    """softmax(β·qkᵀ)·v: each query's mixture of the values whose keys it matches.

    q (b h q d), k (b g k d), v (b g k e); h is a multiple of g, and e may differ from d.

    mask: boolean, True = may attend, or a float bias added to β·qkᵀ; broadcasts to (b h q k).
        A query that may attend to nothing gets zeros, and its gradients are finite.
    beta: inverse temperature, 1/√d unless given; 0 is the plain mean, math.inf hard attention, ties shared equally.
    causal: query i sees keys up to its own position, the queries being the last rows of the keys' sequence.
    listed: (b q s) the only keys that a query may attend to, each named once.
    dropout: probability of dropping a weight; it is applied whenever it isn't zero.
    impl: "reference" is the formula. "fused" is PyTorch's kernel, which never builds the map. "triton" is ours (CUDA):
        one for up to 128 tokens in half precision with no mask, else one that reads only what the mask shows and gives
        no gradients. "auto" is "fused", but on CUDA "triton" where the first of ours fits compiled code, or where in
        half precision a mask hides the same keys from all queries (padding) and no gradient is wanted; and "reference"
        for a few queries in float32, where it takes half the time.

    >>> q, k, v = torch.randn(1, 12, 5, 64), torch.randn(1, 12, 7, 64), torch.randn(1, 12, 7, 32)
    >>> attend(q, k, v).shape
    torch.Size([1, 12, 5, 32])
    """
    if has_torch_function((q, k, v)):  # a mode that looks at PyTorch's calls sees this one and not its insides
        options = {"beta": beta, "causal": causal, "listed": listed, "dropout": dropout, "impl": impl}
        return handle_torch_function(attend, (q, k, v), q, k, v, mask, **options)
    check_attention(q, k, v, mask)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; expected a probability in [0, 1)")
    if impl not in ("auto", "reference", "fused", "triton"):
        raise ValueError(f"impl is {impl!r}; expected 'auto', 'reference', 'fused' or 'triton'")
    beta = resolve_beta(beta, q.shape[-1])
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = to_autocast(q), to_autocast(k), to_autocast(v)
    if listed is not None:
        check_list(listed, q)
        alone = impl == "auto" and mask is None and not (causal or dropout or math.isinf(beta) or _observers)
        if alone and takes_lists(q, k, v, listed):
            return attend_listed(q, k, v, listed, beta)
        mask = masks.combine(mask, masks.listed(listed, k.shape[2]))
    out = _run(impl, q, k, v, mask, beta, causal, dropout)
    if not torch.compiler.is_compiling():  # so that somebody else's watching never touches a compiled graph
        for observe in _observers:
            changed = observe(q, k, v, mask, beta, causal, dropout, out)
            out = out if changed is None else changed
    return out


def to_autocast(x: Tensor) -> Tensor:
    """x as PyTorch's kernel gets it under autocast, which rounds everything but float64."""
    return x if x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(x.device.type))


AttentionObserver = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, bool, float, Tensor], Tensor | None]
_observers: tuple[AttentionObserver, ...] = ()
_observers_lock = threading.Lock()


@contextmanager
def observed_by(observe: AttentionObserver) -> Iterator[None]:
    """While the block runs, every call of attend, in any thread, is shown to `observe`: what came in and went out.

    What it gives back, if anything, takes the place of what went out.
    """
    global _observers
    with _observers_lock:
        _observers = (*_observers, observe)
    try:
        yield
    finally:
        with _observers_lock:
            _observers = tuple(other for other in _observers if other is not observe)


def has_observers() -> bool:
    """Whether anybody is shown the calls of attend; what replays a graph must then run them one by one."""
    return bool(_observers)


def _run(
    impl: Impl, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, beta: float, causal: bool, dropout: float
) -> Tensor:
    """The call by the implementation that was asked for, or by the one that suits it."""
    # An eager call of ours costs 100 µs.
    may_be_short = impl == "triton" or (impl == "auto" and torch.compiler.is_compiling())
    if may_be_short and _is_short(q, k, v, mask, beta, causal, dropout):
        from pellucid.kernels.short import short_attention

        return short_attention(q, k, v, beta)
    if impl == "auto" and _is_padded(q, v, mask, dropout) and tiled.takes("auto", q, k, mask, beta, v):
        return tiled.attend(q, k, v, mask, beta, causal)
    if impl == "triton":
        if dropout == 0.0 and v.shape[-1] <= tiled.WIDEST_HEAD and tiled.takes("auto", q, k, mask, beta, v):
            return tiled.attend(q, k, v, mask, beta, causal)
        raise ValueError(
            "impl='triton' needs CUDA tensors in float32 or less, heads up to 256 wide, a finite beta and no dropout, "
            "and gives gradients only in half precision for up to 128 tokens and no mask; use impl='fused'"
        )
    by_formula = impl == "reference" or (impl == "auto" and _are_few(q, k, v))
    return (_reference if by_formula else _fused)(q, k, v, mask, beta, causal, dropout)


def _is_short(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, beta: float, causal: bool, dropout: float) -> bool:
    """Whether the kernel for short sequences takes this call. Triton is imported for the first one that it may take."""
    if not (q.is_cuda and _HAS_TRITON and mask is None and not causal and dropout == 0.0 and math.isfinite(beta)):
        return False
    from pellucid.kernels.short import fits

    return fits(q, k, v)


def _is_padded(q: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether a mask is worth our kernel: one that hides the same keys from many queries, as padding does.

    Of what a mask hides for each query by itself few whole tiles are left out, and PyTorch's kernel is the faster one.
    """
    if mask is None or not q.is_cuda or dropout > 0.0 or mask.dtype != torch.bool:
        return False
    half = q.dtype in (torch.bfloat16, torch.float16)
    return masks.is_for_all(mask) and half and q.shape[2] >= MANY_QUERIES and v.shape[-1] <= tiled.WIDEST_HEAD


def _are_few(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the map is sooner built than avoided: in float32 the kernel computes 64 queries, however few ask."""
    few = q.is_cuda and q.dtype == torch.float32 and q.shape[2] <= FEW_QUERIES
    return few and not is_learned(q, k, v) and not torch.compiler.is_compiling()


def _reference(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    mask: PlainMask,
    beta: float,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "b h q e"]:
    weights = weight_rows(q, k, mask, beta, causal, slice(None))
    return _mix(F.dropout(weights, dropout), v)


def _fused(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    mask: PlainMask,
    beta: float,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "b h q e"]:
    if mask is None and 0.0 < beta < math.inf and q.shape == k.shape == v.shape and q.shape[-1] % 8 == 0:
        return F.scaled_dot_product_attention(q, k, v, None, dropout, causal, scale=beta)  # nearly every call
    if math.isinf(beta):  # no kernel knows hard attention: a few rows of the formula at a time
        blocks = weight_blocks(q, k, mask, beta, causal)
        return torch.cat([_mix(F.dropout(weights, dropout), v) for _, weights in blocks], dim=2)
    if beta <= 0:  # kernels mask before they scale, and −∞ times zero or less is no mask: the sign goes into q
        q, beta = (q * 0, 1.0) if beta == 0 else (-q, -beta)
    if causal and (mask is not None or q.shape[2] != k.shape[2]):  # kernels take no mask beside is_causal,
        mask = masks.combine(mask, masks.causal(q.shape[2], k.shape[2], device=q.device))  # and align it top left
        causal = False
    alive = None
    if mask is not None:
        mask, alive, _ = _kernel_mask(mask, q)
    grouped = q.shape[1] != k.shape[1]
    if grouped and not _kernel_shares_heads(q, mask):
        k, v, grouped = share_heads(k, q.shape[1]), share_heads(v, q.shape[1]), False
    width, e = _kernel_width(q, v), v.shape[-1]
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=beta, enable_gqa=grouped)
    out = out[..., :e] if e < width else out
    return out if alive is None else torch.where(alive, out, 0.0)


def _mix(weights: Float[Tensor, "b h n k"], v: Float[Tensor, "b g k e"]) -> Float[Tensor, "b h n e"]:
    with torch.autocast(v.device.type, enabled=False):
        return (weights @ share_heads(v, weights.shape[1]).to(weights.dtype)).to(v.dtype)


class _ForKernel(NamedTuple):
    """A mask as kernels want it; and which queries see anything at all, None if every one does."""

    mask: Tensor
    alive: Tensor | None
    is_sure: bool = False  # that alive is None if it could be


_known_masks: Any = WeakTensorKeyDictionary()


def _kernel_mask(mask: Tensor, q: Tensor) -> _ForKernel:
    """Two axes or more, a bias in the dtype of q; and what to do about queries that see nothing.

    The CPU's kernel gives zeros to a query that may attend to nothing. cuDNN gives it some mixture of the values, and
    at some sizes NaN gradients: off the CPU such a query is let see everything, and its output is thrown away.
    """
    if q.device.type == "cpu":
        return _ForKernel(_plain(mask, q.dtype), None)
    return _prepare(mask, q.dtype) if torch.compiler.is_compiling() else _prepare_once(mask, q.dtype)


def _prepare_once(mask: Tensor, dtype: torch.dtype) -> _ForKernel:
    """A mask that comes again is not looked at again, and from then on one in which every query sees something costs
    nothing. To know that is to wait for the device, so the first call, which may be the only one, doesn't ask."""
    dtype = mask.dtype if mask.dtype == torch.bool else dtype
    capturing = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if mask.is_inference() or mask.requires_grad or capturing:
        return _prepare(mask, dtype)
    version, known = _known_masks.get(mask, (-1, {}))
    if version != mask._version:
        known = {}
        _known_masks[mask] = mask._version, known
    if dtype not in known:
        known[dtype] = _prepare(mask, dtype)
    elif not known[dtype].is_sure:
        prepared, alive, _ = known[dtype]
        dead = alive is not None and not alive.all()
        known[dtype] = _ForKernel(prepared, alive, True) if dead else _ForKernel(_plain(mask, dtype), None, True)
    return known[dtype]


def _prepare(mask: Tensor, dtype: torch.dtype) -> _ForKernel:
    mask = _plain(mask, dtype)
    boolean = mask.dtype == torch.bool
    alive = (mask if boolean else mask > -math.inf).any(-1, keepdim=True)
    return _ForKernel(mask | ~alive if boolean else mask.masked_fill(~alive, 0.0), alive)


def _plain(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.atleast_2d(mask if mask.dtype == torch.bool else mask.to(dtype))


def _kernel_width(q: Tensor, v: Tensor) -> int:
    """One width for q, k and v: with two, PyTorch falls back to building the map. CUDA wants multiples of 8."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def _kernel_shares_heads(q: Tensor, mask: Tensor | None) -> bool:
    """Whether a kernel takes grouped heads; elsewhere PyTorch falls back to building the map."""
    return q.device.type == "cpu" or (q.dtype in (torch.float16, torch.bfloat16) and mask is None)
