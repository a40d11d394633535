"""The mean distance of each query to the keys it attends to: one pass over the keys, several heads at a time.

A root takes as long as a power of two, and the distance of two places is the same for every head: one tile of them
serves the heads that a program goes through together, if their mask is the same. Else as in `row_sums`.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import math
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
    place,
    read_mask,
    span,
    tiles_of,
)


@triton.jit
@no_type_check
def _pass(
    first, last, turn, jump, order, tops, totals, means, queries, keys_of, mask, keys_at, here, scale, rows, columns,
    n_q, n_k, width, offset, kt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, TOGETHER: tl.constexpr, AXES: tl.constexpr,
    STEP: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        keys = j * STEP + tl.arange(0, STEP)
        there = tl.load(keys_at + keys, mask=keys < n_k, other=0.0)
        apart = here[0][:, None] - there[None, :]
        squares = apart * apart
        for axis in tl.static_range(1, AXES):
            there = tl.load(keys_at + axis * n_k + keys, mask=keys < n_k, other=0.0)
            apart = here[axis][:, None] - there[None, :]
            squares += apart * apart
        distance = tl.sqrt(squares)
        new_tops, new_totals, new_means = (), (), ()
        for head in tl.static_range(TOGETHER):
            others = load_rows(keys_of[head], j * STEP, n_k, columns, width, kt, STEP, WHOLE, not PARTLY)
            s = tl.dot(queries[head], tl.trans(others), input_precision=PRECISION)
            if PARTLY:
                s = hide(s * scale, mask, rows[:, None], keys[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
                higher = tl.maximum(tops[head], tl.max(s, 1))
                p = tl.exp2(s - higher[:, None])
            else:
                higher = tl.maximum(tops[head], tl.max(s, 1) * scale)
                p = tl.exp2(s * scale - higher[:, None])
            down = tl.exp2(tops[head] - higher)
            new_tops = new_tops + (higher,)
            new_totals = new_totals + (totals[head] * down + tl.sum(p, 1),)
            new_means = new_means + (means[head] * down + tl.sum(p * distance, 1),)
        tops, totals, means = new_tops, new_totals, new_means
    return tops, totals, means


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _distance(
    q, k, mask, order, counts, queries_at, keys_at, out, scale, sign,
    n_q, n_k, width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, mb, mh, mq, mk, ob, oh, ot,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, TOGETHER: tl.constexpr, AXES: tl.constexpr,
    KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles * TOGETHER
    batch, first = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    rows, columns, offset = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), n_k - n_q
    queries, keys_of, tops, totals, means = (), (), (), (), ()
    for i in tl.static_range(TOGETHER):
        mine = load_rows(q + batch * qb + (first + i) * qh, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
        queries = queries + ((mine.to(tl.float32) * sign).to(mine.dtype),)
        keys_of = keys_of + (k + batch * kb + ((first + i) // group) * kh,)
        tops = tops + (tl.full([KEPT], HIDDEN, tl.float32),)
        totals, means = totals + (tl.zeros([KEPT], tl.float32),), means + (tl.zeros([KEPT], tl.float32),)
    if MASK != 0:
        mask += batch * mb + first * mh
        listed = batch * ob + first * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to, turn, jump = span(
        counts, tile, n_q, n_k, n_others, offset, False, CAUSAL, MASK, KEPT, STEP
    )  # fmt: skip
    here = ()
    for axis in tl.static_range(AXES):
        here = here + (tl.load(queries_at + axis * n_q + rows, mask=rows < n_q, other=0.0),)
    tops, totals, means = _pass(
        whole_from, whole_to, turn, jump, order,
        tops, totals, means, queries, keys_of, mask, keys_at, here, scale, rows, columns,
        n_q, n_k, width, offset, kt, mq, mk, MASK, CAUSAL, False, TOGETHER, AXES, STEP, WHOLE, PRECISION,
    )  # fmt: skip
    tops, totals, means = _pass(
        partly_from, partly_to, turn, jump, order,
        tops, totals, means, queries, keys_of, mask, keys_at, here, scale, rows, columns,
        n_q, n_k, width, offset, kt, mq, mk, MASK, CAUSAL, True, TOGETHER, AXES, STEP, WHOLE, PRECISION,
    )  # fmt: skip
    for i in tl.static_range(TOGETHER):
        mean = tl.where(tops[i] < 0.75 * HIDDEN, 0.0, means[i] / totals[i])
        tl.store(out + (both + i).to(tl.int64) * n_q + rows, mean, mask=rows < n_q)


def average_distance(
    q: Tensor,
    k: Tensor,
    queries_at: Tensor,
    keys_at: Tensor,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    *,
    together: int = 4,
    launch: Launch | None = None,
) -> Tensor:
    """Mean distances (b h q) between places (q axes) and (k axes). together: heads, or as many as divide all evenly."""
    launch = launch or Launch.of("distance", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    shared = mask is None or mask.ndim < 3 or mask.shape[-3] == 1
    together = math.gcd(together, h) if shared and width <= 64 and q.dtype != torch.float32 else 1
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    out = torch.empty(b, h, n_q, dtype=torch.float32, device=q.device)
    tiles = tiles_of(n_q, launch.kept)
    given, n_others, strides = read_mask(mask, q, k, causal, launch)
    ends = _axis_by_axis(keys_at)
    starts = ends if queries_at is keys_at else _axis_by_axis(queries_at)
    _distance[(tiles * (b * h // together),)](
        q, k, *given, starts, ends, out,
        abs(beta) * LOG2E.value, -1.0 if beta < 0 else 1.0,
        n_q, n_k, width, h, h // k.shape[1], tiles, n_others,
        *q.stride()[:3], *k.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, TOGETHER=together, AXES=keys_at.shape[1], **launch.how(q),
    )  # fmt: skip
    return out


def _axis_by_axis(places: Tensor) -> Tensor:
    """Places (n axes) as the kernel reads them, in one copy: float32, (axes n)."""
    return torch.empty(places.shape[::-1], dtype=torch.float32, device=places.device).copy_(places.T)
