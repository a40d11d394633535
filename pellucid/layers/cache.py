"""Keys and values kept from one decoding step to the next."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor


class KeysValues(NamedTuple):
    """Keys and values, heads split, ready to be attended to.

    >>> import torch
    >>> KeysValues(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 6)).v.shape
    torch.Size([1, 2, 5, 6])
    """

    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]


class KVCache:
    """The keys and values of every token seen so far, for one attention.

    room: for how many tokens from the start. It is doubled when it runs out: n steps copy O(n) tokens, not O(n²).

    >>> import torch
    >>> cache = KVCache()
    >>> k, v = cache.append(torch.randn(1, 8, 3, 64), torch.randn(1, 8, 3, 64))
    >>> k, v = cache.append(torch.randn(1, 8, 1, 64), torch.randn(1, 8, 1, 64))
    >>> k.shape, len(cache)
    (torch.Size([1, 8, 4, 64]), 4)
    """

    listed: Tensor | None = None  # if not all, the ones that each query may attend to

    def __init__(self, room: int | None = None) -> None:
        self._room = room or 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def clear(self) -> None:
        """Forget all tokens; the room stays."""
        self._length = 0

    def narrow(self, rows: Bool[Tensor, " b"]) -> None:
        """Keep the tokens of these rows of the batch."""
        if self._k is None or self._v is None:
            return
        k, v = (x[:, :, : self._length][rows] for x in (self._k, self._v))
        self._k = self._v = None
        self.clear()
        self._write(k, v)

    def append(self, k: Float[Tensor, "b g new d"], v: Float[Tensor, "b g new e"]) -> KeysValues:
        """Add the new tokens' keys and values and return those of all tokens."""
        room = self._write(k, v)
        return KeysValues(room.k[:, :, : self._length], room.v[:, :, : self._length])

    def _write(self, k: Tensor, v: Tensor) -> KeysValues:
        start, end = self._length, self._length + k.shape[2]
        if self._k is not None and self._k.shape[0] != k.shape[0]:
            raise ValueError(f"axis b (batch): the cache holds {self._k.shape[0]}, got {k.shape[0]}")
        if self._k is None or self._v is None:
            self._room = max(end, self._room)
            self._k, self._v = self._buffers(k, v)
        elif end > self._k.shape[2]:
            self._room, old = max(end, 2 * self._room), (self._k, self._v)
            self._k, self._v = self._buffers(k, v)
            self._k[:, :, :start], self._v[:, :, :start] = (x[:, :, :start] for x in old)
        self._k[:, :, start:end], self._v[:, :, start:end] = k, v
        self._length = end
        return KeysValues(self._k, self._v)

    def _buffers(self, k: Tensor, v: Tensor) -> KeysValues:
        """Room for keys and values like these. Not empty: a masked NaN is still a NaN."""
        return KeysValues(*(x.new_zeros(*x.shape[:2], self._room, x.shape[3]) for x in (k, v)))


class ListedCache(KVCache):
    """For queries that attend to listed keys: whoever decodes sets `listed`, (b q s), before each step.

    All the room is given out, written or not, and keys lie in it as (b g d room), which `attend` reads quickest.

    >>> ListedCache().listed is None
    True
    """

    def append(self, k: Float[Tensor, "b g new d"], v: Float[Tensor, "b g new e"]) -> KeysValues:
        return self._write(k, v)

    def _buffers(self, k: Tensor, v: Tensor) -> KeysValues:
        keys = k.new_zeros(*k.shape[:2], k.shape[3], self._room).mT
        return KeysValues(keys, v.new_zeros(*v.shape[:2], self._room, v.shape[3]))


class PlacedCache(KVCache):
    """Keys and values in a buffer that never moves, written where a tensor says: every step is the same work.

    So a step can be captured once as a graph and replayed. Whoever decodes moves `places` on and masks what nobody has
    written yet.

    room: for how many tokens. places: where the next tokens go.

    >>> import torch
    >>> cache = PlacedCache(10, torch.tensor([0]))
    >>> k, v = cache.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> k.shape, int(k.sum())
    (torch.Size([1, 2, 10, 4]), 8)
    """

    def __init__(self, room: int, places: Tensor) -> None:
        super().__init__(room)
        self.places = places

    def append(self, k: Float[Tensor, "b g new d"], v: Float[Tensor, "b g new e"]) -> KeysValues:
        if self._k is None or self._v is None:
            self._k, self._v = self._buffers(k, v)
        self._k.index_copy_(2, self.places, k)
        self._v.index_copy_(2, self.places, v)
        return KeysValues(self._k, self._v)
