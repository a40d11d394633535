"""Images inside other files, with random access: WebDataset shards by offset, Hugging Face tables by row."""

import glob
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.config import parse_json
from pellucid.data.aspect import Goal
from pellucid.data.images import ImageHeader, View, decode, probe
from pellucid.data.listings import SPLIT_NAMES, Entries, Listing, some
from pellucid.data.opener import MAX_BYTES, SUFFIXES
from pellucid.data.parquets import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    Encoded,
    choose_column,
    find_parquets,
    list_parquets,
)
from pellucid.data.sentences import one_line, reason
from pellucid.data.tars import BROKEN, FILES, PlainStream, read_entries
from pellucid.extras import require

MAX_LABEL = 1 << 20  # bytes of a .cls or .json member


@dataclass(frozen=True, slots=True)
class Member:
    """An image at an offset of an uncompressed tar."""

    name: str
    shard: Path
    offset: int
    length: int

    def content(self) -> bytes:
        try:
            if self.length > MAX_BYTES:
                raise ValueError(f"it has {self.length:,} bytes, more than the limit of {MAX_BYTES:,}")
            with self.shard.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.length)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.name} can't be read: {reason(error)}") from error

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return decode(self.content(), size, channels, name=self.name, view=view)

    def probe(self) -> ImageHeader:
        return probe(self.content(), name=self.name)

    def n_bytes(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class TableRow:
    """An image in a row of a Hugging Face table."""

    name: str
    table: Any
    column: str
    index: int

    def detached(self) -> Encoded:
        """What another process is sent, which has no table."""
        try:
            cell = self.table[self.index][self.column]
            return Encoded(self.name, cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]))
        except Exception as error:
            raise ValueError(one_line(f"{self.name} can't be read: {reason(error)}")) from error

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return self.detached().decode(size, channels, view)

    def probe(self) -> ImageHeader:
        return self.detached().probe()

    def n_bytes(self) -> int:
        return self.detached().n_bytes()


@dataclass
class _Sample:
    image: Member | None = None
    label: Member | None = None


def list_shards(pattern: str) -> Listing:
    """WebDataset tars: a folder, a path with `{000..009}` or with `*`; split by how their names begin, as val-03.tar.

    An image is paired with the .cls (a number) or .json (with "label") of the same name.
    """
    shards = find_shards(pattern)
    samples_by_split: dict[str, list[tuple[Member, int | str]]] = {}
    own_splits = [SPLIT_NAMES.get(re.split("[^a-z]", shard.name.lower())[0]) for shard in shards]
    for shard, split in zip(shards, own_splits, strict=True):
        samples_by_split.setdefault(split or "train", []).extend(_index(shard))
    if not samples_by_split.get("train"):
        raise ValueError(f"{pattern!r} holds no images to train with; found {some(tuple(samples_by_split))}")
    labels = {label for samples in samples_by_split.values() for _, label in samples}
    if all(isinstance(label, int) for label in labels):
        names = tuple(range(max(labels) + 1))  # type: ignore[type-var, operator]
    elif all(isinstance(label, str) for label in labels):
        names = tuple(sorted(labels))  # type: ignore[type-var]
    else:
        raise ValueError(f"the labels of {pattern!r} are numbers and words; expected one kind")
    number = {name: i for i, name in enumerate(names)}
    splits: dict[str, Entries] = {
        split: [(member, number[label]) for member, label in samples] for split, samples in samples_by_split.items()
    }
    return Listing(f"WebDataset, {len(shards)} shards", splits, tuple(map(str, names)), is_split=any(own_splits))


def find_shards(pattern: str) -> list[Path]:
    """The tars that a folder holds or a pattern means.

    >>> [str(path) for path in braces("a-{08..10}.tar")]
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    if re.match(r"(\w+://|pipe:)", pattern):
        raise ValueError(f"wds: reads shards on this machine; fetch {pattern!r} and give their paths")
    paths: list[Path] = []
    for each in braces(str(Path(pattern).expanduser())):
        if Path(each).is_dir():
            paths += sorted(Path(each).glob("*.tar"))
        elif any(character in each for character in "*?["):
            paths += map(Path, sorted(glob.glob(each)))
        else:
            paths.append(Path(each))
    missing = [str(path) for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(f"the shards {some(tuple(missing) or (pattern,))} are not there; give a folder of .tar files")
    return paths


def braces(pattern: str) -> list[str]:
    """`{000..009}` and `{a,b}` written out.

    >>> braces("{train,val}-{0..1}.tar")
    ['train-0.tar', 'train-1.tar', 'val-0.tar', 'val-1.tar']
    """
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match.group(1)):
        first, last = numbers.groups()
        if not 0 <= int(last) - int(first) < 1_000_000:
            raise ValueError(f"{match.group()} in {pattern!r} counts down or too far; expected as in {{000..009}}")
        choices = [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
    else:
        choices = match.group(1).split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [expanded for choice in choices for expanded in braces(before + choice + after)]


def members(shard: Path) -> Iterator[tuple[str, Member]]:
    """The name and the place of each file in a plain tar, in its order, from the headers alone."""
    try:
        with shard.open("rb") as file:
            for entry in read_entries(PlainStream(file)):
                if entry.kind in FILES:
                    yield entry.name, Member(f"{shard.name}/{entry.name}", shard, entry.offset, entry.size)
    except BROKEN as error:
        plain = "; shards are plain tars, not compressed" if isinstance(error, tarfile.TarError) else ""
        raise ValueError(one_line(f"{shard} can't be read: {reason(error)}{plain}")) from error


def sample_key(name: str) -> tuple[str, str]:
    """The sample that a member belongs to and what it is of it, as WebDataset does: a name ends at its first dot.

    >>> sample_key("a.b/000.seg.png")
    ('a.b/000', 'seg.png')
    """
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return folder + slash + key, suffix.lower()


def _index(shard: Path) -> Iterator[tuple[Member, int | str]]:
    """Each image of a shard and its label, in the shard's order."""
    samples: dict[str, _Sample] = {}
    for name, member in members(shard):
        key, suffix = sample_key(name)
        sample = samples.setdefault(key, _Sample())
        if f".{suffix}" in SUFFIXES and sample.image is None:
            sample.image = member
        elif suffix == "cls" or (suffix == "json" and sample.label is None):
            sample.label = member
    for key, sample in samples.items():
        if sample.image is not None:
            if sample.label is None:
                raise ValueError(f"{shard}: {key!r} has an image and no label; expected a .cls or .json beside it")
            yield sample.image, _label(sample.label)


def _label(member: Member) -> int | str:
    if member.length > MAX_LABEL:
        raise ValueError(f"{member.name} is {member.length:,} bytes; a label has up to {MAX_LABEL:,}")
    content = member.content()
    try:
        value = parse_json(content, member.name, allow_nan=True)
        if member.name.lower().endswith(".json"):
            value = value["label"]
    except (ValueError, KeyError, TypeError):
        value = None
    if type(value) is int and 0 <= value < 1_000_000:
        return value
    if isinstance(value, str) and value:
        return value
    raise ValueError(f"{member.name} holds no label; expected a number, or JSON with a number or a word as 'label'")


def list_table(name: str) -> Listing:
    """A Hugging Face dataset by its name on the hub, or by the path of one on this machine.

    A folder of Parquet files is read by PyArrow alone, others by Hugging Face's library.
    """
    path = Path(name).expanduser()
    if path.is_dir() and (files := find_parquets(path)) and (listing := list_parquets(name, files)):
        return listing
    datasets = require("datasets", "hf:")
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            loaded = datasets.load_from_disk(str(path))
        else:
            loaded = datasets.load_dataset(str(path) if path.exists() else name)
    except Exception as error:
        raise ValueError(one_line(f"hf:{name} can't be loaded: {reason(error)}")) from error
    tables: dict[str, Any] = {"train": loaded} if isinstance(loaded, datasets.Dataset) else dict(loaded)
    by_split = {SPLIT_NAMES[split.lower()]: table for split, table in tables.items() if split.lower() in SPLIT_NAMES}
    if "train" not in by_split:
        raise ValueError(f"hf:{name} has the splits {some(tuple(tables))}; expected one called train")
    features = by_split["train"].features
    images, labels = (
        [column for column, feature in features.items() if isinstance(feature, kind)]
        for kind in (datasets.Image, datasets.ClassLabel)
    )
    image = choose_column(name, tuple(features), images, IMAGE_COLUMNS, "Image")
    label = choose_column(name, tuple(features), labels, LABEL_COLUMNS, "ClassLabel")
    splits: dict[str, Entries] = {}
    for split, table in by_split.items():
        table = table.cast_column(image, datasets.Image(decode=False))
        numbers = table[label]
        splits[split] = [(TableRow(f"{split}/{i}", table, image, i), int(value)) for i, value in enumerate(numbers)]
    return Listing("Hugging Face dataset", splits, tuple(features[label].names), is_split=len(splits) > 1)
