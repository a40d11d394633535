"""What the kernels for summaries share: tiles of scores, what a mask hides of them, and which tiles need not be read.

A score is held times log₂e, because exp2 is the cheaper one. A program keeps some tokens (of the queries, or of the
keys) and goes through the tokens of the other side, tile by tile: first the tiles of which nothing is hidden, then
those with hidden parts. Tiles of which everything is hidden are left out. For a mask, a survey says which are which.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
HIDDEN = tl.constexpr(-2e30)  # finite, so that zero times it is zero; what a bias lowers stops at half of it
LOWEST = tl.constexpr(-1e30)
BOOLEAN, BIAS = 1, 2
# What differs from picture to picture: else Triton would compile anew for 1, and for multiples of 16.
LENGTHS = ("n_q", "n_k", "offset", "heads", "group", "tiles", "n_others", "rows", "columns", "n")
WIDEST = 256


@triton.jit
@no_type_check
def load_rows(pointer, rows, n, columns, width, stride, WHOLE: tl.constexpr):
    """Some tokens' rows, zeros where there is no token. WHOLE: every column exists."""
    there = rows[:, None] < n
    if not WHOLE:
        there = there & (columns[None, :] < width)
    return tl.load(pointer + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=there, other=0.0)


@triton.jit
@no_type_check
def hide(s, mask, at_q, at_k, n_q, n_k, offset, mq, mk, MASK: tl.constexpr, CAUSAL: tl.constexpr):
    """Scores with what may not be seen at HIDDEN; at_q and at_k broadcast to them."""
    seen = (at_k < n_k) & (at_q < n_q)
    if CAUSAL:
        seen = seen & (at_k <= at_q + offset)
    if MASK != 0:
        at = mask + at_q.to(tl.int64) * mq + at_k.to(tl.int64) * mk
        given = tl.load(at, mask=seen, other=0)
        if MASK == 1:
            seen = seen & (given != 0)
        else:
            bias = given.to(tl.float32)
            seen = seen & (bias > float("-inf"))
            s = tl.maximum(s + bias * LOG2E, LOWEST)
    return tl.where(seen, s, HIDDEN)


@triton.jit
@no_type_check
def span(
    counts, tile, n_q, n_k, offset,
    BY_KEYS: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Of the other side's tiles, for one that is kept: from where to where they are whole, and where partly hidden."""
    if MASK != 0:
        whole = tl.load(counts)
        return 0, whole, whole, tl.load(counts + 1)
    if BY_KEYS:
        if CAUSAL:  # queries before the first of these keys see none of them, those from the last one on all
            partly = tl.maximum(tile * KEPT - offset, 0) // STEP
            whole = tl.cdiv(tl.maximum(tile * KEPT + KEPT - 1 - offset, 0), STEP)
            end = tl.cdiv(n_q, STEP)
            whole = tl.maximum(tl.minimum(whole, end), partly)
            return whole, tl.maximum(end, whole), partly, whole
        return 0, tl.cdiv(n_q, STEP), 0, 0  # a query that isn't there weighs nothing
    whole, end = n_k // STEP, n_k
    if CAUSAL:
        seen = tile * KEPT + offset  # the last key that the first of these queries sees
        whole = tl.minimum(whole, tl.maximum(seen + 1, 0) // STEP)
        end = tl.minimum(n_k, tl.maximum(seen + KEPT, 0))
    return 0, whole, whole, tl.cdiv(end, STEP)


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _survey(
    mask, states, n_q, n_k, offset, heads, rows, columns, mb, mh, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    tile, other = tl.program_id(0) % rows, tl.program_id(0) // rows
    column, other = other % columns, other // columns
    mask += (other // heads).to(tl.int64) * mb + (other % heads).to(tl.int64) * mh
    at_q, at_k = tile * Q + tl.arange(0, Q)[:, None], column * K + tl.arange(0, K)[None, :]
    there = (at_q < n_q) & (at_k < n_k)
    given = tl.load(mask + at_q.to(tl.int64) * mq + at_k.to(tl.int64) * mk, mask=there, other=0)
    if MASK == 1:
        seen, plain = there & (given != 0), given != 0
    else:
        seen, plain = there & (given > float("-inf")), given == 0
    if CAUSAL:
        past = at_k <= at_q + offset
        seen, plain = seen & past, plain & past
    any_seen = tl.max(tl.max(seen.to(tl.int32), 1), 0)
    all_plain = tl.min(tl.min((plain | (at_q >= n_q)).to(tl.int32), 1), 0) * (column * K + K <= n_k).to(tl.int32)
    tl.store(states + (other * rows + tile) * columns + column, tl.where(all_plain > 0, 0, 2 - any_seen).to(tl.int8))


class Launch(NamedTuple):
    """How a kernel is cut: tokens that a program keeps, tokens it reads at a time, its warps, and loads ahead."""

    kept: int
    step: int
    warps: int
    stages: int

    @staticmethod
    def fitting(q: Tensor, other: int = 0) -> "Launch":
        """What was fastest on an H200 (LOG.md), less where a tile is wide or its numbers are long."""
        wide = padded_width(max(q.shape[-1], other))
        if q.dtype == torch.float32:
            return Launch(32, 32, 4, 2) if wide > 128 else Launch(64, 32, 4, 2)
        return Launch(64, 32, 4, 2) if wide > 128 else Launch(64, 64, 4, 2) if wide > 64 else Launch(64, 128, 4, 3)

    def how(self, q: Tensor) -> dict[str, object]:
        """What every kernel is told of its launch and of the heads' width."""
        wide = padded_width(q.shape[-1])
        precise = "ieee" if q.dtype == torch.float32 else "tf32"  # half precision has one way alone
        return {
            "D": wide,
            "WHOLE": wide == q.shape[-1],
            "PRECISION": precise,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def padded_width(width: int) -> int:
    """tl.dot wants powers of two, 16 at least."""
    return max(16, triton.next_power_of_2(width))


class Survey(NamedTuple):
    """For each tile of kept tokens those of the others: the whole ones, then the partly hidden ones, then the rest."""

    order: Tensor  # (b h tiles others), the first two and the third 1 where the mask doesn't know them apart
    counts: Tensor  # (b h tiles 2): how many are whole, and how many anything is seen of

    def strides(self) -> tuple[int, ...]:
        """How far apart batches, heads and tiles are, in rows of either tensor; 0 where there is one for all."""
        return tuple(0 if self.order.shape[axis] == 1 else self.counts.stride(axis) // 2 for axis in range(3))


_surveys: "WeakTensorKeyDictionary" = WeakTensorKeyDictionary()


def survey(
    mask: Tensor, n_q: int, n_k: int, causal: bool, tile_q: int, tile_k: int, *, by_keys: bool = False
) -> Survey:
    """Which tiles of a mask (any shape that broadcasts to (b h q k)) need to be read. Done once for each mask.

    by_keys: tiles of keys are kept, and those of queries gone through.
    """
    known = _surveys.setdefault(mask, {}) if may_remember(mask) else {}
    version = 0 if mask.is_inference() else mask._version
    key = version, n_q, n_k, causal, tile_q, tile_k, by_keys
    if key not in known:
        for old in [old for old in known if old[0] != version]:
            del known[old]
        known[key] = _make_survey(four_axes(mask), n_q, n_k, causal, tile_q, tile_k, by_keys)
    return known[key]


def may_remember(mask: Tensor) -> bool:
    """Whether what is known of a mask holds until its version changes: not inside a graph, which reads it anew."""
    capturing = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    return not mask.is_inference() and not capturing


def _make_survey(mask: Tensor, n_q: int, n_k: int, causal: bool, tile_q: int, tile_k: int, by_keys: bool) -> Survey:
    b, h = mask.shape[:2]
    rows = 1 if mask.shape[2] == 1 and not causal else triton.cdiv(n_q, tile_q)
    columns = triton.cdiv(n_k, tile_k)
    states = torch.empty(b, h, rows, columns, dtype=torch.int8, device=mask.device)
    how = {"MASK": kind(mask), "CAUSAL": causal, "Q": tile_q, "K": tile_k, "num_warps": 4}
    if rows * columns * b * h:
        sizes = n_q, n_k, n_k - n_q, h, rows, columns
        _survey[(b * h * rows * columns,)](readable(mask), states, *sizes, *mask_strides(mask), **how)
    if by_keys:
        states = states.mT if rows > 1 or n_q <= tile_q else states.mT.expand(-1, -1, -1, triton.cdiv(n_q, tile_q))
    order = states.argsort(dim=-1, stable=True).to(torch.int32)
    counts = torch.stack([(states == 0).sum(-1), (states < 2).sum(-1)], -1).to(torch.int32)
    return Survey(order.contiguous(), counts.contiguous())


def kind(mask: Tensor | None) -> int:
    return 0 if mask is None else BOOLEAN if mask.dtype == torch.bool else BIAS


def four_axes(mask: Tensor) -> Tensor:
    return mask[(None,) * (4 - mask.ndim)]


def readable(mask: Tensor) -> Tensor:
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def mask_strides(mask: Tensor) -> tuple[int, ...]:
    """Of its four axes, 0 where it has one for all."""
    return tuple(0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True))
