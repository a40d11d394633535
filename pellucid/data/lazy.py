"""Images that are decoded when they are read: for sets too large for memory."""

import logging
import operator
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from pellucid.data.images import ImageHeader, ImageSet, Size, check_labels, check_size, decode, probe, to_tensor

log = logging.getLogger("pellucid")

TOLERATED = 0.01  # the share of unreadable images above which a set is an error


class Item(Protocol):
    """One image that can be decoded on its own; `name` is the same on every machine."""

    @property
    def name(self) -> str: ...
    def decode(self, size: Size | None, channels: int) -> Tensor: ...
    def probe(self) -> ImageHeader: ...
    def n_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image in a file of its own."""

    name: str
    path: Path

    def decode(self, size: Size | None, channels: int) -> Tensor:
        return decode(self.path, size, channels)

    def probe(self) -> ImageHeader:
        return probe(self.path)

    def n_bytes(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True, eq=False)
class ImageInMemory:
    """An image of a set in memory, scaled each time: scaled all at once, the set would not fit."""

    name: str
    pixels: Tensor

    def decode(self, size: Size | None, channels: int) -> Tensor:
        pixels = self.pixels.permute(1, 2, 0).squeeze(-1).numpy()
        return to_tensor(Image.fromarray(pixels).convert("L" if channels == 1 else "RGB"), size)

    def probe(self) -> ImageHeader:
        c, y, x = self.pixels.shape
        return ImageHeader(y, x, c == 1)

    def n_bytes(self) -> int:
        return self.pixels.numel()


class Unreadable:
    """The images that could not be read: each named in the log once, and an error when there are too many."""

    def __init__(self, strict: bool = False, tolerated: float = TOLERATED) -> None:
        self.strict, self.tolerated = strict, tolerated
        self.reasons: dict[str, str] = {}

    def add(self, name: str, error: ValueError) -> None:
        if self.strict:
            raise error
        if name not in self.reasons:
            log.warning("left out: %s", error)
            self.reasons[name] = str(error)

    def check(self, total: int) -> None:
        """Raises if more than the tolerated share of `total` images can't be read."""
        if len(self.reasons) > self.tolerated * total:
            count, first = len(self.reasons), next(iter(self.reasons.values()))
            enough = ceil(1000 * count / total) / 1000
            raise ValueError(
                f"{count} of {total} images can't be read, more than {100 * self.tolerated:g}%; the first: {first}; "
                f"mend or remove them (pellucid data inspect names each), or set tolerated to {enough}"
            )


class LazyImageSet:
    """Labelled images that stay in their files until they are read; otherwise an `ImageSet`.

    An image that can't be decoded is replaced by the next one of its class in this set, so labels stay true. What is
    read does not depend on the number of threads.
    """

    def __init__(
        self,
        items: Sequence[Item],
        labels: Tensor,
        classes: tuple[str, ...],
        size: Size,
        channels: int = 3,
        *,
        strict: bool = False,
        tolerated: float = TOLERATED,
        threads: int | None = None,
    ) -> None:
        check_size(size)
        check_labels(labels, len(items), classes)
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; expected one or more")
        self.items, self.labels, self.classes = items, labels, classes
        self.size, self.channels, self.threads = size, channels, threads
        self.unreadable = Unreadable(strict, tolerated)
        self._broken: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[UInt8[Tensor, "c y x"], int]:
        """An image, decoded now, and its label."""
        place = range(len(self))[operator.index(index)]
        return self.read(torch.tensor([place]))[0], int(self.labels[place])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) that every image is brought to."""
        return self.channels, *self.size

    def read(self, indices: Tensor) -> UInt8[Tensor, "b c y x"]:
        """The images at these indices, decoded now."""
        places = torch.arange(len(self))[indices].tolist()  # so that negative, boolean and too large ones act as usual
        if not places:
            return torch.empty(0, *self.shape, dtype=torch.uint8)
        decoded = self._threads().map(self._decode, places)
        # Failures are met in the order of the indices, after the threads: so the same one is always first.
        return torch.stack([self._settled(index, image) for index, image in zip(places, list(decoded), strict=True)])

    def subset(self, indices: Tensor) -> "LazyImageSet":
        """The images at these indices, as a set of their own."""
        return type(self)(
            [self.items[index] for index in torch.arange(len(self))[indices].tolist()],
            self.labels[indices],
            self.classes,
            self.size,
            self.channels,
            strict=self.unreadable.strict,
            tolerated=self.unreadable.tolerated,
            threads=self.threads,
        )

    def _decode(self, index: int) -> Tensor | ValueError:
        try:
            return self.items[index].decode(self.size, self.channels)
        except ValueError as error:
            return error

    def _settled(self, index: int, image: Tensor | ValueError) -> Tensor:
        if isinstance(image, Tensor):
            return image
        self._note(index, image)
        same = (self.labels == self.labels[index]).nonzero().flatten()
        others = torch.cat([same[same > index], same[same < index]]).tolist()
        for other in others:
            if other not in self._broken:
                image = self._decode(other)
                if isinstance(image, Tensor):
                    return image
                self._note(other, image)
        label = self.classes[int(self.labels[index])]
        raise ValueError(f"no image of the class {label!r} can be read; the first: {image}")

    def _note(self, index: int, error: ValueError) -> None:
        self._broken.add(index)
        self.unreadable.add(self.items[index].name, error)
        self.unreadable.check(len(self))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads or os.cpu_count(), thread_name_prefix="pellucid-decode")
        return self._pool

    def __getstate__(self) -> dict[str, Any]:  # threads don't travel to another process
        return {**self.__dict__, "_pool": None}


def into_memory(
    items: Sequence[Item],
    labels: Sequence[int],
    classes: tuple[str, ...],
    size: Size,
    channels: int,
    unreadable: Unreadable,
) -> ImageSet:
    """Every readable image, decoded; the others are told to `unreadable`."""

    def attempt(item: Item) -> Tensor | ValueError:
        try:
            return item.decode(size, channels)
        except ValueError as error:
            return error

    images = torch.empty(len(items), channels, *size, dtype=torch.uint8)
    kept: list[int] = []
    rest = iter(zip(items, labels, strict=True))
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="pellucid-decode") as pool:
        while block := list(islice(rest, 1024)):  # so that decoded images don't pile up beside the tensor
            for (item, label), image in zip(block, pool.map(attempt, [item for item, _ in block]), strict=True):
                if isinstance(image, Tensor):
                    images[len(kept)] = image
                    kept.append(label)
                else:
                    unreadable.add(item.name, image)
    return ImageSet(images[: len(kept)], torch.tensor(kept, dtype=torch.int64), classes)
