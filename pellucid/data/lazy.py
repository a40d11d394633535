"""Images that are decoded when they are read: for sets too large for memory."""

import logging
import operator
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from pellucid.data.aspect import Area, Goal, join, put, shape_in_batch
from pellucid.data.decoding import Decoders, Failures, Item, cores
from pellucid.data.images import (
    ImageHeader,
    ImageSet,
    View,
    check_labels,
    check_size,
    decode,
    label_at,
    probe,
    to_tensor,
)

log = logging.getLogger("pellucid")

TOLERATED = 0.01  # the share of unreadable images above which a set is an error


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image in a file of its own."""

    name: str
    path: Path

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return decode(self.path, size, channels, view=view)

    def probe(self) -> ImageHeader:
        return probe(self.path)

    def n_bytes(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True, eq=False)
class ImageInMemory:
    """An image of a set in memory, scaled each time: scaled all at once, the set would not fit."""

    name: str
    pixels: Tensor

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        pixels = self.pixels.permute(1, 2, 0).squeeze(-1).numpy()
        return to_tensor(Image.fromarray(pixels).convert("L" if channels == 1 else "RGB"), size, view=view)

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
    read does not depend on the number of threads or processes.

    threads: that decode; by default as many as there are cores. processes: that do it instead.

    >>> class White:
    ...     name = "white"
    ...     def decode(self, size, channels, view=None):
    ...         return torch.full((channels, *size), 255, dtype=torch.uint8)
    >>> images = LazyImageSet([White()], torch.tensor([0]), ("white",), (8, 8))
    >>> pixels, label = images[0]
    >>> pixels.shape, images.classes[label]
    (torch.Size([3, 8, 8]), 'white')
    """

    def __init__(
        self,
        items: Sequence[Item],
        labels: Tensor,
        classes: tuple[str, ...],
        size: Goal,
        channels: int = 3,
        *,
        strict: bool = False,
        tolerated: float = TOLERATED,
        threads: int | None = None,
        processes: int = 0,
    ) -> None:
        check_size(size)
        check_labels(labels, len(items), classes)
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; expected one or more")
        self.items, self.labels, self.classes = items, labels, classes
        self.size, self.channels, self.threads, self.processes = size, channels, threads, processes
        self.unreadable = Unreadable(strict, tolerated)
        self._broken: set[int] = set()
        self._decoders: Decoders | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[UInt8[Tensor, "c y x"], Any]:
        """An image, decoded now, and its label."""
        place = range(len(self))[operator.index(index)]
        return self.read(torch.tensor([place]))[0], label_at(self.labels, place)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) that every image is brought to; of those that keep their ratio, of the canvas."""
        return shape_in_batch(self.size, self.channels)

    @property
    def area(self) -> Area | None:
        """What images are brought to that keep their ratio."""
        return self.size if isinstance(self.size, Area) else None

    def name_of(self, place: int) -> str:
        """The name of an image's file."""
        return self.items[place].name

    def read(self, indices: Tensor, views: Sequence[View] | None = None) -> UInt8[Tensor, "b c y x"]:
        """The images at these indices, decoded now; of each the whole, or a view."""
        return self.begin(indices, views).finish()

    def begin(self, indices: Tensor, views: Sequence[View] | None = None, *, pinned: bool = False) -> "Decoding":
        """Have these images decoded while something else is done. pinned: into memory that a GPU can reach itself."""
        places = torch.arange(len(self))[indices].tolist()  # so that negative, boolean and too large ones act as usual
        out = torch.empty(len(places), *self.shape, dtype=torch.uint8, pin_memory=pinned)
        if self._decoders is None:
            self._decoders = Decoders(self.threads, self.processes)
        each = [None] * len(places) if views is None else views
        begun = self._decoders.begin(out, [self.items[i] for i in places], each, self.size, self.channels)
        return Decoding(self, places, each, out, begun)

    def read_whole(self, indices: Tensor) -> tuple[UInt8[Tensor, "b c y x"], Tensor]:
        """The images at these indices that can be read, and their indices: none stands in for another."""
        places = torch.arange(len(self))[indices]
        reading = self.begin(places)
        kept = []
        for place, failure in zip(places.tolist(), reading.failures(), strict=True):
            kept.append(failure is None)
            if failure is not None:
                self._note(place, failure)
        return reading.out[torch.tensor(kept)], places[torch.tensor(kept)]

    def close(self) -> None:
        """End the threads and processes; what is read later begins new ones."""
        if self._decoders is not None:
            self._decoders.close()
            self._decoders = None

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
            processes=self.processes,
        )

    def replace(self, index: int, view: View | None, error: ValueError) -> Tensor:
        """Another image of the class of one that can't be read."""
        self._note(index, error)
        same = (self.labels == self.labels[index]).view(len(self), -1).all(1).nonzero().flatten()
        others = torch.cat([same[same > index], same[same < index]]).tolist()
        for other in others:
            if other not in self._broken:
                try:
                    return join([self.items[other].decode(self.size, self.channels, view)], self.size)[0]
                except ValueError as again:
                    self._note(other, again)
                    error = again
        label = label_at(self.labels, index)
        like = "such classes" if isinstance(label, Tensor) else f"the class {self.classes[label]!r}"
        raise ValueError(f"no image of {like} can be read; the first: {error}")

    def _note(self, index: int, error: ValueError) -> None:
        self._broken.add(index)
        self.unreadable.add(self.items[index].name, error)
        self.unreadable.check(len(self))

    def __getstate__(self) -> dict[str, Any]:  # threads don't travel to another process
        return {**self.__dict__, "_decoders": None}


@dataclass(frozen=True, eq=False)
class Decoding:
    """Images that are being decoded."""

    images: LazyImageSet
    places: list[int]
    views: Sequence[View | None]
    out: Tensor
    parts: list[Future[Failures]]

    def failures(self) -> Failures:
        """Why each can't be read, when all are there."""
        return [failure for part in self.parts for failure in part.result()]

    def finish(self) -> UInt8[Tensor, "b c y x"]:
        """All of them. Failures are met in the order of the images, so the same one is always first."""
        for row, failure in enumerate(self.failures()):
            if failure is not None:
                self.out[row] = self.images.replace(self.places[row], self.views[row], failure)
        return self.out

    def cancel(self) -> None:
        """What hasn't begun won't."""
        for part in self.parts:
            part.cancel()


def into_memory(
    items: Sequence[Item],
    labels: Sequence[int],
    classes: tuple[str, ...],
    size: Goal,
    channels: int,
    unreadable: Unreadable,
) -> ImageSet:
    """Every readable image, decoded; the others are told to `unreadable`."""

    def attempt(item: Item) -> Tensor | ValueError:
        try:
            return item.decode(size, channels)
        except ValueError as error:
            return error

    images = torch.empty(len(items), *shape_in_batch(size, channels), dtype=torch.uint8)
    kept: list[int] = []
    names: list[str] = []
    rest = iter(zip(items, labels, strict=True))
    with ThreadPoolExecutor(cores(), thread_name_prefix="pellucid-decode") as pool:
        while block := list(islice(rest, 1024)):  # so that decoded images don't pile up beside the tensor
            for (item, label), image in zip(block, pool.map(attempt, [item for item, _ in block]), strict=True):
                if isinstance(image, Tensor):
                    put(images[len(kept)].numpy(), image.numpy())
                    kept.append(label)
                    names.append(item.name)
                else:
                    unreadable.add(item.name, image)
    labelled = torch.tensor(kept, dtype=torch.int64)
    return ImageSet(images[: len(kept)], labelled, classes, tuple(names), size if isinstance(size, Area) else None)
