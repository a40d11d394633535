"""Which images a step sees, and getting them to the device before the step asks for them.

The order is a pure function of (seed, step): an endless row of shuffled epochs, cut into batches. So no state has to be
saved to go on with a run, no image is left out at the end of an epoch, and any number of processes sees the same batch,
each its own share of it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from pellucid.data.augment import draw_views
from pellucid.data.images import ImageSet
from pellucid.data.lazy import Decoding, LazyImageSet
from pellucid.data.listings import Images

ON_DEVICE_BYTES = 8 << 30  # image sets up to this size live on the GPU


class Share(NamedTuple):
    """One process's part of one step's batch. Everything the augmentation draws follows from these numbers."""

    image: Int[Tensor, " b"]  # which one of the set
    position: Int[Tensor, " b"]  # its place in the batch of all processes
    epoch: Int[Tensor, " b"]
    step: Int[Tensor, ""]


@dataclass
class ShuffledOrder:
    """The endless row of shuffled epochs.

    >>> order = ShuffledOrder(5, seed=0)
    >>> index, epoch = order.take(3, 4)          # the fourth to the seventh image of the row
    >>> epoch.tolist()
    [0, 0, 1, 1]
    >>> first, second = order.take(0, 5)[0], order.take(5, 5)[0]
    >>> sorted(first.tolist()) == sorted(second.tolist()) == [0, 1, 2, 3, 4]
    True
    """

    count: int
    seed: int
    device: torch.device | str = "cpu"
    _shuffled: tuple[int, Tensor] | None = None

    def take(self, start: int, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """Index and epoch of the n images that begin at place `start` of the row."""
        indices, epochs = [], []
        while n > 0:
            epoch, place = divmod(start, self.count)
            part = self._epoch(epoch)[place : place + n]
            indices.append(part)
            epochs.append(torch.full_like(part, epoch))
            start, n = start + len(part), n - len(part)
        return torch.cat(indices), torch.cat(epochs)

    def _epoch(self, epoch: int) -> Int[Tensor, " count"]:
        if self._shuffled is None or self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % (1 << 63))
            self._shuffled = epoch, torch.randperm(self.count, generator=generator).to(self.device)
        return self._shuffled[1]


class BalancedOrder:
    """An endless row in which every class stands equally often: shuffled turns of all classes, one image of each.

    Each class goes through shuffled epochs of its own.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 1])
    >>> index, epoch = BalancedOrder(labels, seed=0).take(2, 8)
    >>> labels[index].view(4, 2).sum(1)
    tensor([1, 1, 1, 1])
    >>> epoch[labels[index] == 1]                   # its one image, again and again
    tensor([1, 2, 3, 4])
    """

    turns = 1024  # that are shuffled at once

    def __init__(self, labels: Tensor, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed, self.device = seed, device
        members = (torch.nonzero(labels.cpu() == label).flatten() for label in labels.unique().tolist())
        self.members = list(members)
        orders = ((i + 1) * 7_919 + seed * 1_000_003 for i in range(len(self.members)))
        self.orders = [ShuffledOrder(len(each), mixed) for each, mixed in zip(self.members, orders, strict=True)]
        self._shuffled: tuple[int, Tensor] | None = None

    def take(self, start: int, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """Index and epoch, of its class, of the n images that begin at place `start` of the row."""
        index, epochs = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=torch.int64)
        for i in range(n):
            turn, place = divmod(start + i, len(self.members))
            which = int(self._turn(turn)[place])
            inner, epoch = self.orders[which].take(turn, 1)
            index[i], epochs[i] = self.members[which][inner[0]], epoch[0]
        return index.to(self.device), epochs.to(self.device)

    def _turn(self, turn: int) -> Int[Tensor, " classes"]:
        """The order of the classes in a turn."""
        block, row = divmod(turn, self.turns)
        if self._shuffled is None or self._shuffled[0] != block:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + block) % (1 << 63))
            self._shuffled = block, torch.rand(self.turns, len(self.members), generator=generator).argsort(1)
        return self._shuffled[1][row]


@dataclass
class Loader:
    """Shares of batches, step after step. `parts` splits a share into micro-batches for gradient accumulation.

    The pairs of neighbours that mixing makes stay together if every micro-batch is even.
    """

    images: Images
    batch: int
    seed: int
    device: torch.device
    rank: int = 0
    world: int = 1
    parts: int = 1
    zoom: float = 1.0
    """Smallest share of a picture's area that is cut out of it as it is read; 1 for all of it, always."""
    balanced: bool = False
    """Every class equally often."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.batch % (self.world * self.parts):
            raise ValueError(
                f"batch is {self.batch}; expected a multiple of {self.world * self.parts} "
                f"({self.world} processes × {self.parts} accumulated parts)"
            )
        self.labels = self.images.labels.to(self.device)
        stored = self.images.images if isinstance(self.images, ImageSet) else None
        fits = stored is not None and (self.device.type == "cpu" or stored.numel() <= ON_DEVICE_BYTES)
        self.stored: Tensor | None = stored.to(self.device) if stored is not None and fits else None
        if self.zoom < 1 and not isinstance(self.images, LazyImageSet):
            raise ValueError(
                "zoom_into is 'original', but the images are in memory as arrays; leave it at 'image', or give files"
            )
        # Where pixels are read, the host must know which ones without waiting for the device.
        self.home = self.device if fits else torch.device("cpu")
        self.order = (
            BalancedOrder(self.images.labels, self.seed, self.home)
            if self.balanced
            else ShuffledOrder(len(self.images), self.seed, self.home)
        )
        self.copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" and not fits else None

    def share(self, step: int, part: int = 0) -> Share:
        """What this process sees of part `part` of step `step`."""
        size = self.batch // (self.world * self.parts)
        first = (part * self.world + self.rank) * size
        index, epoch = self.order.take(step * self.batch + first, size)
        position = torch.arange(first, first + size, device=self.home)
        return Share(index, position, epoch, torch.full((), step, device=self.home))

    def shares(self, start: int, end: int, ahead: int = 4) -> Iterator[Sequence[tuple[Share, Tensor | None]]]:
        """For every step from start to end: its parts, each with its pixels if they don't live on the device.

        Pixels that have to be read are begun `ahead` steps before they are wanted, so that decoders never wait for a
        batch to be put together, nor for the device.
        """
        if self.stored is not None:
            for step in range(start, end):
                yield [(self.share(step, part), None) for part in range(self.parts)]
            return
        waiting: deque[list[tuple[Share, Decoding | Tensor]]] = deque()
        try:
            for step in range(start, min(end, start + ahead)):
                waiting.append(self._begin(step))
            for step in range(start, end):
                parts: list[tuple[Share, Tensor | None]] = [self._arrive(*each) for each in waiting[0]]
                waiting.popleft()
                if step + ahead < end:
                    waiting.append(self._begin(step + ahead))
                yield parts
        finally:
            for begun in waiting:
                for _, pixels in begun:
                    if isinstance(pixels, Decoding):
                        pixels.cancel()

    def _begin(self, step: int) -> list[tuple[Share, Decoding | Tensor]]:
        pinned = self.device.type == "cuda"
        begun: list[tuple[Share, Decoding | Tensor]] = []
        for part in range(self.parts):
            share = self.share(step, part)
            if isinstance(self.images, LazyImageSet):
                views = draw_views(self.zoom, (self.seed, step, share.position)) if self.zoom < 1 else None
                begun.append((share, self.images.begin(share.image, views, pinned=pinned)))
            else:
                pixels = self.images.read(share.image)
                begun.append((share, pixels.pin_memory() if pinned else pixels))
        return begun

    def _arrive(self, share: Share, pixels: Decoding | Tensor) -> tuple[Share, UInt8[Tensor, "b c y x"]]:
        """On the device: copied while it still computes the steps before."""
        read = pixels.finish() if isinstance(pixels, Decoding) else pixels
        if self.copies is None:
            return share, read
        with torch.cuda.stream(self.copies):
            there = [tensor.to(self.device, non_blocking=True) for tensor in (*_pinned(share), read)]
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.copies)
        for tensor in there:
            tensor.record_stream(current)
        return Share(*there[:-1]), there[-1]

    def pixels(self, share: Share) -> UInt8[Tensor, "b c y x"]:
        """The share's images, when they live on the device."""
        assert self.stored is not None
        return self.stored[share.image]


def _pinned(share: Share) -> list[Tensor]:
    return [tensor.pin_memory() for tensor in share]
