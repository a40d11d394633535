"""One pass over a map whose rows' totals are known: each kept token's Σ weight·x over the tokens of the other side.

Kept keys: Pᵀ·x, and with x = 1 the column mass. Kept queries: P·x. With a gate, each weight is first multiplied by
what its gradient dO·v says, where that is positive: the rule of Chefer et al. (2021), one head at a time. x is narrow
here; its columns are summed beside the tile, in float32 throughout. What is wide is multiplied as a matrix: `spread`.
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
)
from pellucid.kernels.totals import Totals


@triton.jit
@no_type_check
def weigh(
    kept, moved, mask, tops, totals, top, here, there, scale, n_q, n_k, offset, mq, mk,
    BY_KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of weights (kept, moved). Where queries are kept, `top` is theirs, and the total is left to the end."""
    s = tl.dot(kept, tl.trans(moved), input_precision=PRECISION)
    if BY_KEYS:
        row_top = tl.load(tops + there, mask=there < n_q, other=0.0)
        total = tl.load(totals + there, mask=there < n_q, other=0.0)
        # Of a row that is dead or isn't there every weight is 0.
        total = tl.log2(tl.where(total > 0, total, float("inf")))
        if PARTLY:  # a top of −10³⁰ would swallow the total
            s = hide(s * scale, mask, there[None, :], here[:, None], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
            x = (s - row_top[None, :]) - total[None, :]
        else:
            x = s * scale - (row_top + total)[None, :]
    elif PARTLY:
        s = hide(s * scale, mask, here[:, None], there[None, :], n_q, n_k, offset, mq, mk, MASK, CAUSAL)
        x = s - top[:, None]
    else:
        x = s * scale - top[:, None]
    return tl.exp2(x)


@triton.jit
@no_type_check
def _pass(
    first, last, turn, jump, order, sums, kept, kept_gate, other, other_gate, mask, tops, totals, x, top,
    here, scale, columns, gate_columns, n_q, n_k, n, width, gate_width, offset, ot, gt, xt, xe, mq, mk,
    BY_KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, PARTLY: tl.constexpr, GATED: tl.constexpr,
    E: tl.constexpr, STEP: tl.constexpr, WHOLE: tl.constexpr, WHOLE_GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for i in range(first, last):
        j = place(i, order, turn, jump, MASK, PARTLY)
        there = j * STEP + tl.arange(0, STEP)
        moved = load_rows(other, j * STEP, n, columns, width, ot, STEP, WHOLE, not PARTLY)
        p = weigh(
            kept, moved, mask, tops, totals, top, here, there, scale, n_q, n_k, offset, mq, mk,
            BY_KEYS, MASK, CAUSAL, PARTLY, PRECISION,
        )  # fmt: skip
        if GATED:
            gate = load_rows(other_gate, j * STEP, n, gate_columns, gate_width, gt, STEP, WHOLE_GATE, not PARTLY)
            p = p * tl.maximum(tl.dot(kept_gate, tl.trans(gate), input_precision=PRECISION), 0.0)
        result = ()
        for e in tl.static_range(E):
            column = tl.load(x + there.to(tl.int64) * xt + e * xe, mask=there < n, other=0.0).to(tl.float32)
            result = result + (sums[e] + tl.sum(p * column[None, :], 1),)
        sums = result
    return sums


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _weighed(
    q, k, gate_q, gate_k, mask, order, counts, tops, totals, x, out, scale,
    n_q, n_k, width, gate_width, heads, group, tiles, n_others,
    qb, qh, qt, kb, kh, kt, gqb, gqh, gqt, gkb, gkh, gkt, xb, xh, xt, xe, mb, mh, mq, mk, ob, oh, ot,
    BY_KEYS: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, GATED: tl.constexpr, E: tl.constexpr,
    KEPT: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, DG: tl.constexpr,
    WHOLE_GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    here, columns, gate_columns = tile * KEPT + tl.arange(0, KEPT), tl.arange(0, D), tl.arange(0, DG)
    q, k = q + batch * qb + head * qh, k + batch * kb + (head // group) * kh
    gate_q, gate_k = gate_q + batch * gqb + head * gqh, gate_k + batch * gkb + (head // group) * gkh
    x += batch * xb + head * xh
    tops, totals = tops + both.to(tl.int64) * n_q, totals + both.to(tl.int64) * n_q
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
        top, total = kept, kept  # of rows alone
    else:
        n, n_moved, kt_moved, gt_moved, other, other_gate = n_q, n_k, kt, gkt, k, gate_k
        kept = load_rows(q, tile * KEPT, n_q, columns, width, qt, KEPT, WHOLE)
        top = tl.load(tops + here, mask=here < n_q, other=0.0)
        total = tl.load(totals + here, mask=here < n_q, other=0.0)
    kept_gate = kept
    if GATED:
        if BY_KEYS:
            kept_gate = load_rows(gate_k, tile * KEPT, n_k, gate_columns, gate_width, gkt, KEPT, WHOLE_GATE)
        else:
            kept_gate = load_rows(gate_q, tile * KEPT, n_q, gate_columns, gate_width, gqt, KEPT, WHOLE_GATE)
    sums = ()
    for _ in tl.static_range(E):
        sums = sums + (tl.zeros([KEPT], tl.float32),)
    sums = _pass(
        whole_from, whole_to, turn, jump, order,
        sums, kept, kept_gate, other, other_gate, mask, tops, totals, x, top,
        here, scale, columns, gate_columns, n_q, n_k, n_moved, width, gate_width, offset, kt_moved, gt_moved, xt, xe,
        mq, mk, BY_KEYS, MASK, CAUSAL, False, GATED, E, STEP, WHOLE, WHOLE_GATE, PRECISION,
    )  # fmt: skip
    sums = _pass(
        partly_from, partly_to, turn, jump, order,
        sums, kept, kept_gate, other, other_gate, mask, tops, totals, x, top,
        here, scale, columns, gate_columns, n_q, n_k, n_moved, width, gate_width, offset, kt_moved, gt_moved, xt, xe,
        mq, mk, BY_KEYS, MASK, CAUSAL, True, GATED, E, STEP, WHOLE, WHOLE_GATE, PRECISION,
    )  # fmt: skip
    for e in tl.static_range(E):
        share = sums[e]
        if not BY_KEYS:
            share = tl.where(total > 0, share / total, 0.0)
        tl.store(out + (both.to(tl.int64) * n + here) * E + e, share, mask=here < n)


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
    """Pᵀ·x (b h k e) for x (b h q e) if by_keys, else P·x (b h q e) for x (b h k e), a few columns.

    gate: the gradients dO (b h q e) and the values v (b g k e); the weights are then P ⊙ (dO·vᵀ)⁺.
    """
    launch = launch or Launch.of("weighed", q)
    (b, h, n_q, width), n_k = q.shape, k.shape[2]
    gates = gate or (q, k)
    q, k, *gates = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, *gates))
    n = n_k if by_keys else n_q
    out = torch.empty(b, h, n, x.shape[-1], dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(n, launch.kept)
    given, n_others, strides = read_mask(mask, q, k, causal, launch, by_keys=by_keys)
    wide_gate = padded_width(gates[0].shape[-1])
    _weighed[(tiles * b * h,)](
        q, k, *gates, *given, totals.top.contiguous(), totals.total.contiguous(), x, out,
        beta * LOG2E.value, n_q, n_k, width, gates[0].shape[-1], h, h // k.shape[1], tiles, n_others,
        *q.stride()[:3], *k.stride()[:3], *gates[0].stride()[:3], *gates[1].stride()[:3], *x.stride(), *strides,
        BY_KEYS=by_keys, MASK=kind(mask), CAUSAL=causal, GATED=gate is not None, E=x.shape[-1],
        DG=wide_gate, WHOLE_GATE=wide_gate == gates[0].shape[-1], **launch.how(q),
    )  # fmt: skip
    return out
