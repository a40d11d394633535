"""Pᵀ·x for a wide x, the rows' totals known: tiles of weights times tiles of x, on the matrix units.

Units of half precision round what they multiply. An x in half precision gets weights rounded once, as attention's
values do; an x in float32 is given to them in two, rounded and what that lost, and so are the weights.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from pellucid.kernels.tiles import (
    LENGTHS,
    LOG2E,
    Launch,
    hide,
    kind,
    load_rows,
    padded_width,
    place,
    read_mask,
    span,
    tiles_of,
)
from pellucid.kernels.totals import Totals, levels


@triton.jit
@no_type_check
def _pass(
    first, last, turn, jump, order, sums, kept, q, mask, tops, logs, level, x, here, scale, columns, x_columns,
    n_q, n_k, width, x_width, offset, qt, xt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, SPLIT: tl.constexpr, STEP: tl.constexpr,
    WHOLE: tl.constexpr, WHOLE_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        there = j * STEP + tl.arange(0, STEP)
        moved = load_rows(q, j * STEP, n_q, columns, width, qt, STEP, WHOLE, not PARTLY)
        s = tl.dot(kept, tl.trans(moved), input_precision=PRECISION)
        if PARTLY:  # the two apart: a top of −10³⁰ would swallow the logarithm
            s = hide(s * scale, mask, there[None, :], here[:, None], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            top = tl.load(tops + there, mask=there < n_q, other=0.0)
            log = tl.load(logs + there, mask=there < n_q, other=float("inf"))
            p = tl.exp2((s - top[None, :]) - log[None, :])
        else:
            p = tl.exp2(s * scale - tl.load(level + there)[None, :])
        sent = load_rows(x, j * STEP, n_q, x_columns, x_width, xt, STEP, WHOLE_X, not PARTLY)
        if SPLIT:  # each of the two as what half precision holds of it and what that lost
            half = moved.dtype
            p_near, x_near = p.to(half), sent.to(half)
            sums = tl.dot(p_near, x_near, sums)
            sums = tl.dot((p - p_near.to(tl.float32)).to(half), x_near, sums)
            sums = tl.dot(p_near, (sent - x_near.to(tl.float32)).to(half), sums)
        else:
            sums = tl.dot(p.to(sent.dtype), sent, sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _spread(
    q, k, mask, order, counts, tops, logs, level, x, out, scale,
    n_q, n_k, width, x_width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, xb, xh, xt, mb, mh, mq, mk, ob, oh, ot,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr,
    D: tl.constexpr, WHOLE: tl.constexpr, DX: tl.constexpr, WHOLE_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    here, columns, x_columns = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, DX)
    q, x = q + batch * qb + head * qh, x + batch * xb + head * xh
    rows = both.to(tl.int64) * n_q
    tops, logs, level = tops + rows, logs + rows, level + rows
    kept = load_rows(
        k + batch * kb + (head // group) * kh, tile * KEPT, n_k, columns, width, kt, KEPT, WHOLE
    )  # fmt: skip
    offset = n_k - n_q
    if MASK != 0:
        mask += batch * mb + head * mh
        listed = batch * ob + head * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to, turn, jump = span(
        counts, tile, n_q, n_k, n_others, offset, True, CAUSAL, MASK, KEPT, STEP
    )  # fmt: skip
    sums = tl.zeros([KEPT, DX], tl.float32)
    sums = _pass(
        whole_from, whole_to, turn, jump, order,
        sums, kept, q, mask, tops, logs, level, x, here, scale, columns, x_columns,
        n_q, n_k, width, x_width, offset, qt, xt, mq, mk,
        MASK, CAUSAL, False, SPLIT, STEP, WHOLE, WHOLE_X, PRECISION,
    )  # fmt: skip
    sums = _pass(
        partly_from, partly_to, turn, jump, order,
        sums, kept, q, mask, tops, logs, level, x, here, scale, columns, x_columns,
        n_q, n_k, width, x_width, offset, qt, xt, mq, mk,
        MASK, CAUSAL, True, SPLIT, STEP, WHOLE, WHOLE_X, PRECISION,
    )  # fmt: skip
    at = (both.to(tl.int64) * n_k + here)[:, None] * x_width + x_columns[None, :]
    tl.store(out + at, sums, mask=(here[:, None] < n_k) & (x_columns[None, :] < x_width))


def spread(
    q: Tensor,
    k: Tensor,
    x: Tensor,
    totals: Totals,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    *,
    launch: Launch | None = None,
) -> Tensor:
    """Pᵀ·x (b h k e) in float32, for x (b h q e), as wide as heads may be."""
    launch = launch or Launch.of("spread", q, x.shape[-1])
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    q, k, x = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, x))
    out = torch.empty(b, h, n_k, x.shape[-1], dtype=torch.float32, device=q.device)
    tiles = tiles_of(n_k, launch.kept)
    given, n_others, strides = read_mask(mask, q, k, causal, launch, by_keys=True)
    wide = padded_width(x.shape[-1])
    _spread[(tiles * b * h,)](
        q, k, *given, *levels(totals), x, out, beta * LOG2E.value,
        n_q, n_k, width, x.shape[-1], h, h // k.shape[1], tiles, n_others,
        *q.stride()[:3], *k.stride()[:3], *x.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, SPLIT=x.dtype != q.dtype,
        DX=wide, WHOLE_X=wide == x.shape[-1], **launch.how(q),
    )  # fmt: skip
    return out
