"""Captions in files of their own, with the image's name: in WebDataset shards, and in folders."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pellucid.config import parse_json
from pellucid.data.caption_files import Annotation, Annotations, as_text, lines_of
from pellucid.data.caption_json import object_captions
from pellucid.data.caption_pictures import files_below
from pellucid.data.listings import SPLIT_NAMES, some
from pellucid.data.opener import SUFFIXES
from pellucid.data.shards import MAX_LABEL, Member, members, sample_key

UNPAIRED = "expected images with a .txt or a .json ({'caption': …}) of the same name"


def read_shards(shards: list[Path]) -> Annotations:
    """WebDataset tars: an image and the .txt (a caption a line) or .json (with "caption") of the same name.

    Split by how the names of the tars begin, as val-03.tar.
    """
    splits = [SPLIT_NAMES.get(re.split("[^a-z]", shard.name.lower())[0]) for shard in shards]
    is_split = "train" in splits
    records = [
        record
        for shard, split in zip(shards, splits, strict=True)
        for record in _shard(shard, (split or "train") if is_split else None)
    ]
    if not any(record.captions for record in records):
        raise ValueError(f"{some(tuple(map(str, shards)))} holds no captioned images; {UNPAIRED}")
    return Annotations(f"WebDataset, {len(shards)} shards", records)


def _shard(shard: Path, split: str | None) -> Iterator[Annotation]:
    samples: dict[str, dict[str, Member]] = defaultdict(dict)
    for name, member in members(shard):
        key, suffix = sample_key(name)
        samples[key].setdefault("image" if f".{suffix}" in SUFFIXES else suffix, member)
    for sample in samples.values():
        if "image" in sample:
            yield Annotation(split, sample["image"].name, sample["image"], _member_captions(sample))


def _member_captions(sample: dict[str, Member]) -> list[object]:
    text = sample.get("txt") or sample.get("json")
    if text is None or text.length > MAX_LABEL:
        return [] if text is None else [None]
    content = as_text(text.content())
    if "txt" in sample:
        return list(lines_of(content))
    try:
        return object_captions(parse_json(content, text.name, allow_nan=True))
    except ValueError:
        return [None]


def has_captions(shard: Path) -> bool:
    """Whether the first image of a tar has a caption and no label."""
    try:
        first: dict[str, Any] = {}
        for name, member in members(shard):
            key, suffix = sample_key(name)
            if first.setdefault("key", key) != key:
                break
            first["image" if f".{suffix}" in SUFFIXES else suffix] = member
    except ValueError:
        return False
    return "image" in first and "cls" not in first and any(isinstance(c, str) for c in _member_captions(first))


def has_texts(folder: Path) -> bool:
    """Whether at least half of the images in the first folder that has some have a .txt beside them."""
    for _, folders, names in os.walk(folder):
        folders.sort()
        images = [name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
        if images:
            there = set(names)
            return 2 * sum(f"{os.path.splitext(name)[0]}.txt" in there for name in images) >= len(images)
    return False


def folder_records(folder: Path) -> Iterator[Annotation]:
    """A folder of images, each with a .txt of the same name: a caption a line."""
    files = dict(files_below(folder))
    is_split = any(len(parts) > 1 and SPLIT_NAMES.get(parts[0].lower()) == "train" for parts in files)
    for parts, path in files.items():
        if path.name.lower().endswith(SUFFIXES):
            text = files.get((*parts[:-1], f"{path.stem}.txt"))
            split = SPLIT_NAMES.get(parts[0].lower(), "train") if is_split else None
            yield Annotation(split, "/".join(parts), path, _file_captions(text) if text else [])


def _file_captions(path: Path) -> list[object]:
    if path.stat().st_size > MAX_LABEL:
        return [None]
    return list(lines_of(as_text(path.read_bytes())))
