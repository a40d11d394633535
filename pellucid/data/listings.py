"""From image files to a listing, and from a listing to sets: which size, in memory or not."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.data.aspect import Area, Goal, shape_in_batch
from pellucid.data.cache import keep_decoded
from pellucid.data.decoding import Item
from pellucid.data.images import ImageSet, Size
from pellucid.data.lazy import ImageFile, LazyImageSet, Unreadable, into_memory
from pellucid.data.opener import SUFFIXES

Images = ImageSet | LazyImageSet
Entries = list[tuple[Item, int]]  # an image and its label

IN_MEMORY = 2 << 30  # bytes of pixels up to which a set is decoded once
USUAL_SIZE = (224, 224)  # for images of different sizes, where none is asked for
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "validation"
)


@dataclass(frozen=True)
class How:
    """How pictures get from their files into a batch."""

    again: bool = False  # decoded whenever they are read, even if they would fit into memory
    cache: Path | None = None  # where they are kept decoded
    cache_side: int | None = None  # how long their shorter side is there, if they are kept whole
    processes: int = 0  # that decode; 0 for threads
    patch: Size | None = None  # of which sides are multiples, where pictures keep the ratio of theirs


USUAL = How()


@dataclass(frozen=True)
class Listing:
    """The images of a source by split, before any of them is decoded."""

    format: str
    splits: dict[str, Entries]
    classes: tuple[str, ...]
    empty: tuple[str, ...] = ()  # classes without an image
    is_split: bool = True  # False: all are listed under "train" because nothing says otherwise
    sets: tuple[tuple[int, ...], ...] = ()  # of classes that are true together: then a label is the number of one

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def numbers(self, labels: Sequence[int]) -> Tensor:
        """Labels as a set has them: the number of a class (n), or whether each class is true (n classes)."""
        if not self.sets:
            return torch.tensor(labels, dtype=torch.int64)
        table = torch.zeros(len(self.sets), len(self.classes), dtype=torch.bool)
        for row, which in zip(table, self.sets, strict=True):
            row[list(which)] = True
        return table[torch.tensor(labels, dtype=torch.int64)]


def list_folder(root: Path) -> Listing:
    """An image folder: ROOT/class/image, or ROOT/train/class/image with val and test beside it."""
    if not root.is_dir():
        raise ValueError(f"the folder {str(root)!r} doesn't exist; expected a folder with one folder for each class")
    split_folders = _split_folders(root)
    classes = tuple(each.name for each in _folders(split_folders["train"]))
    if all(name.isdecimal() for name in classes):
        classes = tuple(sorted(classes, key=int))  # so that the class "10" is number 10 and not number 2
    if not classes:
        raise ValueError(f"{str(split_folders['train'])!r} holds no folders; expected one folder for each class")
    splits: dict[str, Entries] = {}
    empty: list[str] = []
    for split, folder in sorted(split_folders.items(), key=lambda pair: pair[0] != "train"):
        splits[split] = []
        for each in _folders(folder):
            if each.name not in classes:
                raise ValueError(f"{str(each)!r} is no class of the training images; expected {some(classes)}")
            files = _images_below(each)
            label = classes.index(each.name)
            splits[split] += [(ImageFile(path.relative_to(root).as_posix(), path), label) for path in files]
            if not files:
                empty.append(str(each))
    return Listing("image folder", splits, classes, tuple(empty), is_split=split_folders != {"train": root})


def gather(
    listing: Listing,
    splits: Mapping[str, Entries],
    size: Size | None,
    unreadable: Unreadable,
    how: How = USUAL,
    check: Callable[[Size], None] | None = None,
) -> dict[str, Images]:
    """Sets of these images of a listing, by split. Their size and channels are those of the whole listing.

    check: is told the size before anything is decoded.
    """
    box, channels = shape_of((item for entries in listing.splits.values() for item, _ in entries), size)
    if check is not None:
        check(box)
    goal: Goal = box if how.patch is None else Area(box, how.patch)
    total = sum(map(len, splits.values()))
    parts: dict[str, Images] = {}
    for split, entries in splits.items():
        items, labels = [item for item, _ in entries], [label for _, label in entries]
        if how.cache is not None:
            items = keep_decoded(items, how.cache, goal, channels, how.cache_side, how.processes)
        if total * math.prod(shape_in_batch(goal, channels)) <= IN_MEMORY and not how.again:
            names = tuple(map(str, range(len(listing.sets)))) or listing.classes
            read = into_memory(items, labels, names, goal, channels, unreadable)
            numbers = listing.numbers(read.labels.tolist())
            parts[split] = ImageSet(read.images, numbers, listing.classes, read.names, read.area)
        else:
            strict, tolerated = unreadable.strict, unreadable.tolerated
            parts[split] = LazyImageSet(
                items, listing.numbers(labels), listing.classes, goal, channels,
                strict=strict, tolerated=tolerated, processes=how.processes,
            )  # fmt: skip
    for split, part in parts.items():
        if splits[split] and not len(part) and unreadable.tolerated < 1:
            first = next(why for item, _ in splits[split] if (why := unreadable.reasons.get(item.name)))
            raise ValueError(f"none of the {len(splits[split])} {split} images can be read; the first: {first}")
    unreadable.check(len(listing))  # of all, so that what was trained on can be evaluated, split by split
    return parts


def shape_of(items: Iterable[Item], size: Size | None) -> tuple[Size, int]:
    """The size that all images share, else the usual one; one channel if all are grey, else three.

    Reads headers only as far as the answer is open: of photographs, two.
    """
    seen: set[Size] = set()
    grey = True
    for item in items:
        try:
            header = item.probe()
        except ValueError:
            continue  # told when it is decoded
        seen.add((header.height, header.width))
        grey = grey and header.grey
        if not grey and (size is not None or len(seen) > 1):
            break
    if size is None:
        size = next(iter(seen)) if len(seen) == 1 else USUAL_SIZE
    return size, 1 if grey and seen else 3


def some(names: tuple[str, ...], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split; the root alone if it holds classes, one of which may well be called train."""
    folders: dict[str, Path] = {}
    for each in _folders(root):
        split = SPLIT_NAMES.get(each.name.lower())
        if split in folders:
            raise ValueError(f"{str(folders[split])!r} and {str(each)!r} are both {split} images; keep one of them")
        if split is not None:
            folders[split] = each
    return folders if "train" in folders and _folders(folders["train"]) else {"train": root}


def _folders(root: Path) -> list[Path]:
    return sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith((".", "__MACOSX")))


def _images_below(folder: Path) -> list[Path]:
    files = []
    for parent, folders, names in os.walk(folder):  # links to folders are not followed: they may lead back
        folders[:] = [each for each in folders if not each.startswith(".")]
        files += [Path(parent, name) for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return sorted(files)
