"""Pᵀ·x for a wide x, the rows' totals known: tiles of weights times tiles of x, on the matrix units.

Half-precision units round what they multiply, so a weight is given to them as two numbers, itself rounded and what that
lost: together 16 bits of it, where one rounding keeps 8. An x in float32 is given in two as well.
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
    four_axes,
    kind,
    load_rows,
    mask_strides,
    padded_width,
    readable,
    span,
    survey,
)
from pellucid.kernels.totals import Totals
from pellucid.kernels.weighed import weigh


@triton.jit
@no_type_check
def _pass(
    first, last, order, sums, kept, q, mask, tops, totals, x, here, scale, columns, x_columns,
    n_q, n_k, width, x_width, offset, qt, xt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, SPLIT: tl.constexpr, STEP: tl.constexpr,
    WHOLE: tl.constexpr, WHOLE_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in range(first, last):
        j = i
        if MASK != 0:
            j = tl.load(order + i)
        there = j * STEP + tl.arange(0, STEP)
        moved = load_rows(q, there, n_q, columns, width, qt, WHOLE)
        p = weigh(
            kept, moved, mask, tops, totals, 0.0, here, there, scale, n_q, n_k, offset, mq, mk,
            True, MASK, CAUSAL, PARTLY, PRECISION,
        )  # fmt: skip
        sent = load_rows(x, there, n_q, x_columns, x_width, xt, WHOLE_X)
        if SPLIT:
            half = moved.dtype
            rounded = p.to(half)
            lost = (p - rounded.to(tl.float32)).to(half)
            near = sent.to(half)
            sums = tl.dot(rounded, near, sums)
            sums = tl.dot(lost, near, sums)
            if sent.dtype == tl.float32:
                sums = tl.dot(rounded, (sent - near.to(tl.float32)).to(half), sums)
        else:
            sums = tl.dot(p, sent.to(tl.float32), sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _spread(
    q, k, mask, order, counts, tops, totals, x, out, scale,
    n_q, n_k, width, x_width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, xb, xh, xt, mb, mh, mq, mk, ob, oh, ot,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SPLIT: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr,
    D: tl.constexpr, WHOLE: tl.constexpr, DX: tl.constexpr, WHOLE_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    here, columns, x_columns = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, DX)
    q, x = q + batch * qb + head * qh, x + batch * xb + head * xh
    tops, totals = tops + both.to(tl.int64) * n_q, totals + both.to(tl.int64) * n_q
    kept = load_rows(k + batch * kb + (head // group) * kh, here, n_k, columns, width, kt, WHOLE)
    offset = n_k - n_q
    if MASK != 0:
        mask += batch * mb + head * mh
        listed = batch * ob + head * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to = span(counts, tile, n_q, n_k, offset, True, CAUSAL, MASK, KEPT, STEP)
    sums = tl.zeros([KEPT, DX], tl.float32)
    sums = _pass(
        whole_from, whole_to, order, sums, kept, q, mask, tops, totals, x, here, scale, columns, x_columns,
        n_q, n_k, width, x_width, offset, qt, xt, mq, mk,
        MASK, CAUSAL, False, SPLIT, STEP, WHOLE, WHOLE_X, PRECISION,
    )  # fmt: skip
    sums = _pass(
        partly_from, partly_to, order, sums, kept, q, mask, tops, totals, x, here, scale, columns, x_columns,
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
    """Pᵀ·x (b h k e) in float32, for x (b h q e) with e up to WIDEST."""
    launch = launch or Launch.fitting(q, x.shape[-1])
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    q, k, x = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, x))
    out = torch.empty(b, h, n_k, x.shape[-1], dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(n_k, launch.kept)
    order, counts, given, strides = totals.top, totals.top, totals.top, [0] * 7
    if mask is not None:
        surveyed = survey(mask, n_q, n_k, causal, launch.step, launch.kept, by_keys=True)
        order, counts = surveyed
        given, strides = readable(mask := four_axes(mask)), [*mask_strides(mask), *surveyed.strides()]
    wide = padded_width(x.shape[-1])
    _spread[(tiles * b * h,)](
        q, k, given, order, counts, totals.top.contiguous(), totals.total.contiguous(), x, out, beta * LOG2E.value,
        n_q, n_k, width, x.shape[-1], h, h // k.shape[1], tiles, order.shape[-1],
        *q.stride()[:3], *k.stride()[:3], *x.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, SPLIT=q.dtype != torch.float32, KEPT=launch.kept, STEP=launch.step,
        DX=wide, WHOLE_X=wide == x.shape[-1], **launch.how(q),
    )  # fmt: skip
    return out
