"""One pass over a map whose rows' totals are known: each kept token's Σ weight·x over the tokens of the other side.

Kept keys: Pᵀ·x, and with x = 1 the column mass. Kept queries: P·x. With a gate, each weight is first multiplied by
what its gradient dO·v says, where that is positive: the rule of Chefer et al. (2021), one head at a time. x is one
column here: products are added up place by place in a tile, and the tile at the end, so nothing is exchanged between
threads on the way. What is wider is multiplied as a matrix: `spread`.
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
    first, last, turn, jump, order, sums, kept, kept_gate, other, other_gate, mask, tops, logs, level, x,
    here, scale, columns, gate_columns, n_q, n_k, n, width, gate_width, offset, ot, gt, xt, mq, mk,
    BY_KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, GATED: tl.constexpr,
    STEP: tl.constexpr, WHOLE: tl.constexpr, WHOLE_GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Tiles (queries, keys) of the moved tokens first … last, added to the sums place by place."""
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        there = j * STEP + tl.arange(0, STEP)
        moved = load_rows(other, j * STEP, n, columns, width, ot, STEP, WHOLE, not PARTLY)
        sent = tl.load(x + there.to(tl.int64) * xt, mask=there < n, other=0.0).to(tl.float32)
        if BY_KEYS:
            s, at_q, at_k = tl.dot(moved, tl.trans(kept), input_precision=PRECISION), there, here
            sent = sent[:, None]
        else:
            s, at_q, at_k = tl.dot(kept, tl.trans(moved), input_precision=PRECISION), here, there
            sent = sent[None, :]
        if PARTLY:  # the two apart: a top of −10³⁰ would swallow the logarithm
            s = hide(s * scale, mask, at_q[:, None], at_k[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            top = tl.load(tops + at_q, mask=at_q < n_q, other=0.0)
            log = tl.load(logs + at_q, mask=at_q < n_q, other=float("inf"))
            p = tl.exp2((s - top[:, None]) - log[:, None])
        elif BY_KEYS:
            p = tl.exp2(s * scale - tl.load(level + at_q)[:, None])
        else:
            p = tl.exp2(s * scale - tl.load(level + at_q, mask=at_q < n_q, other=float("inf"))[:, None])
        if GATED:
            gate = load_rows(other_gate, j * STEP, n, gate_columns, gate_width, gt, STEP, WHOLE_GATE, not PARTLY)
            if BY_KEYS:
                gate = tl.dot(gate, tl.trans(kept_gate), input_precision=PRECISION)
            else:
                gate = tl.dot(kept_gate, tl.trans(gate), input_precision=PRECISION)
            p = p * tl.maximum(gate, 0.0)
        sums += p * sent
    return sums


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _weighed(
    q, k, gate_q, gate_k, mask, order, counts, tops, logs, level, x, out, scale,
    n_q, n_k, width, gate_width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, gqb, gqh, gqt, gkb, gkh, gkt, xb, xh, xt, mb, mh, mq, mk, ob, oh, ot,
    BY_KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, GATED: tl.constexpr,
    KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, DG: tl.constexpr,
    WHOLE_GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    here, columns, gate_columns = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, DG)
    q, k = q + batch * qb + head * qh, k + batch * kb + (head // group) * kh
    gate_q, gate_k = gate_q + batch * gqb + head * gqh, gate_k + batch * gkb + (head // group) * gkh
    x += batch * xb + head * xh
    rows = both.to(tl.int64) * n_q
    tops, logs, level = tops + rows, logs + rows, level + rows
    offset = n_k - n_q
    if MASK != 0:
        mask += batch * mb + head * mh
        listed = batch * ob + head * oh + tile * ot
        order, counts = order + listed * n_others, counts + listed * 2
    whole_from, whole_to, partly_from, partly_to, turn, jump = span(
        counts, tile, n_q, n_k, n_others, offset, BY_KEYS, CAUSAL, MASK, KEPT, STEP
    )  # fmt: skip
    if BY_KEYS:
        n, n_moved, kt_moved, gt_moved, other, other_gate = n_k, n_q, qt, gqt, q, gate_q
        kept = load_rows(k, tile * KEPT, n_k, columns, width, kt, KEPT, WHOLE)
        sums = tl.zeros([STEP, KEPT], tl.float32)
    else:
        n, n_moved, kt_moved, gt_moved, other, other_gate = n_q, n_k, kt, gkt, k, gate_k
        kept = load_rows(q, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
        sums = tl.zeros([KEPT, STEP], tl.float32)
    kept_gate = kept
    if GATED:
        if BY_KEYS:
            kept_gate = load_rows(gate_k, tile * KEPT, n_k, gate_columns, gate_width, gkt, KEPT, WHOLE_GATE)
        else:
            kept_gate = load_rows(gate_q, tile * KEPT, n_q, gate_columns, gate_width, gqt, KEPT, WHOLE_GATE)
    sums = _pass(
        whole_from, whole_to, turn, jump, order,
        sums, kept, kept_gate, other, other_gate, mask, tops, logs, level, x,
        here, scale, columns, gate_columns, n_q, n_k, n_moved, width, gate_width, offset, kt_moved, gt_moved, xt,
        mq, mk, BY_KEYS, MASK, CAUSAL, False, GATED, STEP, WHOLE, WHOLE_GATE, PRECISION,
    )  # fmt: skip
    sums = _pass(
        partly_from, partly_to, turn, jump, order,
        sums, kept, kept_gate, other, other_gate, mask, tops, logs, level, x,
        here, scale, columns, gate_columns, n_q, n_k, n_moved, width, gate_width, offset, kt_moved, gt_moved, xt,
        mq, mk, BY_KEYS, MASK, CAUSAL, True, GATED, STEP, WHOLE, WHOLE_GATE, PRECISION,
    )  # fmt: skip
    tl.store(out + both.to(tl.int64) * n + here, tl.sum(sums, 0 if BY_KEYS else 1), mask=here < n)


def weigh_sums(
    q: Tensor,
    k: Tensor,
    x: Tensor,
    totals: Totals,
    mask: Tensor | None,
    beta: float,
    causal: bool,
    *,
    by_keys: bool,
    gate: tuple[Tensor, Tensor] | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """Pᵀ·x (b h k) for x (b h q) if by_keys, else P·x (b h q) for x (b h k), in float32.

    gate: the gradients dO (b h q e) and the values v (b g k e); the weights are then P ⊙ (dO·vᵀ)⁺.
    """
    launch = launch or Launch.of("weighed" if gate is None else "gated", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    gates = gate or (q, k)
    q, k, *gates = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, *gates))
    n = n_k if by_keys else n_q
    out = torch.empty(b, h, n, dtype=torch.float32, device=q.device)
    tiles = tiles_of(n, launch.kept)
    given, n_others, strides = read_mask(mask, q, k, causal, launch, by_keys=by_keys)
    gate_width = gates[0].shape[-1]
    wide_gate = padded_width(gate_width)
    _weighed[(tiles * b * h,)](
        q, k, *gates, *given, *levels(totals), x, out,
        beta * LOG2E.value, n_q, n_k, width, gate_width, h, h // k.shape[1], tiles, n_others,
        *q.stride()[:3], *k.stride()[:3], *gates[0].stride()[:3], *gates[1].stride()[:3], *x.stride(), *strides,
        BY_KEYS=by_keys, MASK=kind(mask), CAUSAL=causal, GATED=gate is not None,
        DG=wide_gate, WHOLE_GATE=wide_gate == gate_width, **launch.how(q),
    )  # fmt: skip
    return out
