"""Which sentences a step sees: batches of so many tokens, sentences of about one length together.

As with images the order is a pure function of (seed, step). Sentences are sorted into buckets by their length once;
an epoch shuffles each bucket, cuts it into batches that differ by a sentence at most, and shuffles the batches. So a
step has one of a few shapes, each sentence comes once in an epoch, and all epochs have the same number of steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from pellucid.data.tokenizer import PAD

LENGTHS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)  # tokens that a bucket has room for


class TextBatch(NamedTuple):
    """One process's part of one step's batch, filled up with PAD. words: tokens to say in the whole step's batch."""

    source: Int[Tensor, "b s"]
    target: Int[Tensor, "b t"]
    words: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sentences of about one length. rows: in each of its batches; batches: in an epoch."""

    source: Int[Tensor, "n s"]
    target: Int[Tensor, "n t"]
    words: Int[Tensor, " n"]
    rows: int
    batches: int


@dataclass
class TextLoader:
    """Batches of pairs of sentences, step after step.

    sources: each with what the encoder reads. targets: START, what is to be said, END. tokens: of a batch on either
    side at most, padding included. shapes: how many different ones a step may have.

    >>> loader = TextLoader([[9, 2]] * 5, [[1, 9, 2]] * 5, tokens=16, seed=0)
    >>> [part.source.shape[0] for step in loader.batches(0, 3) for part in step], loader.steps
    ([2, 2, 2], 3)
    """

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    tokens: int
    seed: int
    device: torch.device | str = "cpu"
    rank: int = 0
    world: int = 1
    parts: int = 1
    shapes: int = 6
    buckets: list[Bucket] = field(init=False)
    _epoch: tuple[int, list[tuple[int, Tensor]]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        lengths = [max(len(s), len(t) - 1) for s, t in zip(self.sources, self.targets, strict=True)]
        if not lengths:
            raise ValueError("there are no sentences to train on")
        if max(lengths) > LENGTHS[-1]:
            raise ValueError(f"a sentence has {max(lengths):,} tokens; expected up to {LENGTHS[-1]}")
        if self.tokens // (self.world * self.parts) < max(lengths):
            raise ValueError(
                f"batch is {self.tokens} tokens over {self.world} processes and {self.parts} parts; expected room for "
                f"the longest sentence, of {max(lengths)}, in each"
            )
        self.buckets = [self._bucket(places, room) for room, places in self._sorted(lengths)]
        self.steps = sum(bucket.batches for bucket in self.buckets)
        self.words = sum(len(target) - 1 for target in self.targets)

    def batches(self, start: int, end: int) -> Iterator[list[TextBatch]]:
        """For every step from start to end: its parts."""
        for step in range(start, end):
            epoch, place = divmod(step, self.steps)
            bucket, chosen = self._order(epoch)[place]
            yield self._parts(self.buckets[bucket], chosen)

    def _parts(self, bucket: Bucket, chosen: Int[Tensor, " rows"]) -> list[TextBatch]:
        """Where a batch has a row too many, the row is empty."""
        there = chosen >= 0
        words = (bucket.words[chosen.clamp(min=0)] * there).sum()
        size = bucket.rows // (self.world * self.parts)
        parts = []
        for part in range(self.parts):
            first = (part * self.world + self.rank) * size
            mine, full = chosen[first : first + size].clamp(min=0), there[first : first + size, None]
            source = bucket.source[mine].masked_fill(~full, PAD)
            parts.append(TextBatch(source, bucket.target[mine].masked_fill(~full, PAD), words))
        return parts

    def _order(self, epoch: int) -> list[tuple[int, Int[Tensor, " rows"]]]:
        """The batches of an epoch: which bucket, and which of its sentences; −1 for an empty row."""
        if self._epoch is None or self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % (1 << 63))
            batches = []
            for number, bucket in enumerate(self.buckets):
                n, room = len(bucket.source), bucket.rows * bucket.batches
                shuffled = torch.full((room,), -1)
                shuffled[:n] = torch.randperm(n, generator=generator)
                rows = shuffled.view(bucket.rows, bucket.batches).t().contiguous().to(self.device)
                batches += [(number, row) for row in rows]
            order = torch.randperm(len(batches), generator=generator).tolist()
            self._epoch = epoch, [batches[i] for i in order]
        return self._epoch[1]

    def _sorted(self, lengths: list[int]) -> list[tuple[int, list[int]]]:
        """Places of the sentences by the room they take; of two neighbouring sizes the rarer joins the larger one."""
        by_room: dict[int, list[int]] = {}
        for place, length in enumerate(lengths):
            by_room.setdefault(next(room for room in LENGTHS if room >= length), []).append(place)
        while len(by_room) > self.shapes:
            rooms = sorted(by_room)
            cost = {small: (large - small) * len(by_room[small]) for small, large in pairwise(rooms)}
            small = min(cost, key=cost.__getitem__)
            by_room[rooms[rooms.index(small) + 1]] += by_room.pop(small)
        return [(room, sorted(by_room[room])) for room in sorted(by_room)]

    def _bucket(self, places: list[int], room: int) -> Bucket:
        unit = self.world * self.parts
        most = max(1, self.tokens // room // unit) * unit
        batches = -(-len(places) // most)
        rows = -(-len(places) // (batches * unit)) * unit
        longest = max(max(len(self.sources[i]), len(self.targets[i]) - 1) for i in places)
        source, target = (
            _padded([side[i] for i in places], longest + more).to(self.device)
            for side, more in ((self.sources, 0), (self.targets, 1))
        )
        return Bucket(source, target, (target[:, 1:] != PAD).sum(1), rows, batches)


def _padded(sentences: Sequence[Sequence[int]], length: int) -> Int[Tensor, "n length"]:
    rows = torch.full((len(sentences), length), PAD)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = torch.tensor(sentence)
    return rows
