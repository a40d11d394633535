"""The attention map itself, computed exactly: scores, their softmax, and any block of its rows.

This is the slow truth that the fused kernel in `attention.py` is compared with, and what every summary is made of.
Half-precision inputs are computed in float32: a row of bf16 weights doesn't sum to one.

Axes: b batch, h heads, q query token, k key token, d width.
"""

import math
from collections.abc import Iterator
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.ops.checks import check_attention, resolve_beta
from pellucid.ops.rules import Rule

# Numbers in one block of rows: 4 MB on a CPU. No size is best everywhere (LOG.md); a GPU wants larger launches.
_BLOCK_NUMBERS = {"cpu": 2**20, "cuda": 2**25}

RowIndex = slice | Int[Tensor, " n"]
Mask = Float[Tensor, "..."] | Bool[Tensor, "..."] | Rule | None


def scores(q: Tensor, k: Tensor, *, beta: float | None = None) -> Float[Tensor, "b h q k"]:
    """β·qkᵀ: how well each query (b h q d) matches each key (b h k d); β is 1/√d unless given.

    >>> import torch
    >>> q = torch.ones(1, 12, 5, 64)
    >>> scores(q, q).shape, scores(q, q)[0, 0, 0, 0].item()
    (torch.Size([1, 12, 5, 5]), 8.0)
    """
    check_attention(q, k)
    beta = resolve_beta(beta, q.shape[-1])
    if math.isinf(beta):
        raise ValueError("scores are infinite at beta=inf; attention_weights(beta=math.inf) gives the hard weights")
    with _full_precision(q):
        return _dot(q, k, beta)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None = None, *, beta: float | None = None, causal: bool = False
) -> Float[Tensor, "b h q k"]:
    """softmax(β·qkᵀ): the map, every row a distribution over the keys (all zeros where nothing is allowed).

    β=0 spreads each row evenly over the allowed keys; β=inf puts it on the best key, ties shared equally.

    >>> import torch
    >>> attention_weights(torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 2, 4), causal=True)[0, 0]
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    check_attention(q, k, mask=mask)
    return weight_rows(q, k, mask, resolve_beta(beta, q.shape[-1]), causal, slice(None))


def weight_rows(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    mask: Mask,
    beta: float,
    causal: bool,
    rows: RowIndex,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "b h n k"]:
    """The chosen rows of the map. The inputs have been checked."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    allowed, bias, rule = None, None, None
    if isinstance(mask, Rule):
        mask, rule = None, mask
    if mask is not None:
        mask = mask if mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., rows, :]
        allowed, bias = (mask, None) if mask.dtype == torch.bool else (mask > -math.inf, mask)
    if causal:
        # Queries are the last rows of the keys' sequence: query i sits at key i + (n_keys − n_queries).
        position = torch.arange(n_queries, device=q.device)[rows, None] + (n_keys - n_queries)
        past = torch.arange(n_keys, device=q.device) <= position
        allowed = past if allowed is None else allowed & past
    with _full_precision(q):
        if rule is not None:
            return rule.weigh(
                _barred(_dot(q[:, :, rows], k, beta, dtype), allowed), torch.arange(n_queries, device=q.device)[rows]
            )
        if math.isinf(beta):
            return _hard(_dot(q[:, :, rows], k, math.copysign(1.0, beta), dtype), allowed, bias)
        return _soft(_dot(q[:, :, rows], k, beta, dtype), allowed, bias)


def weight_blocks(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    mask: Mask,
    beta: float,
    causal: bool,
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[slice, Float[Tensor, "b h n k"]]]:
    """All rows of the map, a few at a time: (which rows, their weights). Memory grows with n_keys, not its square."""
    b, h, n_queries, _ = q.shape
    numbers = _BLOCK_NUMBERS.get(q.device.type, 2**22)
    step = max(1, numbers // max(1, b * h * k.shape[2]))
    for start in range(0, n_queries, step):
        rows = slice(start, min(start + step, n_queries))
        yield rows, weight_rows(q, k, mask, beta, causal, rows, dtype)


Tile = tuple[slice, slice, slice]


def weight_tiles(
    q: Float[Tensor, "b h q d"], k: Float[Tensor, "b g k d"], mask: Mask, beta: float, causal: bool
) -> Iterator[tuple[Tile, Float[Tensor, "_ _ n k"]]]:
    """The map in parts that suit the device: (which batches, heads and rows, their weights), the same rows together.

    On a CPU many rows of one head are twice as fast as a few rows of all: a product of matrices likes to be tall.
    """
    b, h, n_queries, _ = q.shape
    if q.device.type != "cpu" or isinstance(mask, Rule):
        for rows, weights in weight_blocks(q, k, mask, beta, causal):
            yield (slice(None), slice(None), rows), weights
        return
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(dtype), share_heads(k.to(dtype), h)
    mask = None if mask is None else mask[(None,) * (4 - mask.ndim)]
    numbers = _BLOCK_NUMBERS["cpu"]
    step = max(1, min(n_queries, numbers // max(1, k.shape[2])))
    heads = max(1, min(h, numbers // max(1, step * k.shape[2])))
    batches = max(1, min(b, numbers // max(1, heads * step * k.shape[2])))
    for rows, batch, head in product(_split(n_queries, step), _split(b, batches), _split(h, heads)):
        seen = None if mask is None else mask[_pick(mask, 0, batch), _pick(mask, 1, head)]
        yield (batch, head, rows), weight_rows(q[batch, head], k[batch, head], seen, beta, causal, rows)


def _split(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _pick(mask: Tensor, axis: int, part: slice) -> slice:
    return slice(None) if mask.shape[axis] == 1 else part


def share_heads(k: Float[Tensor, "b g k d"], heads: int) -> Float[Tensor, "b {heads} k d"]:
    """Repeat grouped key/value heads so that each query head has its own: head i reads group i // (heads/g)."""
    return k if k.shape[1] == heads else k.repeat_interleave(heads // k.shape[1], dim=1)


def _dot(q: Tensor, k: Tensor, beta: float, dtype: torch.dtype | None = None) -> Tensor:
    dtype = dtype or torch.promote_types(q.dtype, torch.float32)
    return (q.to(dtype) * beta) @ share_heads(k, q.shape[1]).to(dtype).mT


def _barred(s: Tensor, allowed: Tensor | None) -> Tensor:
    return s if allowed is None else s.masked_fill(~allowed, -math.inf)


def _soft(s: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
    if bias is not None:
        s = s + bias.to(s.dtype)
    if allowed is None:
        return s.softmax(-1)
    # The lowest finite number instead of −∞: a row with nothing allowed stays finite, and so do its gradients.
    barred = ~allowed
    s = s.masked_fill(barred, torch.finfo(s.dtype).min)
    return s.softmax(-1).masked_fill(barred, 0.0)


def _hard(s: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
    if bias is not None:
        raise ValueError(
            "beta=inf needs a boolean mask: a finite bias has no weight beside infinite scores; got a float mask"
        )
    if s.shape[-1] == 0:
        return s
    # Equal keys may get scores that differ in the last bits, by where they fall in the matrix product.
    rounding = 8 * torch.finfo(s.dtype).eps * s.abs().amax(-1, keepdim=True)
    if allowed is not None:
        s = s.masked_fill(~allowed, torch.finfo(s.dtype).min)
    hit = s >= s.amax(-1, keepdim=True) - rounding
    if allowed is not None:
        hit = hit & allowed
    return hit.to(s.dtype) / hit.sum(-1, keepdim=True).clamp(min=1)


def _full_precision(q: Tensor) -> torch.autocast:
    return torch.autocast(q.device.type, enabled=False)
