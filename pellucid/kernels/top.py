"""The few keys that each query attends to most: one pass, that keeps the best scores so far, and the rows' totals.

Of a tile only what beats the worst score kept is taken out, the largest first, as long as some row has one; after the
first tiles that is little. Totals that aren't known are summed beside it, as in `row_sums`.
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
    four_axes,
    hide,
    kind,
    load_rows,
    mask_strides,
    readable,
    tiles_of,
)
from pellucid.kernels.totals import Totals

MOST_KEYS = 16


@triton.jit
@no_type_check
def _pass(
    first, last, best, at_best, top, total, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, KNOWN: tl.constexpr,
    STEP: tl.constexpr, SLOTS: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    slots, within = tl.arange(0, SLOTS), tl.arange(0, STEP)
    worst = tl.min(best, 1)
    for i in range(first, last):
        keys = i * STEP + within
        others = load_rows(k, i * STEP, n_k, columns, width, kt, STEP, WHOLE, not PARTLY)
        s = tl.dot(queries, tl.trans(others), input_precision=PRECISION) * scale
        if PARTLY:
            s = hide(s, mask, rows[:, None], keys[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            s = tl.where(keys[None, :] < n_k, s, float("-inf"))
        largest = tl.max(s, 1)
        if not KNOWN:
            higher = tl.maximum(top, largest)
            total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(s - higher[:, None]), 1)
            top = higher
        while tl.max((largest > worst).to(tl.int32), 0) > 0:
            where = tl.min(tl.where(s == largest[:, None], within[None, :], STEP), 1)
            slot = tl.argmin(best, 1)
            taken = (slots[None, :] == slot[:, None]) & (largest > worst)[:, None]
            best = tl.where(taken, largest[:, None], best)
            at_best = tl.where(taken, (i * STEP + where)[:, None], at_best)
            worst = tl.min(best, 1)
            s = tl.where(within[None, :] == where[:, None], float("-inf"), s)
            largest = tl.max(s, 1)
    return best, at_best, top, total


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _top(
    q, k, mask, tops, totals, weights_out, at_out, scale, n_q, n_k, width, heads, group, tiles, n,
    qb, qh, qt, kb, kh, kt, mb, mh, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, KNOWN: tl.constexpr, SLOTS: tl.constexpr,
    KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    rows, columns, slots, offset = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, SLOTS), n_k - n_q
    queries = load_rows(q + batch * qb + head * qh, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
    k += batch * kb + (head // group) * kh
    whole, end = n_k // STEP, tl.cdiv(n_k, STEP)
    if MASK != 0:
        mask += batch * mb + head * mh
        whole = 0
    elif CAUSAL:  # but n keys at least, seen or not, are named
        seen = tile * KEPT + offset
        whole = tl.minimum(whole, tl.maximum(seen + 1, 0) // STEP)
        end = tl.cdiv(tl.minimum(n_k, tl.maximum(seen + KEPT, n)), STEP)
    # Slots that aren't asked for are never the worst; rows that don't exist take nothing.
    empty = tl.where((slots[None, :] < n) & (rows[:, None] < n_q), float("-inf"), float("inf"))
    best, at_best = empty, tl.zeros([KEPT, SLOTS], tl.int32)
    if KNOWN:
        top = tl.load(tops + both.to(tl.int64) * n_q + rows, mask=rows < n_q, other=0.0)
        total = tl.load(totals + both.to(tl.int64) * n_q + rows, mask=rows < n_q, other=0.0)
    else:
        top, total = tl.full([KEPT], HIDDEN, tl.float32), tl.zeros([KEPT], tl.float32)
    best, at_best, top, total = _pass(
        0, whole, best, at_best, top, total, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt,
        mq, mk, MASK, CAUSAL, False, KNOWN, STEP, SLOTS, WHOLE, PRECISION,
    )  # fmt: skip
    best, at_best, top, total = _pass(
        whole, end, best, at_best, top, total, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt,
        mq, mk, MASK, CAUSAL, True, KNOWN, STEP, SLOTS, WHOLE, PRECISION,
    )  # fmt: skip
    share = tl.where((total > 0) & (top > 0.75 * HIDDEN), 1 / total, 0.0)  # of a row that sees nothing
    best = tl.where(slots[None, :] < n, best, float("-inf"))
    to = (both.to(tl.int64) * n_q + rows) * n
    for i in range(n):  # the largest first
        slot = tl.argmax(best, 1)
        chosen = slots[None, :] == slot[:, None]
        weight = tl.exp2(tl.max(best, 1) - top) * share
        tl.store(weights_out + to + i, weight, mask=rows < n_q)
        tl.store(at_out + to + i, tl.sum(tl.where(chosen, at_best, 0), 1).to(tl.int64), mask=rows < n_q)
        best = tl.where(chosen, float("-inf"), best)


def find_top(
    q: Tensor,
    k: Tensor,
    n: int,
    totals: Totals | None,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    *,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor]:
    """The n largest weights of each query, and whose they are: two (b h q n), the largest first."""
    launch = launch or Launch.of("top", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    weights = torch.empty(b, h, n_q, n, dtype=torch.float32, device=q.device)
    at = torch.empty(b, h, n_q, n, dtype=torch.int64, device=q.device)
    known = (weights, weights) if totals is None else (totals.top.contiguous(), totals.total.contiguous())
    given, strides = weights, [0] * 4
    if mask is not None:
        given, strides = readable(mask := four_axes(mask)), mask_strides(mask)
    tiles = tiles_of(n_q, launch.kept)
    _top[(tiles * b * h,)](
        q, k, given, *known, weights, at, beta * LOG2E.value, n_q, n_k, width, h, h // k.shape[1], tiles, n,
        *q.stride()[:3], *k.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, KNOWN=totals is not None, SLOTS=1 << (n - 1).bit_length(),
        **launch.how(q),
    )  # fmt: skip
    return weights, at
