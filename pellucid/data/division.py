"""Which images of a listing train, choose and test: as the source says, by a hash of names, or as a run had them.

A run keeps the names of the images that it held out, with their sizes in bytes. So it knows its data again whatever its
path is called, and never takes for held out what it was trained on.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from pellucid.data.decoding import Item
from pellucid.data.listings import Entries, Listing, some

log = logging.getLogger("pellucid")

HELD_OUT_SEED = 0
ALL = "all"  # every image, whatever its split
HeldOut = Mapping[str, Mapping[str, int]]  # by split: names of images, and their sizes in bytes


@dataclass(frozen=True)
class Division:
    """The images by split, and who says so: the source itself, a hash of the names, or the run that is asked about."""

    splits: dict[str, Entries]
    origin: Literal["source", "hash", "run"]

    def entries(self, split: str) -> Entries:
        """The images of one split, or of all."""
        if split == ALL:
            return [entry for entries in self.splits.values() for entry in entries]
        return self.splits.get(split, [])

    def held_out(self, *, counted: bool) -> HeldOut:
        """What a run must keep to know its split again; nothing where the source says it. counted: see `divide`."""
        splits = {"hash": ("validation", "test"), "run": tuple(self.splits)}.get(self.origin, ())
        chosen = [each for each in splits or (("validation",) if counted else ()) if each != "train"]
        return {
            split: {item.name: _n_bytes(item) for item, _ in self.splits[split]}
            for split in chosen
            if split in self.splits
        }


def divide(
    listing: Listing, held_out: int = 0, kept: HeldOut | None = None, fold: tuple[int, int] | None = None
) -> Division:
    """The images by split.

    Where the source says nothing, 10 % of each class are for test and 10 % for validation, by a hash of their names.
    held_out: that many are taken out of training for validation instead, of each class its share. kept: what a run
    held out; if these are its images, they are divided as they were. fold: (i, k) to validate on the i-th of k parts
    of those that would be trained on, and to train on the others.
    """
    if listing.empty:
        raise ValueError(f"no images in {some(listing.empty)}; put some there, or remove the folder")
    if kept and (splits := _divide_again(listing, kept)):
        return Division(splits, "run")
    splits = dict(listing.splits)
    if not listing.is_split:
        apart = ("test",) if held_out or fold else ("test", "validation")
        splits = hash_split(splits["train"], apart, by_class=not listing.sets)
        counts = ", ".join(f"{len(entries):,} {split}" for split, entries in splits.items())
        log.info("the images have no splits of their own; split by a hash of their names: %s", counts)
    if held_out or fold:
        if "validation" in splits:
            log.info("its own validation images are left aside for the held-out ones")
        train = splits["train"]
        labels = [0 if listing.sets else label for _, label in train]  # sets are too many to have each its share
        if fold:
            order = sorted(range(len(train)), key=lambda i: (labels[i], _digest(train[i][0].name)))
            rest, chosen = take_fold(order, *fold)
        else:
            rest, chosen = draw_stratified(labels, held_out)
        splits |= {"train": [train[i] for i in rest.tolist()], "validation": [train[i] for i in chosen.tolist()]}
    return Division(splits, "source" if listing.is_split else "hash")


def draw_held_out(n: int, count: int) -> tuple[Int[Tensor, " kept"], Int[Tensor, " chosen"]]:
    """Places in 0…n−1: those that stay, and `count` that a permutation of fixed seed chooses, both in their order."""
    if not 0 < count < n:
        raise ValueError(f"held_out is {count}; expected fewer than the {n} training images, and one or more")
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(HELD_OUT_SEED))[:count]
    stays = torch.ones(n, dtype=torch.bool)
    stays[chosen] = False
    return stays.nonzero().flatten(), chosen.sort().values


def draw_stratified(labels: Sequence[int], count: int) -> tuple[Int[Tensor, " kept"], Int[Tensor, " chosen"]]:
    """As `draw_held_out`, of each class its share of `count`.

    >>> draw_stratified([0] * 6 + [1] * 3, 3)[1].tolist()       # two of six and one of three
    [1, 4, 7]
    """
    n = len(labels)
    if not 0 < count < n:
        return draw_held_out(n, count)  # which says what is wrong
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(HELD_OUT_SEED)).tolist()
    order = sorted(range(n), key=lambda i: (labels[drawn[i]], i))  # class by class, shuffled in each
    places = {(2 * i + 1) * n // (2 * count) for i in range(count)}  # evenly spread over all of them
    return _part([drawn[i] for i in order], places)


def take_fold(order: Sequence[int], fold: int, folds: int) -> tuple[Int[Tensor, " kept"], Int[Tensor, " chosen"]]:
    """The others and the fold-th of so many parts, each of whose images stand evenly spread over an order by class.

    >>> [take_fold([3, 1, 0, 2, 4], fold, 2)[1].tolist() for fold in (1, 2)]
    [[0, 3, 4], [1, 2]]
    """
    if not 2 <= folds <= len(order):
        raise ValueError(f"folds is {folds}; expected two or more, and no more than the {len(order):,} training images")
    if not 1 <= fold <= folds:
        raise ValueError(f"fold is {fold}; expected 1…{folds}")
    return _part(order, set(range(fold - 1, len(order), folds)))


def order_by_class(labels: Int[Tensor, " n"]) -> list[int]:
    """The places of labels class by class, in each by a permutation of fixed seed."""
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(HELD_OUT_SEED))
    return drawn[labels[drawn].argsort(stable=True)].tolist()


def _part(order: Sequence[int], places: AbstractSet[int]) -> tuple[Int[Tensor, " kept"], Int[Tensor, " chosen"]]:
    """What stands at the other places and at these ones of an order, both sorted."""
    rest, chosen = ([i for place, i in enumerate(order) if (place in places) == wanted] for wanted in (False, True))
    return torch.tensor(sorted(rest)), torch.tensor(sorted(chosen))


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def hash_split(entries: Entries, apart: tuple[str, ...], *, by_class: bool = True) -> dict[str, Entries]:
    """A tenth of each class for each name in `apart`, the rest to train: by name alone, the same on every machine.

    Classes of fewer than five images stay in training. by_class: a tenth of each, else of all together.
    """
    groups: dict[int, Entries] = defaultdict(list)
    for entry in entries:
        groups[entry[1] if by_class else 0].append(entry)
    where: dict[str, str] = {}
    for members in groups.values():
        names = sorted((item.name for item, _ in members), key=_digest)
        tenth = (len(names) + 5) // 10
        for i, split in enumerate(apart):
            where |= dict.fromkeys(names[i * tenth : (i + 1) * tenth], split)
    splits: dict[str, Entries] = {"train": [], **{split: [] for split in apart}}
    for entry in entries:
        splits[where.get(entry[0].name, "train")].append(entry)
    return {split: chosen for split, chosen in splits.items() if chosen}


def _divide_again(listing: Listing, kept: HeldOut) -> dict[str, Entries] | None:
    """The images as a run divided them; None if fewer than half of what it held out are here: these are others."""
    where = {name: (split, size) for split, names in kept.items() for name, size in names.items()}
    splits: dict[str, Entries] = {"train": [], **{split: [] for split in kept}}
    for own, entries in listing.splits.items():
        for entry in entries:
            split, size = where.get(entry[0].name, ("", 0))
            if split and _n_bytes(entry[0]) == size:
                splits[split].append(entry)
            elif own == "train" or own not in kept:  # its own validation images were left aside
                splits.setdefault(own, []).append(entry)
    again = sum(len(splits[split]) for split in kept)
    if 2 * again < len(where) or not where:
        return None
    if again < len(where):
        log.warning(
            "%d of the %d images that the run held out are gone or were changed", len(where) - again, len(where)
        )
    return {split: entries for split, entries in splits.items() if entries}


def _n_bytes(item: Item) -> int:
    """The size of an image's file; −1 of one that can't be read."""
    try:
        return item.n_bytes()
    except (OSError, ValueError):
        return -1
