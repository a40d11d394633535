"""What the kernels for summaries share: tiles of scores, what a mask hides of them, and which tiles need not be read.

A score is held times log₂e, because exp2 is the cheaper one. A program keeps some tokens (of the queries, or of the
keys) and goes through the tokens of the other side, tile by tile: first the tiles of which nothing is hidden, then
those with hidden parts. Tiles of which everything is hidden are left out. For a mask, a survey says which are which.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
HIDDEN = tl.constexpr(-2e30)  # finite, so that zero times it is zero; what a bias lowers stops at half of it
LOWEST = tl.constexpr(-1e30)
# What differs from picture to picture: else Triton would compile anew for 1, and for multiples of 16.
LENGTHS = ("n_q", "n_k", "offset", "heads", "group", "tiles", "n_others", "rows", "columns", "n")


@triton.jit
@no_type_check
def load_rows(
    pointer, start, n, columns, width, stride,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, INSIDE: tl.constexpr = False,
):  # fmt: skip
    """The rows of SIZE tokens from `start` on, zeros where there are none.

    WHOLE: every column exists. INSIDE: every token does.
    """
    pointer += tl.cast(start, tl.int64) * stride  # the rest is the same for every tile
    within = tl.arange(0, SIZE)[:, None]
    at = within * stride + columns[None, :]
    if WHOLE and INSIDE:
        return tl.load(pointer + at)
    if WHOLE:
        return tl.load(pointer + at, mask=within < n - start, other=0.0)
    return tl.load(pointer + at, mask=(within < n - start) & (columns[None, :] < width), other=0.0)


@triton.jit
@no_type_check
def hide(s, mask, at_q, at_k, n_q, n_k, offset, mq, mk, MASK: tl.constexpr, CAUSAL: tl.constexpr):
    """Scores with what may not be seen at HIDDEN; at_q and at_k broadcast to them."""
    seen = (at_k < n_k) & (at_q < n_q)
    if CAUSAL:
        seen = seen & (at_k <= at_q + offset)
    if MASK != 0:
        if MASK > 2:  # one row for all queries
            given = tl.load(mask + at_k.to(tl.int64) * mk, mask=at_k < n_k, other=0)
        else:
            given = tl.load(mask + at_q.to(tl.int64) * mq + at_k.to(tl.int64) * mk, mask=seen, other=0)
        if MASK % 2 == 1:
            seen = seen & (given != 0)
        else:
            bias = given.to(tl.float32)
            seen = seen & (bias > float("-inf"))
            s = tl.maximum(s + bias * LOG2E, LOWEST)
    return tl.where(seen, s, HIDDEN)


@triton.jit
@no_type_check
def span(
    counts, tile, n_q, n_k, n_others, offset,
    BY_KEYS: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Of the other side's tiles, for one that is kept: from where to where they are whole, and where partly hidden.

    The last two: from the partly hidden one `turn` on, `jump` tiles further.
    """
    if MASK != 0:  # places in a list
        whole_from, whole_to, partly_from, partly_to = 0, tl.load(counts), n_others - tl.load(counts + 1), n_others
        turn, jump = n_others, 0
    elif BY_KEYS:
        whole_from, whole_to, end = 0, n_q // STEP, tl.cdiv(n_q, STEP)
        partly_from, partly_to, turn, jump = whole_to, end, end, 0
        if CAUSAL:  # queries before the first of these keys see none of them, those from the last one on all
            first = tl.maximum(tile * KEPT - offset, 0) // STEP
            whole_from = tl.minimum(tl.cdiv(tl.maximum(tile * KEPT + KEPT - 1 - offset, 0), STEP), end)
            whole_from = tl.maximum(whole_from, first)
            tail = tl.where(whole_from <= whole_to, end - whole_to, 0)  # where queries end within a tile
            partly_from, partly_to, turn, jump = first, whole_from + tail, whole_from, whole_to - whole_from
    else:
        whole_from, whole_to, end = 0, n_k // STEP, n_k
        if CAUSAL:
            seen = tile * KEPT + offset  # the last key that the first of these queries sees
            whole_to = tl.minimum(whole_to, tl.maximum(seen + 1, 0) // STEP)
            end = tl.minimum(n_k, tl.maximum(seen + KEPT, 0))
        partly_from, partly_to, turn, jump = whole_to, tl.cdiv(end, STEP), n_k, 0
    return whole_from, whole_to, partly_from, partly_to, turn, jump


@triton.jit
@no_type_check
def place(i, order, turn, jump, MASK: tl.constexpr, PARTLY: tl.constexpr):
    """Which tile the i-th of a span is."""
    if MASK != 0:
        i = tl.load(order + i)
    elif PARTLY:
        i = tl.where(i < turn, i, i + jump)
    return i


@triton.jit(do_not_specialize=LENGTHS)
@no_type_check
def _survey(
    mask, order, counts, n_q, n_k, offset, heads, tiles, n_others, mb, mh, mq, mk,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, BY_KEYS: tl.constexpr, KEPT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    listed = tl.program_id(0).to(tl.int64)
    tile, both = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    mask += (both // heads).to(tl.int64) * mb + (both % heads).to(tl.int64) * mh
    here, whole, partly = tile * KEPT + tl.arange(0, KEPT)[:, None], 0, 0
    for j in range(n_others):
        there = j * STEP + tl.arange(0, STEP)[None, :]
        if BY_KEYS:
            at_q, at_k, exists, inside = there, here, here < n_k, j * STEP + STEP <= n_q
        else:
            at_q, at_k, exists, inside = here, there, here < n_q, j * STEP + STEP <= n_k
        seen = (at_q < n_q) & (at_k < n_k)
        given = tl.load(mask + at_q.to(tl.int64) * mq + at_k.to(tl.int64) * mk, mask=seen, other=0)
        if MASK % 2 == 1:
            plain = seen & (given != 0)
            seen = plain
        else:
            bias = given.to(tl.float32)
            plain = seen & (bias == 0)
            seen = seen & (bias > float("-inf"))
        if CAUSAL:
            plain, seen = plain & (at_k <= at_q + offset), seen & (at_k <= at_q + offset)
        any_seen = tl.max(tl.max(seen.to(tl.int32), 1), 0)
        all_plain = tl.min(tl.min((plain | ~exists).to(tl.int32), 1), 0) * inside.to(tl.int32)
        at = tl.where(all_plain > 0, whole, n_others - 1 - partly)
        tl.store(order + listed * n_others + at, j, mask=any_seen > 0)
        whole, partly = whole + all_plain, partly + any_seen - all_plain
    tl.store(counts + listed * 2, whole)
    tl.store(counts + listed * 2 + 1, partly)


class Launch(NamedTuple):
    """How a kernel is cut: tokens that a program keeps, tokens it reads at a time, its warps, and loads ahead."""

    kept: int
    step: int
    warps: int
    stages: int
    registers: int | None = None  # a thread may have no more: with 128 a processor holds four programs, not three

    @staticmethod
    def of(kernel: str, q: Tensor, other: int = 0) -> "Launch":
        """What was fastest on an H200 (LOG.md); less where a tile is wide or its numbers are long, so that it fits."""
        wide = padded_width(max(q.shape[-1], other))
        if q.dtype == torch.float32:
            return Launch(64, 64, 4, 2) if wide <= 64 else Launch(64, 32, 4, 2) if wide <= 128 else Launch(32, 32, 4, 2)
        return FASTEST[kernel] if wide <= 64 else Launch(64, 64, 4, 2) if wide <= 128 else Launch(64, 32, 4, 2)

    def how(self, q: Tensor) -> dict[str, object]:
        """What every kernel is told of its launch and of the heads' width."""
        wide = padded_width(q.shape[-1])
        precise = "ieee" if q.dtype == torch.float32 else "tf32"  # half precision has one way alone
        return {
            "KEPT": self.kept,
            "STEP": self.step,
            "D": wide,
            "WHOLE": wide == q.shape[-1],
            "PRECISION": precise,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "maxnreg": self.registers,
        }


FASTEST = {
    "rows": Launch(64, 128, 4, 2, 128),
    "distance": Launch(64, 32, 4, 3),
    "weighed": Launch(64, 64, 4, 3, 96),
    "gated": Launch(128, 64, 8, 3, 128),
    "spread": Launch(128, 64, 4, 3),
    "top": Launch(64, 64, 4, 2, 128),
    "masked": Launch(64, 64, 4, 3, 128),
}


def padded_width(width: int) -> int:
    """tl.dot wants powers of two, 16 at least."""
    return max(16, 1 << (width - 1).bit_length())


def tiles_of(tokens: int, size: int) -> int:
    """How many tiles of a size. Triton's own function takes some microseconds, and a call has several."""
    return -(-tokens // size)


class Survey(NamedTuple):
    """For each tile of kept tokens those of the others: the whole ones first, the partly hidden ones last."""

    order: Tensor  # (b h tiles others), the first three 1 where the mask doesn't know them apart
    counts: Tensor  # (b h tiles 2): how many are whole, and how many partly hidden

    def strides(self) -> list[int]:
        """How far apart batches, heads and tiles are, in rows of either tensor; 0 where there is one for all."""
        return [0 if self.order.shape[axis] == 1 else self.counts.stride(axis) // 2 for axis in range(3)]


_surveys: Any = WeakTensorKeyDictionary()


def survey(mask: Tensor, n_q: int, n_k: int, causal: bool, launch: Launch, *, by_keys: bool = False) -> Survey:
    """Which tiles of a mask (any shape that broadcasts to (b h q k)) need to be read. Made once for each mask.

    by_keys: tiles of keys are kept, and those of queries gone through.
    """
    known = _surveys.setdefault(mask, {}) if may_remember(mask) else {}
    version = 0 if mask.is_inference() else mask._version
    key = version, n_q, n_k, causal, launch.kept, launch.step, by_keys
    if key not in known:
        for old in [old for old in known if old[0] != version]:
            del known[old]
        known[key] = _make_survey(four_axes(mask), n_q, n_k, causal, launch, by_keys)
    return known[key]


def may_remember(mask: Tensor) -> bool:
    """Whether what is known of a mask holds until its version changes: not inside a graph, which reads it anew."""
    capturing = mask.is_cuda and torch.cuda.is_current_stream_capturing()
    return not mask.is_inference() and not capturing


def _make_survey(mask: Tensor, n_q: int, n_k: int, causal: bool, launch: Launch, by_keys: bool) -> Survey:
    b, h = mask.shape[:2]
    n_kept, n_moved = (n_k, n_q) if by_keys else (n_q, n_k)
    alike = not by_keys and mask.shape[2] == 1 and not causal
    tiles, n_others = 1 if alike else tiles_of(n_kept, launch.kept), tiles_of(n_moved, launch.step)
    order = torch.empty(b, h, tiles, n_others, dtype=torch.int32, device=mask.device)
    counts = torch.empty(b, h, tiles, 2, dtype=torch.int32, device=mask.device)
    how = {"MASK": kind(mask), "CAUSAL": causal, "BY_KEYS": by_keys, "KEPT": launch.kept, "STEP": launch.step}
    sizes = n_q, n_k, n_k - n_q, h, tiles, n_others
    _survey[(b * h * tiles,)](readable(mask), order, counts, *sizes, *mask_strides(mask), **how, num_warps=4)
    return Survey(order, counts)


def read_mask(
    mask: Tensor | None, q: Tensor, k: Tensor, causal: bool, launch: Launch, *, by_keys: bool = False
) -> tuple[tuple[Tensor, ...], int, list[int]]:
    """What a kernel is told of a mask: itself with its survey's order and counts, their last size, and all strides."""
    if mask is None:
        return (q, q, q), 0, [0] * 7
    surveyed = survey(mask, q.shape[2], k.shape[2], causal, launch, by_keys=by_keys)
    whole = four_axes(mask)
    strides = [*mask_strides(whole), *surveyed.strides()]
    return (readable(whole), *surveyed), surveyed.order.shape[-1], strides


def kind(mask: Tensor | None) -> int:
    """What the kernels call it: none, boolean or a bias, and the same with one row for all queries."""
    if mask is None:
        return 0
    alike = mask.ndim < 2 or mask.shape[-2] == 1
    return (1 if mask.dtype == torch.bool else 2) + 2 * alike


def four_axes(mask: Tensor) -> Tensor:
    return mask[(None,) * (4 - mask.ndim)]


def readable(mask: Tensor) -> Tensor:
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def mask_strides(mask: Tensor) -> tuple[int, ...]:
    """Of its four axes, 0 where it has one for all."""
    return tuple(0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True))
