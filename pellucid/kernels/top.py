"""The few keys that each query attends to most: one pass, that keeps the best scores so far.

Of a tile only what beats the worst score kept is taken out, the largest first, as long as some row has one; after the
first tiles that is little.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from pellucid.kernels.tiles import LENGTHS, LOG2E, Launch, four_axes, hide, kind, load_rows, mask_strides, readable

MOST_KEYS = 16


@triton.jit
@no_type_check
def _pass(
    first, last, best, at_best, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, STEP: tl.constexpr, SLOTS: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr,
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
        while tl.max((largest > worst).to(tl.int32), 0) > 0:
            where = tl.min(tl.where(s == largest[:, None], within[None, :], STEP), 1)
            slot = tl.argmin(best, 1)
            taken = (slots[None, :] == slot[:, None]) & (largest > worst)[:, None]
            best = tl.where(taken, largest[:, None], best)
            at_best = tl.where(taken, (i * STEP + where)[:, None], at_best)
            worst = tl.min(best, 1)
            s = tl.where(within[None, :] == where[:, None], float("-inf"), s)
            largest = tl.max(s, 1)
    return best, at_best


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _top(
    q, k, mask, best_out, at_out, scale, n_q, n_k, width, heads, group, tiles, n,
    qb, qh, qt, kb, kh, kt, mb, mh, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, SLOTS: tl.constexpr,
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
    best, at_best = _pass(
        0, whole, best, at_best, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt, mq, mk,
        MASK, CAUSAL, False, STEP, SLOTS, WHOLE, PRECISION,
    )  # fmt: skip
    best, at_best = _pass(
        whole, end, best, at_best, queries, k, mask, scale, rows, columns, n_q, n_k, width, offset, kt, mq, mk,
        MASK, CAUSAL, True, STEP, SLOTS, WHOLE, PRECISION,
    )  # fmt: skip
    at = (both.to(tl.int64) * n_q + rows)[:, None] * n + slots[None, :]
    there = (rows[:, None] < n_q) & (slots[None, :] < n)
    tl.store(best_out + at, best, mask=there)
    tl.store(at_out + at, at_best, mask=there)


def find_top(
    q: Tensor, k: Tensor, n: int, mask: Tensor | None, beta: float, causal: bool, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """The n largest scores of each query, times log₂e, and whose they are: two (b h q n), the largest first."""
    launch = launch or Launch.of("top", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    best = torch.empty(b, h, n_q, n, dtype=torch.float32, device=q.device)
    at = torch.empty(b, h, n_q, n, dtype=torch.int32, device=q.device)
    given, strides = best, [0] * 4
    if mask is not None:
        given, strides = readable(mask := four_axes(mask)), mask_strides(mask)
    tiles = triton.cdiv(n_q, launch.kept)
    _top[(tiles * b * h,)](
        q, k, given, best, at, beta * LOG2E.value, n_q, n_k, width, h, h // k.shape[1], tiles, n,
        *q.stride()[:3], *k.stride()[:3], *strides,
        MASK=kind(mask), CAUSAL=causal, SLOTS=triton.next_power_of_2(n),
        **launch.how(q),
    )  # fmt: skip
    best, order = best.sort(-1, descending=True)
    return best, at.gather(-1, order).long()
