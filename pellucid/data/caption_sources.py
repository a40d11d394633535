"""Where captioned images come from: drawn scenes, or a path in any of the usual formats."""

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pellucid.data import listings
from pellucid.data.caption_files import CaptionedImage, CaptionListing, Problems
from pellucid.data.caption_formats import list_captions
from pellucid.data.captions import CLASSES, CaptionSet, CaptionSplits
from pellucid.data.division import hash_split
from pellucid.data.images import View, check_size
from pellucid.data.lazy import TOLERATED, LazyImageSet, Unreadable, into_memory
from pellucid.data.scenes import SceneConfig, make_scenes

log = logging.getLogger("pellucid")

SCENES = "scenes"
CHANNELS = 3


@dataclass(frozen=True)
class CaptionData:
    """Which captioned images, and how they are brought in.

    >>> CaptionData("scenes").size
    (64, 64)
    """

    name: str = SCENES
    """scenes, or a path: a JSON, a text file, a folder or shards; the format is found out."""
    images: str | None = None
    """Where the images lie, a folder or a tar, if not beside the captions."""
    size: tuple[int, int] = (64, 64)
    """Height and width that images are brought to, whole."""
    scenes: SceneConfig = field(default_factory=SceneConfig)
    """What is drawn, if the name is scenes."""
    strict: bool = False
    """Make the first problem an error, instead of leaving some images or captions out."""
    tolerated: float = TOLERATED
    """The share of images, and of captions, that may be unusable; they are named and left out."""


class LazyPictures(LazyImageSet):
    """Captioned images that stay in their files until they are read.

    One that can't be decoded is replaced by a white one: another image would not be what its captions speak of.
    """

    def replace(self, index: int, view: View | None, error: ValueError) -> Tensor:
        self._note(index, error)
        return torch.full(self.shape, 255, dtype=torch.uint8)


def load_captions(config: CaptionData, trains: bool = True) -> CaptionSplits:
    """The captioned images that a config asks for. trains: there have to be some to train on.

    >>> splits = load_captions(CaptionData("scenes", size=(32, 32), scenes=SceneConfig(train=8, validation=2, test=2)))
    >>> len(splits.train), splits.train.images.shape, len(splits.test.captions)
    (8, (3, 32, 32), 2)
    """
    if config.name == SCENES:
        check_size(config.size)
        return make_scenes(config.scenes, config.size)
    problems, unreadable = Problems(config.strict, config.tolerated), Unreadable(config.strict, config.tolerated)
    _, parts = find_captions(config, problems, unreadable, trains)
    for line in problems.lines():
        log.warning("%s: %s", config.name, line)
    unreadable.check(sum(map(len, parts.values())) + len(unreadable.reasons))
    train = parts["train"] if "train" in parts else next(iter(parts.values())).subset(torch.arange(0))
    return CaptionSplits(train, parts.get("validation"), parts.get("test"))


def find_captions(
    config: CaptionData, problems: Problems, unreadable: Unreadable, trains: bool = True
) -> tuple[CaptionListing, dict[str, CaptionSet]]:
    """What lies at a path, as it is listed and as it is read; what is wrong with it is told to the last two."""
    check_size(config.size)
    listing = list_captions(config.name, config.images, problems, trains)
    splits = listing.splits if listing.is_split else _hash_split(listing.splits["train"])
    height, width = config.size
    fits = len(listing) * CHANNELS * height * width <= listings.IN_MEMORY
    parts = {}
    for split, entries in splits.items():
        parts[split] = _gather(entries, config, unreadable, fits)
        if not len(parts[split]):
            first = next(iter(unreadable.reasons.values()))
            raise ValueError(f"{config.name}: none of the images for {split} can be read; the first: {first}")
    return listing, parts


def _hash_split(entries: list[CaptionedImage]) -> dict[str, list[CaptionedImage]]:
    by_name = {entry.picture.name: entry for entry in entries}
    items: listings.Entries = [(entry.picture, 0) for entry in entries]
    chosen = hash_split(items, ("test", "validation"))
    counts = ", ".join(f"{len(each):,} {split}" for split, each in chosen.items())
    log.info("the captions have no splits of their own; split by a hash of the images' names: %s", counts)
    return {split: [by_name[item.name] for item, _ in each] for split, each in chosen.items()}


def _gather(entries: list[CaptionedImage], config: CaptionData, unreadable: Unreadable, fits: bool) -> CaptionSet:
    pictures = [entry.picture for entry in entries]
    if fits:
        images = into_memory(pictures, [0] * len(pictures), CLASSES, config.size, CHANNELS, unreadable)
        entries = [entry for entry in entries if entry.picture.name not in unreadable.reasons]
    else:
        labels = torch.zeros(len(pictures), dtype=torch.int64)
        strict, tolerated = unreadable.strict, unreadable.tolerated
        images = LazyPictures(pictures, labels, CLASSES, config.size, CHANNELS, strict=strict, tolerated=tolerated)
    return CaptionSet(
        images, tuple(entry.captions for entry in entries), tuple(entry.picture.name for entry in entries)
    )
