"""One pass over the keys of every query: Σ exp(score), and with it the entropy of each row.

A program keeps a tile of queries. As in FlashAttention (Dao et al. 2022) the largest score so far is taken off, and
what has been summed is brought down when a larger one comes.
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
    LN2,
    LOG2E,
    Launch,
    hide,
    kind,
    load_rows,
    place,
    read_mask,
    span,
    tiles_of,
)
from pellucid.kernels.totals import Totals


@triton.jit
@no_type_check
def _pass(
    first, last, turn, jump, order, top, total, third, queries, k, mask, scale, rows, columns,
    n_q, n_k, width, offset, kt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, ENTROPY: tl.constexpr,
    STEP: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles of keys first … last, taken into the sums. PARTLY: something of them may be hidden."""
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        keys = j * STEP + tl.arange(0, STEP)
        others = load_rows(k, j * STEP, n_k, columns, width, kt, STEP, WHOLE, not PARTLY)
        s = tl.dot(queries, tl.trans(others), input_precision=PRECISION)
        if PARTLY:
            s = hide(s * scale, mask, rows[:, None], keys[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            higher = tl.maximum(top, tl.max(s, 1))
            x = s - higher[:, None]
        else:
            higher = tl.maximum(top, tl.max(s, 1) * scale)
            x = s * scale - higher[:, None]
        p = tl.exp2(x)
        down = tl.exp2(top - higher)
        if ENTROPY:  # Σ p·(score − top): what is small where one key has it all stays exact
            third = (third + total * (top - higher)) * down + tl.sum(p * x, 1)
        total = total * down + tl.sum(p, 1)
        top = higher
    return top, total, third


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _row_sums(
    q, k, mask, order, counts, top_out, total_out, third_out, scale, sign,
    n_q, n_k, width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, mb, mh, mq, mk, ob, oh, ot,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, ENTROPY: tl.constexpr,
    KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    rows, columns, offset = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), n_k - n_q
    queries = load_rows(q + batch * qb + head * qh, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
    queries = (queries.to(tl.float32) * sign).to(queries.dtype)  # so that the largest product is the largest score
    k += batch * kb + (head // group) * kh
    if MASK != 0:
        mask += batch * mb + head * mh
        listed = batch * ob + head * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to, turn, jump = span(
        counts, tile, n_q, n_k, n_others, offset, False, CAUSAL, MASK, KEPT, STEP
    )  # fmt: skip
    top = tl.full([KEPT], HIDDEN, tl.float32)
    total, third = tl.zeros([KEPT], tl.float32), tl.zeros([KEPT], tl.float32)
    top, total, third = _pass(
        whole_from, whole_to, turn, jump, order,
        top, total, third, queries, k, mask, scale, rows, columns,
        n_q, n_k, width, offset, kt, mq, mk, MASK, CAUSAL, False, ENTROPY, STEP, WHOLE, PRECISION,
    )  # fmt: skip
    top, total, third = _pass(
        partly_from, partly_to, turn, jump, order,
        top, total, third, queries, k, mask, scale, rows, columns,
        n_q, n_k, width, offset, kt, mq, mk, MASK, CAUSAL, True, ENTROPY, STEP, WHOLE, PRECISION,
    )  # fmt: skip
    dead = top < 0.75 * HIDDEN
    at = both.to(tl.int64) * n_q + rows
    tl.store(top_out + at, tl.where(dead, 0.0, top), mask=rows < n_q)
    tl.store(total_out + at, tl.where(dead, 0.0, total), mask=rows < n_q)
    if ENTROPY:
        tl.store(third_out + at, tl.where(dead, 0.0, LN2 * (tl.log2(total) - third / total)), mask=rows < n_q)


def sum_rows(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    *,
    entropy: bool = False,
    launch: Launch | None = None,
) -> tuple[Totals, Tensor]:
    """The rows' totals, and, if it is wanted, their entropy (b h q) in nats."""
    launch = launch or Launch.of("rows", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    top, total = (torch.empty(b, h, n_q, dtype=torch.float32, device=q.device) for _ in range(2))
    third = torch.empty_like(top) if entropy else top
    tiles = tiles_of(n_q, launch.kept)
    given, n_others, strides = read_mask(mask, q, k, causal, launch)
    _row_sums[(tiles * b * h,)](
        q, k, *given, top, total, third, abs(beta) * LOG2E.value, -1.0 if beta < 0 else 1.0,
        n_q, n_k, width, h, h // k.shape[1], tiles, n_others,
        *q.stride()[:3], *k.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, ENTROPY=entropy, **launch.how(q),
    )  # fmt: skip
    return Totals(top, total), third
