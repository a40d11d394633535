"""Attention under a mask: what the mask hides is not read, so a batch that is half padding costs half.

FlashAttention (Dao et al. 2022) over the tiles that a survey of the mask names: whole ones without a look at the mask,
partly hidden ones with it. A query that sees nothing gets zeros. Forward alone.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from pellucid.kernels.tiles import (
    HIDDEN,
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
from pellucid.kernels.totals import Totals


@triton.jit
@no_type_check
def _pass(
    first, last, turn, jump, order, top, total, mixed, queries, k, v, mask, scale, rows, columns, v_columns,
    n_q, n_k, width, v_width, offset, kt, vt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, STEP: tl.constexpr,
    WHOLE: tl.constexpr, WHOLE_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        keys = j * STEP + tl.arange(0, STEP)
        others = load_rows(k, j * STEP, n_k, columns, width, kt, STEP, WHOLE, not PARTLY)
        s = tl.dot(queries, tl.trans(others), input_precision=PRECISION)
        if PARTLY:
            s = hide(s * scale, mask, rows[:, None], keys[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            higher = tl.maximum(top, tl.max(s, 1))
            p = tl.exp2(s - higher[:, None])
        else:
            higher = tl.maximum(top, tl.max(s, 1) * scale)
            p = tl.exp2(s * scale - higher[:, None])
        down = tl.exp2(top - higher)
        total = total * down + tl.sum(p, 1)
        values = load_rows(v, j * STEP, n_k, v_columns, v_width, vt, STEP, WHOLE_V, not PARTLY)
        mixed = tl.dot(p.to(values.dtype), values, mixed * down[:, None], input_precision=PRECISION)
        top = higher
    return top, total, mixed


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _masked(
    q, k, v, mask, order, counts, out, top_out, total_out, scale, sign,
    n_q, n_k, width, v_width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ub, uh, ut, mb, mh, mq, mk, ob, oh, ot,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    WHOLE: tl.constexpr, DV: tl.constexpr, WHOLE_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    rows, columns, v_columns = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, DV)
    queries = load_rows(q + batch * qb + head * qh, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
    queries = (queries.to(tl.float32) * sign).to(queries.dtype)
    k, v = k + batch * kb + (head // group) * kh, v + batch * vb + (head // group) * vh
    offset = n_k - n_q
    if MASK != 0:
        mask += batch * mb + head * mh
        listed = batch * ob + head * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to, turn, jump = span(
        counts, tile, n_q, n_k, n_others, offset, False, CAUSAL, MASK, KEPT, STEP
    )  # fmt: skip
    top = tl.full([KEPT], HIDDEN, tl.float32)
    total, mixed = tl.zeros([KEPT], tl.float32), tl.zeros([KEPT, DV], tl.float32)
    top, total, mixed = _pass(
        whole_from, whole_to, turn, jump, order,
        top, total, mixed, queries, k, v, mask, scale, rows, columns, v_columns,
        n_q, n_k, width, v_width, offset, kt, vt, mq, mk, MASK, CAUSAL, False, STEP, WHOLE, WHOLE_V, PRECISION,
    )  # fmt: skip
    top, total, mixed = _pass(
        partly_from, partly_to, turn, jump, order,
        top, total, mixed, queries, k, v, mask, scale, rows, columns, v_columns,
        n_q, n_k, width, v_width, offset, kt, vt, mq, mk, MASK, CAUSAL, True, STEP, WHOLE, WHOLE_V, PRECISION,
    )  # fmt: skip
    dead = top < 0.75 * HIDDEN
    at = both.to(tl.int64) * n_q + rows
    tl.store(top_out + at, tl.where(dead, 0.0, top), mask=rows < n_q)
    tl.store(total_out + at, tl.where(dead, 0.0, total), mask=rows < n_q)
    mixed = tl.where(dead[:, None], 0.0, mixed / total[:, None]).to(out.dtype.element_ty)
    to = out + batch * ub + head * uh + rows.to(tl.int64)[:, None] * ut + v_columns[None, :]
    tl.store(to, mixed, mask=(rows[:, None] < n_q) & (v_columns[None, :] < v_width))


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, beta: float, causal: bool, *, launch: Launch | None = None
) -> tuple[Tensor, Totals]:
    """softmax(β·qkᵀ)·v (b h q e) in the dtype of v, laid in memory as (b q h e), and the rows' totals."""
    launch = launch or Launch.of("masked", q, v.shape[-1])
    (b, h, n_q, width), n_k, e = q.shape, k.shape[2], v.shape[-1]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = v.new_empty(b, n_q, h, e).transpose(1, 2)
    top, total = (torch.empty(b, h, n_q, dtype=torch.float32, device=q.device) for _ in range(2))
    given, n_others, strides = read_mask(mask, q, k, causal, launch)
    tiles, wide = tiles_of(n_q, launch.kept), padded_width(e)
    _masked[(tiles * b * h,)](
        q, k, v, *given, out, top, total, abs(beta) * LOG2E.value, -1.0 if beta < 0 else 1.0,
        n_q, n_k, width, e, h, h // k.shape[1], tiles, n_others,
        *(stride for x in (q, k, v, out) for stride in x.stride()[:3]), *strides,
        MASK=kind(mask), CAUSAL=causal, DV=wide, WHOLE_V=wide == e, **launch.how(q),
    )  # fmt: skip
    return out, Totals(top, total)
