"""Which images of a listing train, choose and test: as the source says, by a hash of names, or as a run had them.

A run keeps the names of the images that it held out, with their sizes in bytes. So it knows its data again whatever its
path is called, and never takes for held out what it was trained on.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping
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


def divide(listing: Listing, held_out: int = 0, kept: HeldOut | None = None) -> Division:
    """The images by split.

    Where the source says nothing, 10 % of each class are for test and 10 % for validation, by a hash of their names.
    held_out: that many are taken out of training for validation instead. kept: what a run held out; if these are
    its images, they are divided as they were.
    """
    if listing.empty:
        raise ValueError(f"no images in {some(listing.empty)}; put some there, or remove the folder")
    if kept and (splits := _divide_again(listing, kept)):
        return Division(splits, "run")
    splits = dict(listing.splits)
    if not listing.is_split:
        splits = hash_split(splits["train"], ("test",) if held_out else ("test", "validation"))
        counts = ", ".join(f"{len(entries):,} {split}" for split, entries in splits.items())
        log.info("the images have no splits of their own; split by a hash of their names: %s", counts)
    if held_out:
        if "validation" in splits:
            log.info("its own validation images are left aside for the held-out ones")
        train = splits["train"]
        rest, chosen = draw_held_out(len(train), held_out)
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


def hash_split(entries: Entries, apart: tuple[str, ...]) -> dict[str, Entries]:
    """A tenth of each class for each name in `apart`, the rest to train: by name alone, the same on every machine.

    Classes of fewer than five images stay in training.
    """
    by_class: dict[int, Entries] = defaultdict(list)
    for entry in entries:
        by_class[entry[1]].append(entry)
    where: dict[str, str] = {}
    for members in by_class.values():
        names = sorted((item.name for item, _ in members), key=lambda name: hashlib.sha256(name.encode()).digest())
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
