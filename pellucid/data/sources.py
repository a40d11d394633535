"""Where images come from: one name, one function, three splits."""

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Suppress

from pellucid.data import formats, named
from pellucid.data.decoding import usual_processes
from pellucid.data.division import ALL, HeldOut, divide, draw_held_out, order_by_class, take_fold
from pellucid.data.formats import SplitArrays
from pellucid.data.images import ImageSet, Size, check_size
from pellucid.data.label_tables import list_labels
from pellucid.data.lazy import TOLERATED, ImageInMemory, LazyImageSet, Unreadable, into_memory
from pellucid.data.listings import IN_MEMORY, How, Images, Listing, gather, list_folder
from pellucid.data.own import as_image_set
from pellucid.data.shards import list_shards, list_table

log = logging.getLogger("pellucid")

STATISTICS_OF = 2000  # images, of a set that is not in memory
ZoomInto = Literal["image", "original"]
SET_NAMES = ("digits", *named.KNOWN)
PREFIXES = {"folder": "PATH", "csv": "TABLE", "wds": "SHARDS", "hf": "NAME"}


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are brought in.

    >>> DataConfig("folder:pictures", size=(64, 64)).name
    'folder:pictures'
    """

    name: str = "digits"
    """digits, cifar10, cifar100, mnist, fashion_mnist, folder:PATH, csv:TABLE, wds:SHARDS or hf:NAME."""
    path: str | None = None
    """Where the files of a named set lie, searched for unless given; or the pictures that a table speaks of, beside it
    unless given."""
    several: bool = False
    """A label of a table may name several classes, as in "cat|sofa"; each is then predicted for itself."""
    size: tuple[int, int] | None = None
    """Height and width that images are brought to; unless given, their own if they share one, else 224 224."""
    keep_aspect: bool = False
    """Images keep the ratio of their sides: each is as many patches as one of `size`, in a grid of its own."""
    patch: Annotated[tuple[int, int] | None, Suppress] = None
    """With keep_aspect, the height and width of which sides are multiples: a run says its model's."""
    held_out: int = 0
    """Images taken out of training for validation: the same ones whatever the seed."""
    folds: int = 0
    """Cross-validation: in how many parts, alike in their classes, the training images fall; 0 for none."""
    fold: int = 1
    """Which of the parts validates, 1…folds; the others train."""
    strict: bool = False
    """Make the first unreadable image an error, instead of leaving some out."""
    tolerated: float = TOLERATED
    """The share of images that may be unreadable; they are named and left out."""
    zoom_into: ZoomInto = "image"
    """What augment.zoom cuts its parts out of: the image as it was brought to its size, or the picture in its file, at
    full detail, which is then decoded for each step."""
    cache: str | None = None
    """A folder in which the images are kept decoded; made when they are first read."""
    cache_side: int | None = None
    """How long their shorter side is in the cache, if they are to be kept whole; unless given, they are kept as they
    are brought to their size."""
    workers: int | None = None
    """Processes that decode what is read while training, 0 for threads; unless given, threads on up to four cores, else
    a process for each core but one."""


@dataclass(frozen=True, eq=False)
class Splits:
    """The images to train, to choose, and to test with. held_out: what a run keeps to know them again.

    >>> splits = load_images(DataConfig("digits"))
    >>> len(splits.train), len(splits.test), splits.train.classes[:3]
    (1437, 360, ('0', '1', '2'))
    """

    train: Images
    validation: Images | None = None
    test: Images | None = None
    held_out: HeldOut = field(default_factory=dict)


def load_images(config: DataConfig, kept: HeldOut | None = None, check: Callable[[Size], None] | None = None) -> Splits:
    """The images that a config asks for. kept: what the run held out that goes on with them.

    check: is told the images' size before they are decoded.

    >>> splits = load_images(DataConfig("digits", held_out=100))
    >>> splits.train.shape, len(splits.train), len(splits.validation), len(splits.test)
    ((1, 8, 8), 1337, 100, 360)
    """
    listing = list_images(config)
    if listing is None:
        parts, held_out = find_arrays(config)[1], {}
    else:
        division = divide(listing, config.held_out, kept, fold_of(config))
        unreadable = Unreadable(config.strict, config.tolerated)
        parts = gather(listing, division.splits, config.size, unreadable, how_to_read(config), check)
        held_out = division.held_out(counted=config.held_out > 0 or config.folds > 0)
    return Splits(parts["train"], parts.get("validation"), parts.get("test"), held_out)


def load_split(config: DataConfig, split: str, kept: HeldOut | None = None) -> Images:
    """The images of one split, or of "all", and nothing else is decoded. kept: what the run held out that is asked.

    >>> len(load_split(DataConfig("digits"), "test")), len(load_split(DataConfig("digits"), "all"))
    (360, 1797)
    """
    listing = list_images(config)
    if listing is None:
        parts = find_arrays(config)[1]
        chosen = list(parts.values()) if split == ALL else [parts[split]] if split in parts else []
        _check_there(config, split, chosen, parts)
        return chosen[0] if len(chosen) == 1 else join_sets(chosen)
    division = divide(listing, config.held_out, kept, fold_of(config))
    entries = division.entries(split)
    _check_there(config, split, entries, division.splits)
    if division.origin == "hash" and split != ALL:
        log.warning(
            "%s has no splits of its own: these %d of its %d images are those that a hash of their names chose for %s; "
            "the split 'all' is all of them",
            config.name, len(entries), len(listing), split,
        )  # fmt: skip
    if division.origin == "run" and split == ALL:
        trained_on = len(division.entries("train"))
        log.warning("the run was trained on %d of these %d images of %s", trained_on, len(entries), config.name)
    unreadable = Unreadable(config.strict, config.tolerated)
    return gather(listing, {split: entries}, config.size, unreadable, how_to_read(config))[split]


def how_to_read(config: DataConfig) -> How:
    """How a config wants pictures brought into batches."""
    workers = usual_processes() if config.workers is None else config.workers
    cache = None if config.cache is None else Path(config.cache).expanduser()
    return How(config.zoom_into == "original", cache, config.cache_side, workers, patch_of(config))


def patch_of(config: DataConfig) -> Size | None:
    """Of what the sides are multiples of images that keep their ratio; None if they don't."""
    if config.keep_aspect and config.patch is None:
        raise ValueError("images keep the ratio of their sides in whole patches; say how large those are (patch)")
    return config.patch if config.keep_aspect else None


def split_own(data: Any, config: DataConfig) -> Splits:
    """A data set of one's own as splits: already in splits, by their names, or one set that some are held out of."""
    if isinstance(data, Splits):
        return data
    if isinstance(data, Mapping):
        unknown = sorted(set(data) - {"train", "validation", "test"})
        if unknown or "train" not in data:
            raise ValueError(f"data has {', '.join(map(str, data)) or 'nothing'}; expected train, validation and test")
        sets = {name: as_image_set(images, size=config.size, patch=patch_of(config)) for name, images in data.items()}
        return Splits(sets["train"], sets.get("validation"), sets.get("test"))
    images = as_image_set(data, size=config.size, patch=patch_of(config))
    return Splits(*hold_out(images, config)) if config.held_out or config.folds else Splits(images)


def hold_out(images: Images, config: DataConfig) -> tuple[Images, Images]:
    """(those to train, those to validate): a fold, or as many as a permutation of fixed seed chooses."""
    fold, count = fold_of(config), config.held_out
    rest, chosen = take_fold(order_by_class(images.labels), *fold) if fold else draw_held_out(len(images), count)
    return images.subset(rest), images.subset(chosen)


def fold_of(config: DataConfig) -> tuple[int, int] | None:
    """(which, of how many), if there is cross-validation."""
    if config.folds and config.held_out:
        raise ValueError(f"held_out is {config.held_out} and folds {config.folds}; give one of the two")
    if config.fold != 1 and not config.folds:
        raise ValueError(f"fold is {config.fold}; say of how many (folds)")
    return (config.fold, config.folds) if config.folds else None


def find_arrays(config: DataConfig) -> tuple[str, dict[str, Images]]:
    """What format was found of a set that comes as arrays, and its images by split."""
    if config.keep_aspect:
        raise ValueError(f"the images of {config.name} all have one shape; leave out keep_aspect")
    if config.name == "digits":
        form, parts = "digits of scikit-learn", named.digits()
        classes = named.TEN
    else:
        known = named.KNOWN[config.name]
        classes = known.classes
        if config.path is None:
            form, parts = named.find_named(config.name)
        else:
            form, parts = named.read_path(config.name, Path(config.path).expanduser())
            if differs := named.difference(known, parts):
                log.warning("%s is not the official %s: %s", config.path, config.name, differs)
    sets = make_sets(parts, classes, config.size)
    if config.held_out or config.folds:
        sets["train"], sets["validation"] = hold_out(sets["train"], config)
    return form, sets


def list_images(config: DataConfig) -> Listing | None:
    """The listing of a source made of image files; None for sets that come as arrays."""
    check_size(config.size)
    fold_of(config)
    if config.held_out < 0:
        raise ValueError(f"held_out is {config.held_out}; expected zero or more")
    if not 0 <= config.tolerated <= 1:
        raise ValueError(f"tolerated is {config.tolerated}; expected a share of the images, 0…1")
    if config.zoom_into not in get_args(ZoomInto):
        raise ValueError(f"zoom_into is {config.zoom_into!r}; expected 'image' or 'original'")
    for name in ("cache_side", "workers"):
        value, least = getattr(config, name), 1 if name == "cache_side" else 0
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; expected {'one' if least else 'zero'} or more")
    if config.cache_side is not None and config.cache is None:
        raise ValueError("cache_side is for images that are kept decoded; say where (cache)")
    kind, colon, where = config.name.partition(":")
    if colon and kind in PREFIXES and where:
        if config.several and kind != "csv":
            raise ValueError(f"several is for tables of labels (csv:TABLE); {config.name!r} is none")
        if kind == "csv":
            folder = None if config.path is None else Path(config.path).expanduser()
            return list_labels(Path(where).expanduser(), folder, several=config.several)
        if config.path is not None:
            raise ValueError(f"path is for named sets; {config.name!r} says where its images lie, so leave path out")
        if kind == "folder":
            return list_folder(Path(where).expanduser())
        return list_shards(where) if kind == "wds" else list_table(where)
    if config.name not in SET_NAMES:
        near = difflib.get_close_matches(config.name, SET_NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        expected = ", ".join([*SET_NAMES, *(f"{prefix}:{what}" for prefix, what in PREFIXES.items())])
        raise ValueError(f"no data is called {config.name!r}; expected one of {expected}{hint}")
    if config.path is None:
        return None
    if config.name == "digits":
        raise ValueError("digits come with pellucid; leave path out")
    path = Path(config.path).expanduser()
    is_set = not path.is_dir() or formats.locate(config.name, path) or named.archives_in(path)
    return None if is_set or not any(each.is_dir() for each in path.iterdir()) else list_folder(path)


def make_sets(parts: SplitArrays, classes: tuple[str, ...], size: Size | None) -> dict[str, Images]:
    """Arrays by split as sets, brought to `size`; above 2 GiB each image is scaled when it is read."""
    sets: dict[str, Images] = {}
    for split, (pixels, numbers) in parts.items():
        images, labels = torch.from_numpy(np.array(pixels)), torch.from_numpy(numbers.astype(np.int64))
        channels, *own = images.shape[1:]
        if size is None or size == tuple(own):
            sets[split] = ImageSet(images, labels, classes)
            continue
        items = [ImageInMemory(f"{split}/{i}", image) for i, image in enumerate(images)]
        if len(items) * channels * size[0] * size[1] <= IN_MEMORY:
            sets[split] = into_memory(items, labels.tolist(), classes, size, channels, Unreadable(strict=True))
        else:
            sets[split] = LazyImageSet(items, labels, classes, size, channels)
    return sets


def join_sets(sets: Sequence[Images]) -> Images:
    """Several sets of the same classes and shape as one, in their order."""
    if all(isinstance(each, ImageSet) for each in sets):
        images = torch.cat([each.images for each in sets if isinstance(each, ImageSet)])
        names = tuple(each.name_of(i) for each in sets for i in range(len(each)))
        return ImageSet(images, torch.cat([each.labels for each in sets]), sets[0].classes, names, sets[0].area)
    items = [item for each in sets if isinstance(each, LazyImageSet) for item in each.items]
    area, (channels, *size) = sets[0].area, sets[0].shape
    goal, channels = ((size[0], size[1]), channels) if area is None else (area, channels - 1)
    return LazyImageSet(items, torch.cat([each.labels for each in sets]), sets[0].classes, goal, channels)


def _check_there(config: DataConfig, split: str, images: Sized, splits: Mapping[str, Sized]) -> None:
    if not len(images):
        there = ", ".join(name for name in ("train", "validation", "test") if len(splits.get(name, ())))
        raise ValueError(f"{config.name} has no {split} images; it has {there}")


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of values 0…1; summed in whole numbers, so they are exact.

    Of images that are not in memory, 2,000 are read: evenly spread, because files are often sorted by class.

    >>> black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> statistics(ImageSet(black_and_white, torch.tensor([0, 0]), ("one",)))
    ((0.5,), (0.5,))
    """
    if not len(images):
        raise ValueError("there are no images to take the mean of; expected one or more")
    n = len(images)
    if isinstance(images, ImageSet) or n <= STATISTICS_OF:
        chosen = torch.arange(n)
    else:
        chosen = torch.arange(STATISTICS_OF) * n // STATISTICS_OF
    total = Moments(images.shape[0] - (images.area is not None))
    for block in chosen.split(500):
        total.add(images.read(block))
    return total.mean_and_std()


class Moments:
    """How often each channel takes each of its 256 levels: mean and deviation follow, exactly."""

    def __init__(self, channels: int) -> None:
        self.histograms = torch.zeros(channels, 256, dtype=torch.int64)

    def add(self, images: Tensor) -> None:
        """Count the pixels of images (b c y x); of those on canvases, which have a channel more, their own."""
        channels = images.movedim(1, 0)
        if len(channels) > len(self.histograms):
            channels = channels[:-1, channels[-1] > 0]
        for histogram, channel in zip(self.histograms, channels, strict=True):
            histogram += torch.from_numpy(np.bincount(channel.flatten().numpy(), minlength=256))  # twice torch's speed

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        level = torch.arange(256)
        n = int(self.histograms[0].sum())
        sums, squares = (self.histograms @ level).tolist(), (self.histograms @ level.square()).tolist()
        # n·Σx² − (Σx)² is not rounded: Python's whole numbers have no end.
        stds = (((n * square - total**2) / n**2) ** 0.5 / 255 for total, square in zip(sums, squares, strict=True))
        return tuple(total / n / 255 for total in sums), tuple(stds)
