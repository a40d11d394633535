"""Attention to listed keys: each query has a list of its own, and the rest is not there for it.

So the beams of a search read their pasts: keys and values of all of them lie in one place, and each beam descends from
some. A mask would let every query compute with every key and forget most of it. But a mixture of listed values is a
weighted sum of rows of a table, which is what PyTorch's embedding_bag computes without collecting the rows first; and
q·Kᵀ is a sum of the rows of Kᵀ, weighted by q.

Axes: b batch, h heads, q query token, k key token, d width of queries and keys, e width of values, s the list.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.ops.checks import is_learned


def takes_lists(q: Tensor, k: Tensor, v: Tensor, listed: Tensor) -> bool:
    """Whether `attend_listed` takes this call: on the CPU, not to be learned from, and with something listed."""
    full = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return full and listed.numel() > 0 and not is_learned(q, k, v)


def attend_listed(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    listed: Int[Tensor, "b q s"],
    beta: float,
) -> Float[Tensor, "b h q e"]:
    """Keys that lie in memory as (b g d k) are read where they are; others are first copied into that order."""
    (b, h, n, d), (_, g, keys, e) = q.shape, v.shape
    rows, bags, first = _tables(b, h, g, n, d, keys)
    scores = F.embedding_bag(rows, k.mT.reshape(-1, keys), bags, mode="sum", per_sample_weights=q.reshape(-1))
    lists = listed[:, None].expand(-1, h, -1, -1).flatten(0, 2)
    weights = (beta * scores.gather(1, lists)).softmax(-1)
    mixed = F.embedding_bag(first + lists, v.reshape(-1, e), mode="sum", per_sample_weights=weights)
    return mixed.view(b, h, n, e)


@lru_cache(maxsize=4)
def _tables(
    b: int, h: int, g: int, n: int, d: int, keys: int
) -> tuple[Int[Tensor, " bhqd"], Int[Tensor, " bhq"], Int[Tensor, "bhq 1"]]:
    """The d rows of all Kᵀ under each other that each query of each head weighs, and at which of these rows it begins;
    and where its rows of all values begin."""
    heads = torch.arange(b)[:, None] * g + torch.arange(h) * g // h
    heads = heads.flatten().repeat_interleave(n)[:, None]
    return (heads * d + torch.arange(d)).flatten(), torch.arange(0, len(heads) * d, d), heads * keys
