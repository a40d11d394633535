"""What a source holds, before anything is trained on it."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from pellucid.data import formats, named
from pellucid.data.decoding import Item
from pellucid.data.division import divide
from pellucid.data.images import ImageHeader
from pellucid.data.lazy import LazyImageSet, Unreadable
from pellucid.data.listings import Images, gather, some
from pellucid.data.sources import DataConfig, Moments, find_arrays, list_images

IMAGES_AT_ONCE = 256
MOST_CLASSES = 20  # told one by one


@dataclass(frozen=True)
class Inspection:
    """What was found. `counts`: images of each class, by split; `mean` and `std`: of the training images, 0…1.

    >>> inspection = inspect_images(DataConfig("digits"))
    >>> inspection.shape, sum(inspection.counts["train"]), inspection.problems
    ((1, 8, 8), 1437, ())
    """

    source: str
    format: str
    counts: dict[str, tuple[int, ...]]
    classes: tuple[str, ...]
    sizes: dict[tuple[int, int], int]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    problems: tuple[str, ...]
    images: dict[str, int]

    def lines(self) -> list[str]:
        """The report as text, a fact a line."""
        channels, height, width = self.shape
        lines = [f"{self.source}: {self.format}, {len(self.classes)} classes"]
        lines += [f"{split}: {self.images[split]:,} images" for split in self.counts]
        shape = f"{height}×{width}, {channels} channel{'s' * (channels > 1)}"
        lines += [f"sizes: {describe_sizes(self.sizes)}; brought to {shape}"]
        lines += [f"mean {format_numbers(self.mean)}, std {format_numbers(self.std)} (training images, 0…1)"]
        for i, name in enumerate(self.classes[:MOST_CLASSES]):
            lines.append(f"  {name}: " + ", ".join(f"{counts[i]:,} {split}" for split, counts in self.counts.items()))
        if len(self.classes) > MOST_CLASSES:
            lines.append(f"  and {len(self.classes) - MOST_CLASSES} more classes")
        return lines + [f"problem: {problem}" for problem in self.problems] + ["no problems"] * (not self.problems)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def inspect_images(source: DataConfig | str | Path) -> Inspection:
    """Read everything a source holds and tell what is there, and what is wrong with it.

    A path is taken for what it holds: the files of a named set, WebDataset shards, or an image folder.

    >>> print("\\n".join(inspect_images(DataConfig("digits")).lines()[:4]))
    digits: digits of scikit-learn, 10 classes
    train: 1,437 images
    test: 360 images
    sizes: 8×8; brought to 8×8, 1 channel
    """
    config = source if isinstance(source, DataConfig) else recognise(Path(source))
    unreadable = Unreadable(tolerated=1.0)  # here they are what is looked for
    problems: list[str] = []
    listing = list_images(config)
    if listing is None:
        form, parts = find_arrays(config)
        sizes = {images.shape[1:]: sum(map(len, parts.values())) for images in parts.values()}
    else:
        problems += [f"the class {folder} is empty" for folder in listing.empty]
        form, sizes = listing.format, count_sizes([item for entries in listing.splits.values() for item, _ in entries])
        parts = gather(listing, divide(replace(listing, empty=()), config.held_out).splits, config.size, unreadable)
    if not len(parts["train"]):
        raise ValueError(
            f"{config.name}: no training image can be read; the first: {next(iter(unreadable.reasons.values()))}"
        )
    hashes, moments = {}, Moments(parts["train"].shape[0])
    for split, images in parts.items():
        hashes[split] = read_through(images, moments if split == "train" else None)
        if isinstance(images, LazyImageSet):
            unreadable.reasons |= images.unreadable.reasons
    problems += list(unreadable.reasons.values())
    total = sum(map(len, parts.values())) + (len(unreadable.reasons) if listing is not None else 0)
    if len(unreadable.reasons) > config.tolerated * total:
        share = f"{len(unreadable.reasons)} of {total} images can't be read, more than {100 * config.tolerated:g}%"
        problems.append(f"{share}: training and evaluating refuse that unless tolerated is set higher")
    problems += describe_duplicates(hashes)
    mean, std = moments.mean_and_std()
    train = parts["train"]
    counts = {split: tuple(count_classes(images.labels, len(train.classes))) for split, images in parts.items()}
    totals = {split: len(images) for split, images in parts.items()}
    return Inspection(config.name, form, counts, train.classes, sizes, train.shape, mean, std, tuple(problems), totals)


def count_classes(labels: Tensor, classes: int) -> list[int]:
    """Of how many images each class is true."""
    return (labels.sum(0) if labels.ndim == 2 else torch.bincount(labels, minlength=classes)).tolist()


def recognise(path: Path) -> DataConfig:
    """The config that reads what lies at a path."""
    if not path.exists():
        raise ValueError(f"{str(path)!r} doesn't exist; give a folder of images, of shards or of a known set")
    if path.is_file():
        if path.suffix == ".tar":
            return DataConfig(f"wds:{path}")
        plain = path.name.lower().replace("-", "").replace("_", "")
        candidates = [name for name in named.KNOWN if name.replace("_", "") in plain]
        if not candidates:
            raise ValueError(f"{str(path)!r} is not known; give a folder, a .tar shard or an archive of a known set")
        return DataConfig(max(candidates, key=len), path=str(path))
    for name in named.KNOWN:
        if formats.locate(name, path):
            fashion = name == "mnist" and "fashion" in str(path).lower()
            return DataConfig("fashion_mnist" if fashion else name, path=str(path))
    return DataConfig(f"wds:{path}" if any(path.glob("*.tar")) else f"folder:{path}")


def read_through(images: Images, moments: Moments | None) -> list[bytes]:
    """A hash of each image's pixels; the pixels are added to the moments on the way."""
    hashes = []
    for block in torch.arange(len(images)).split(IMAGES_AT_ONCE):
        pixels = images.read(block)
        if moments is not None:
            moments.add(pixels)
        hashes += [hashlib.sha256(image.data).digest() for image in pixels.numpy()]
    return hashes


def describe_duplicates(hashes: dict[str, list[bytes]]) -> list[str]:
    sentences = []
    for first, second in combinations((split for split in ("train", "validation", "test") if split in hashes), 2):
        seen = set(hashes[first])
        twice = sum(each in seen for each in hashes[second])
        sentences += [f"{twice:,} of the {second} images are also in {first}"] * (twice > 0)
    return sentences


def count_sizes(items: list[Item]) -> dict[tuple[int, int], int]:
    def size(item: Item) -> tuple[int, int] | None:
        try:
            header: ImageHeader = item.probe()
        except ValueError:
            return None
        return header.height, header.width

    return dict(Counter(shape for shape in map(size, items) if shape is not None))


def describe_sizes(sizes: dict[tuple[int, int], int]) -> str:
    if len(sizes) <= 3:
        return some(tuple(f"{y}×{x}" for y, x in sizes)).replace("'", "") or "none"
    smallest, largest = min(sizes, key=lambda size: size[0] * size[1]), max(sizes, key=lambda size: size[0] * size[1])
    return f"{len(sizes):,} different, from {smallest[0]}×{smallest[1]} to {largest[0]}×{largest[1]}"


def format_numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
