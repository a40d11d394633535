"""Masks: boolean, True = may attend, broadcasting to (b h q k)."""

import math
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Device = torch.device | str | None


def causal(n_queries: int, n_keys: int | None = None, *, device: Device = None) -> Bool[Tensor, "q k"]:
    """Each query sees the keys up to itself. With more keys than queries, the queries are the last rows.

    >>> causal(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    query, key = _positions(n_queries, n_keys, device)
    return key <= query


def padding(lengths: Int[Tensor, " b"], n_keys: int | None = None) -> Bool[Tensor, "b 1 1 k"]:
    """Only the first `lengths[b]` keys of each sequence exist.

    >>> padding(torch.tensor([1, 3])).squeeze().int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    longest = int(lengths.max()) if n_keys is None else n_keys
    if lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > longest):
        raise ValueError(f"lengths must lie in 0…{longest}; got {lengths.tolist()}")
    return (torch.arange(longest, device=lengths.device) < lengths[:, None])[:, None, None]


def window(n_queries: int, n_keys: int | None = None, *, radius: int, device: Device = None) -> Bool[Tensor, "q k"]:
    """Each query sees the keys at most `radius` away from it.

    >>> window(4, radius=1).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    if radius < 0:
        raise ValueError(f"radius is {radius}; expected zero or more")
    query, key = _positions(n_queries, n_keys, device)
    return (key - query).abs() <= radius


def prefix(n_queries: int, n_keys: int | None = None, *, length: int, device: Device = None) -> Bool[Tensor, "q k"]:
    """Everyone sees the first `length` keys; beyond them the mask is causal.

    >>> prefix(3, length=2).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    if length < 0:
        raise ValueError(f"length is {length}; expected zero or more")
    query, key = _positions(n_queries, n_keys, device)
    return (key <= query) | (key < length)


def block_sparse(grid: Bool[Tensor, "*bh rows columns"], block: int | tuple[int, int]) -> Bool[Tensor, "*bh q k"]:
    """Each True of the grid opens a block of `block` queries by `block` keys (or of two different sizes).

    >>> block_sparse(torch.tensor([[True, False]]), (1, 2)).int()
    tensor([[1, 1, 0, 0]], dtype=torch.int32)
    """
    if grid.dtype != torch.bool:
        raise ValueError(f"grid must be boolean; got {grid.dtype}")
    rows, columns = (block, block) if isinstance(block, int) else block
    if rows < 1 or columns < 1:
        raise ValueError(f"block is {block}; expected one or more tokens")
    return grid.repeat_interleave(rows, dim=-2).repeat_interleave(columns, dim=-1)


def listed(keys: Int[Tensor, "b q s"], n_keys: int) -> Bool[Tensor, "b 1 q k"]:
    """Each query sees the keys in its list.

    >>> listed(torch.tensor([[[0, 3], [1, 3]]]), 4).squeeze().int()
    tensor([[1, 0, 0, 1],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    nobody = torch.zeros(*keys.shape[:2], n_keys, dtype=torch.bool, device=keys.device)
    return nobody.scatter(-1, keys, True)[:, None]


def additive(
    mask: Bool[Tensor, "*axes"], value: float = -1e4, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*axes"]:
    """The textbook form: 0 where attention is allowed, `value` where it isn't, to be added to the scores.

    A finite value only weakens what it should forbid: a row with nothing allowed attends to everything.

    >>> additive(causal(2))
    tensor([[     0., -10000.],
            [     0.,      0.]])
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"additive() turns a boolean mask into numbers; got {mask.dtype}")
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, value)


def is_for_all(mask: Tensor) -> bool:
    """Whether all queries see the same keys, as with padding.

    >>> is_for_all(padding(torch.tensor([2, 3]))), is_for_all(causal(3))
    (True, False)
    """
    return mask.ndim < 2 or mask.shape[-2] == 1


@overload
def combine(first: Tensor, *others: Tensor | None) -> Tensor: ...
@overload
def combine(first: Tensor | None, *others: Tensor) -> Tensor: ...
@overload
def combine(first: None, *others: None) -> None: ...
def combine(first: Tensor | None, *others: Tensor | None) -> Tensor | None:
    """What all the masks allow; None allows everything, and float biases add up.

    >>> combine(causal(2), torch.tensor([[True, False], [False, True]]))
    tensor([[ True, False],
            [False,  True]])
    """
    for other in others:
        if first is None or other is None:
            first = other if first is None else first
        elif first.dtype == torch.bool and other.dtype == torch.bool:
            first = first & other
        else:
            first = _bias(first) + _bias(other)
    return first


def _bias(mask: Tensor) -> Tensor:
    return additive(mask, -math.inf) if mask.dtype == torch.bool else mask


def _positions(n_queries: int, n_keys: int | None, device: Device) -> tuple[Tensor, Tensor]:
    n_keys = n_queries if n_keys is None else n_keys
    query = torch.arange(n_queries, device=device)[:, None] + (n_keys - n_queries)
    return query, torch.arange(n_keys, device=device)
