"""Attention over short sequences: a head's whole map lives in one program's registers and is never written.

PyTorch's kernels are made for long sequences. Here one program takes one head of one image, forward or backward, reads
q, k, v (and the gradient) once and writes each result once. softmax(β·qkᵀ)·v, with no mask and no dropout.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false
# Triton comes with CUDA builds of PyTorch alone, and its kernels are launched as kernel[grid](…). It compiles what it
# reads, so nothing may be wrapped around a kernel, not even the checking of types while tests run: @no_type_check.

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST_SEQUENCE = 128
WIDTHS = (16, 32, 64, 128)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether this kernel takes them: on CUDA, in half precision, heads not shared, short and of a usual width."""
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and k.shape == v.shape
        and q.shape[1] == k.shape[1]
        and q.shape[-1] == k.shape[-1]
        and q.shape[-1] in WIDTHS
        and max(q.shape[2], k.shape[2]) <= LONGEST_SEQUENCE
    )


@triton.jit
@no_type_check
def _load(pointer, batch, head, rows, columns, sb, sh, st, n):
    at = pointer + batch * sb + head * sh + rows[:, None] * st + columns[None, :]
    return tl.load(at, mask=rows[:, None] < n, other=0.0)


@triton.jit
@no_type_check
def _store(pointer, x, batch, head, rows, columns, sb, sh, st, n):
    at = pointer + batch * sb + head * sh + rows[:, None] * st + columns[None, :]
    tl.store(at, x.to(pointer.dtype.element_ty), mask=rows[:, None] < n)


@triton.jit
@no_type_check
def _weights(q, k, keys, n_k, beta):
    """Rows of the map, in float32; keys that don't exist get nothing."""
    scores = tl.dot(q, tl.trans(k)) * (beta * 1.4426950408889634)  # log2(e): exp2 is the cheaper one
    scores = tl.where(keys[None, :] < n_k, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
@no_type_check
def _forward(
    q, k, v, out, beta, heads, n_q, n_k,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot,
    N_Q: tl.constexpr, N_K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batch = batch.to(tl.int64)
    rows, keys, columns = tl.arange(0, N_Q), tl.arange(0, N_K), tl.arange(0, D)
    queries = _load(q, batch, head, rows, columns, qb, qh, qt, n_q)
    weights = _weights(queries, _load(k, batch, head, keys, columns, kb, kh, kt, n_k), keys, n_k, beta)
    values = _load(v, batch, head, keys, columns, vb, vh, vt, n_k)
    _store(out, tl.dot(weights.to(values.dtype), values), batch, head, rows, columns, ob, oh, ot, n_q)


@triton.jit
@no_type_check
def _backward(
    q, k, v, grad, dq, dk, dv, beta, heads, n_q, n_k,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, ab, ah, at, bb, bh, bt, cb, ch, ct,
    N_Q: tl.constexpr, N_K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batch = batch.to(tl.int64)
    rows, keys, columns = tl.arange(0, N_Q), tl.arange(0, N_K), tl.arange(0, D)
    queries = _load(q, batch, head, rows, columns, qb, qh, qt, n_q)
    others = _load(k, batch, head, keys, columns, kb, kh, kt, n_k)
    weights = _weights(queries, others, keys, n_k, beta)
    given = _load(grad, batch, head, rows, columns, gb, gh, gt, n_q)  # zero in rows that don't exist
    _store(dv, tl.dot(tl.trans(weights.to(given.dtype)), given), batch, head, keys, columns, cb, ch, ct, n_k)
    values = _load(v, batch, head, keys, columns, vb, vh, vt, n_k)
    slope = tl.dot(given, tl.trans(values))
    slope = weights * (slope - tl.sum(weights * slope, 1)[:, None]) * beta
    slope = slope.to(queries.dtype)
    _store(dq, tl.dot(slope, others), batch, head, rows, columns, ab, ah, at, n_q)
    _store(dk, tl.dot(tl.trans(slope), queries), batch, head, keys, columns, bb, bh, bt, n_k)


# 65 tokens (64 patches and a class token) fill half a block of 128, and a quarter of its map. These two take a block
# and a tail of 16 more tokens, as a and b: the map is aa ab / ba bb.


@triton.jit
@no_type_check
def _tailed_weights(q, ka, kb, at_a, at_b, n, beta):
    sa = tl.dot(q, tl.trans(ka)) * (beta * 1.4426950408889634)
    sb = tl.dot(q, tl.trans(kb)) * (beta * 1.4426950408889634)
    sb = tl.where(at_b[None, :] < n, sb, float("-inf"))
    top = tl.maximum(tl.max(sa, 1), tl.max(sb, 1))[:, None]
    wa, wb = tl.exp2(sa - top), tl.exp2(sb - top)
    total = (tl.sum(wa, 1) + tl.sum(wb, 1))[:, None]
    return wa / total, wb / total


@triton.jit
@no_type_check
def _tailed_slopes(wa, wb, grad, va, vb, beta):
    sa, sb = tl.dot(grad, tl.trans(va)), tl.dot(grad, tl.trans(vb))
    mean = (tl.sum(wa * sa, 1) + tl.sum(wb * sb, 1))[:, None]
    return (wa * (sa - mean) * beta).to(grad.dtype), (wb * (sb - mean) * beta).to(grad.dtype)


@triton.jit
@no_type_check
def _tailed_forward(
    q, k, v, out, beta, heads, n,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot,
    N: tl.constexpr, TAIL: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batch = batch.to(tl.int64)
    a, b, columns = tl.arange(0, N), N + tl.arange(0, TAIL), tl.arange(0, D)
    k_a, k_b = _load(k, batch, head, a, columns, kb, kh, kt, n), _load(k, batch, head, b, columns, kb, kh, kt, n)
    v_a, v_b = _load(v, batch, head, a, columns, vb, vh, vt, n), _load(v, batch, head, b, columns, vb, vh, vt, n)
    w_aa, w_ab = _tailed_weights(_load(q, batch, head, a, columns, qb, qh, qt, n), k_a, k_b, a, b, n, beta)
    mixed = tl.dot(w_aa.to(v_a.dtype), v_a) + tl.dot(w_ab.to(v_a.dtype), v_b)
    _store(out, mixed, batch, head, a, columns, ob, oh, ot, n)
    w_ba, w_bb = _tailed_weights(_load(q, batch, head, b, columns, qb, qh, qt, n), k_a, k_b, a, b, n, beta)
    mixed = tl.dot(w_ba.to(v_a.dtype), v_a) + tl.dot(w_bb.to(v_a.dtype), v_b)
    _store(out, mixed, batch, head, b, columns, ob, oh, ot, n)


@triton.jit
@no_type_check
def _tailed_backward(
    q, k, v, grad, dq, dk, dv, beta, heads, n,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, db, dh, dt, eb, eh, et, fb, fh, ft,
    N: tl.constexpr, TAIL: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batch = batch.to(tl.int64)
    a, b, columns = tl.arange(0, N), N + tl.arange(0, TAIL), tl.arange(0, D)
    q_a, q_b = _load(q, batch, head, a, columns, qb, qh, qt, n), _load(q, batch, head, b, columns, qb, qh, qt, n)
    k_a, k_b = _load(k, batch, head, a, columns, kb, kh, kt, n), _load(k, batch, head, b, columns, kb, kh, kt, n)
    g_a, g_b = _load(grad, batch, head, a, columns, gb, gh, gt, n), _load(grad, batch, head, b, columns, gb, gh, gt, n)
    w_aa, w_ab = _tailed_weights(q_a, k_a, k_b, a, b, n, beta)
    w_ba, w_bb = _tailed_weights(q_b, k_a, k_b, a, b, n, beta)
    half = g_a.dtype
    sums = tl.dot(tl.trans(w_aa.to(half)), g_a) + tl.dot(tl.trans(w_ba.to(half)), g_b)
    _store(dv, sums, batch, head, a, columns, fb, fh, ft, n)
    sums = tl.dot(tl.trans(w_ab.to(half)), g_a) + tl.dot(tl.trans(w_bb.to(half)), g_b)
    _store(dv, sums, batch, head, b, columns, fb, fh, ft, n)
    v_a, v_b = _load(v, batch, head, a, columns, vb, vh, vt, n), _load(v, batch, head, b, columns, vb, vh, vt, n)
    s_aa, s_ab = _tailed_slopes(w_aa, w_ab, g_a, v_a, v_b, beta)
    s_ba, s_bb = _tailed_slopes(w_ba, w_bb, g_b, v_a, v_b, beta)
    _store(dq, tl.dot(s_aa, k_a) + tl.dot(s_ab, k_b), batch, head, a, columns, db, dh, dt, n)
    _store(dq, tl.dot(s_ba, k_a) + tl.dot(s_bb, k_b), batch, head, b, columns, db, dh, dt, n)
    sums = tl.dot(tl.trans(s_aa), q_a) + tl.dot(tl.trans(s_ba), q_b)
    _store(dk, sums, batch, head, a, columns, eb, eh, et, n)
    sums = tl.dot(tl.trans(s_ab), q_a) + tl.dot(tl.trans(s_bb), q_b)
    _store(dk, sums, batch, head, b, columns, eb, eh, et, n)


@torch.library.custom_op("pellucid::short_attention", mutates_args=())
def short_attention(q: Tensor, k: Tensor, v: Tensor, beta: float) -> Tensor:
    """softmax(β·qkᵀ)·v for (b h t d), as `fits` says; the result lies in memory as (b t h d), ready to be joined."""
    q, k, v = (_readable(x) for x in (q, k, v))
    out = _like(q)
    (b, h, n_q, d), n_k = q.shape, k.shape[2]
    strides = [s for x in (q, k, v, out) for s in x.stride()[:3]]
    if n_q == n_k and _has_tail(n_k):
        sizes = {"N": _block(n_k) // 2, "TAIL": 16, "D": d}
        _tailed_forward[(b * h,)](q, k, v, out, beta, h, n_k, *strides, **sizes, num_warps=4)
    else:
        sizes = {"N_Q": _block(n_q), "N_K": _block(n_k), "D": d}
        _forward[(b * h,)](q, k, v, out, beta, h, n_q, n_k, *strides, **sizes, num_warps=_warps(sizes))
    return out


@torch.library.custom_op("pellucid::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, grad = (_readable(x) for x in (q, k, v, grad))
    dq, dk, dv = _like(q), _like(k), _like(v)
    (b, h, n_q, d), n_k = q.shape, k.shape[2]
    strides = [s for x in (q, k, v, grad, dq, dk, dv) for s in x.stride()[:3]]
    if n_q == n_k and _has_tail(n_k):
        sizes = {"N": _block(n_k) // 2, "TAIL": 16, "D": d}
        _tailed_backward[(b * h,)](q, k, v, grad, dq, dk, dv, beta, h, n_k, *strides, **sizes, num_warps=4)
    else:
        sizes = {"N_Q": _block(n_q), "N_K": _block(n_k), "D": d}
        _backward[(b * h,)](q, k, v, grad, dq, dk, dv, beta, h, n_q, n_k, *strides, **sizes, num_warps=_warps(sizes))
    return dq, dk, dv


@short_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, beta: float) -> Tensor:
    return _like(q)


@short_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q), _like(k), _like(v)


def _keep(ctx, inputs, output) -> None:
    q, k, v, ctx.beta = inputs
    ctx.save_for_backward(q, k, v)


def _gradients(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return (*short_attention_backward(grad, *ctx.saved_tensors, ctx.beta), None)


short_attention.register_autograd(_gradients, setup_context=_keep)


def _like(x: Tensor) -> Tensor:
    """An empty (b h t d) whose memory lies as (b t h d)."""
    b, h, t, d = x.shape
    return x.new_empty(b, t, h, d).transpose(1, 2)


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _block(n: int) -> int:
    """tl.dot wants 16 rows at least, and powers of two."""
    return max(16, triton.next_power_of_2(n))


def _has_tail(n: int) -> bool:
    """Whether n is just above 64. Above 32 half a block is too small for matrix units: a whole one is faster."""
    return n > 64 and n - _block(n) // 2 <= 16


def _warps(sizes: dict[str, int]) -> int:
    return 8 if sizes["N_Q"] * sizes["N_K"] > 64 * 64 else 4
