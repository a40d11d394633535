"""Keys and values kept from one decoding step to the next."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class KeysValues(NamedTuple):
    """Keys and values, heads split, ready to be attended to."""

    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]


class KVCache:
    """The keys and values of every token seen so far, for one attention.

    Room is doubled when it runs out, so that n steps copy O(n) tokens and not O(n²).

    >>> import torch
    >>> cache = KVCache()
    >>> k, v = cache.append(torch.randn(1, 8, 3, 64), torch.randn(1, 8, 3, 64))
    >>> k, v = cache.append(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 1, 64))
    >>> k.shape, len(cache)
    (torch.Size([1, 8, 4, 64]), 4)
    """

    def __init__(self) -> None:
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, k: Float[Tensor, "b g new d"], v: Float[Tensor, "b g new e"]) -> KeysValues:
        """Add the new tokens' keys and values and return those of all tokens."""
        start, end = self._length, self._length + k.shape[2]
        if self._k is not None and self._k.shape[0] != k.shape[0]:
            raise ValueError(f"axis b (batch): the cache holds {self._k.shape[0]}, got {k.shape[0]}")
        self._k, self._v = _with_room(self._k, k, start, end), _with_room(self._v, v, start, end)
        self._k[:, :, start:end], self._v[:, :, start:end] = k, v
        self._length = end
        return KeysValues(self._k[:, :, :end], self._v[:, :, :end])


def _with_room(buffer: Tensor | None, new: Tensor, start: int, end: int) -> Tensor:
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    capacity = end if buffer is None else max(end, 2 * buffer.shape[2])
    larger = new.new_empty(*new.shape[:2], capacity, new.shape[3])
    if buffer is not None:
        larger[:, :, :start] = buffer[:, :, :start]
    return larger
