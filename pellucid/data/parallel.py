"""Sentences in two languages: a folder with a file for each split and language, a table, or two files side by side."""

import csv
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pellucid.config import parse_json
from pellucid.data.sentences import reason

MOST_BYTES = 1 << 30  # of a file, unpacked
MOST_RATIO, MIN_BYTES = 20, 1 << 23  # text shrinks by 5; what unpacks to less than 8 MB may shrink by more
LINE, MIN_LINES = 8, 1 << 19  # bytes of a line on disk, on average, where there are many
MOST_LETTERS = 1 << 14  # of a line
TABLES = (".tsv", ".csv", ".jsonl")
PACKED = ".gz"
VALIDATION = ("val", "valid", "validation", "dev")  # what a folder may call them


@dataclass(frozen=True)
class ParallelData:
    """Which sentences, and from which language into which."""

    name: str = "multi30k"
    """A folder with files SPLIT.LANGUAGE or SPLIT.tsv (as Multi30k's), a table, or two files with a comma between;
    each plain or .gz."""
    source: str = "en"
    """The language that is read."""
    target: str = "de"
    """The language that is said."""
    also: tuple[str, ...] = ()
    """Other directions that are trained beside, as "en-fr", where the folder has them."""
    held_out: int = 0
    """How many pairs are kept for validation, where one file holds them all."""

    def __post_init__(self) -> None:
        for language in (self.source, self.target):
            if not language.isalnum():
                raise ValueError(f"a language is {language!r}; expected letters, as 'en'")
        for direction in self.also:
            if len(parts := direction.split("-")) != 2 or not all(part.isalnum() for part in parts):
                raise ValueError(f"also has {direction!r}; expected a direction such as 'en-fr'")
        if self.held_out < 0:
            raise ValueError(f"held_out is {self.held_out}; expected zero or more")

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The one that counts, then those that are trained beside it."""
        others = [(source, target) for source, target in (each.split("-") for each in self.also)]
        return [(self.source, self.target), *(each for each in others if each != (self.source, self.target))]


@dataclass(frozen=True)
class TextPairs:
    """Sentences, and what they are in another language; which languages those are."""

    sources: list[str]
    targets: list[str]
    direction: tuple[str, str]

    def __len__(self) -> int:
        return len(self.sources)

    def subset(self, places: list[int]) -> "TextPairs":
        return replace(self, sources=[self.sources[i] for i in places], targets=[self.targets[i] for i in places])


def load_training(config: ParallelData) -> list[TextPairs]:
    """The pairs to train on, in each direction; those without a word on either side are left out."""
    directions = [load_pairs(config, "train", direction) for direction in config.directions]
    return [pairs.subset([i for i in range(len(pairs)) if _is_whole(pairs, i)]) for pairs in directions]


def load_validation(config: ParallelData) -> TextPairs | None:
    """The pairs to choose by, if there are any."""
    try:
        return load_pairs(config, "validation")
    except NoSplit:
        return None


class NoSplit(ValueError):
    """A split that isn't there."""


def load_pairs(config: ParallelData, split: str, direction: tuple[str, str] | None = None) -> TextPairs:
    """The pairs of one split: "train", "validation", "all" of a file, or as the folder calls it."""
    direction = direction or (config.source, config.target)
    folder = Path(config.name).expanduser()
    if folder.is_dir():
        return TextPairs(*_from_folder(folder, split, direction), direction)
    first, comma, second = config.name.partition(",")
    if comma:
        sides = _aligned(Path(first).expanduser(), Path(second).expanduser())
    elif folder.is_file() and _stem(folder).suffix in TABLES:
        sides = _from_table(folder, direction)
    else:
        raise ValueError(
            f"{config.name} is no parallel text; expected a folder, a table ({', '.join(TABLES)}), or two files with a "
            "comma between"
        )
    pairs = TextPairs(*sides, direction)
    if split == "all":
        return pairs
    held_out = _held_out(pairs, config.held_out)
    if split not in ("train", "validation") or (split == "validation" and not held_out):
        raise NoSplit(f"{config.name} has no {split} sentences; it has train, all" + (", validation" * bool(held_out)))
    return pairs.subset([i for i in range(len(pairs)) if (i in held_out) == (split == "validation")])


def list_splits(folder: Path, direction: tuple[str, str]) -> list[str]:
    """The splits that a folder has in both languages."""
    names = {path.name.removesuffix(PACKED) for path in folder.iterdir() if path.is_file()}
    both = {name.rpartition(".")[0] for name in names if name.endswith("." + direction[0])}
    both &= {name.rpartition(".")[0] for name in names if name.endswith("." + direction[1])}
    return sorted(both | {Path(name).stem for name in names if name.endswith(TABLES)})


def _from_folder(folder: Path, split: str, direction: tuple[str, str]) -> tuple[list[str], list[str]]:
    there = list_splits(folder, direction)
    names = VALIDATION if split in VALIDATION else (split,)
    name = next((name for name in names if name in there), None)
    if name is None:
        known = ", ".join(there) or "none"
        raise NoSplit(f"{folder} has no {split} sentences in {' and '.join(direction)}; the splits there are: {known}")
    tables = [path for suffix in TABLES if (path := _packed_or_not(folder / f"{name}{suffix}")) is not None]
    if tables:
        return _from_table(tables[0], direction)
    first, second = (_packed_or_not(folder / f"{name}.{language}") for language in direction)
    assert first is not None, "it was listed"
    assert second is not None, "it was listed"
    return _aligned(first, second)


def _aligned(first: Path, second: Path) -> tuple[list[str], list[str]]:
    sources, targets = ([line.strip() for line in read_lines(path)] for path in (first, second))
    if len(sources) != len(targets):
        raise ValueError(
            f"{first} has {len(sources):,} lines and {second} {len(targets):,}; a sentence and its translation stand "
            "in the same line"
        )
    return sources, targets


def _from_table(path: Path, direction: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Columns are found by the languages' names; a table without them has the source first."""
    suffix, lines = _stem(path).suffix, read_lines(path)
    rows = _objects(lines, path, direction) if suffix == ".jsonl" else _columns(lines, path, suffix, direction)
    pairs = list(rows)
    return [source.strip() for source, _ in pairs], [target.strip() for _, target in pairs]


def _columns(lines: Iterator[str], path: Path, suffix: str, direction: tuple[str, str]) -> Iterator[tuple[str, str]]:
    csv.field_size_limit(MOST_LETTERS)
    reader = csv.reader(lines) if suffix == ".csv" else (line.split("\t") for line in lines)
    places = (0, 1)
    try:
        for number, row in enumerate(reader, 1):
            if number == 1 and set(direction) <= set(row):
                places = (row.index(direction[0]), row.index(direction[1]))
                continue
            if len(row) <= max(places):
                raise ValueError(
                    f"{path} line {number} has {len(row)} columns; expected a sentence and its translation"
                )
            yield row[places[0]], row[places[1]]
    except csv.Error as error:
        raise ValueError(f"{path} is no table ({error})") from None


def _objects(lines: Iterator[str], path: Path, direction: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, "the line", allow_nan=True)
        except ValueError:
            row = None
        row = row.get("translation", row) if isinstance(row, dict) else row
        if not isinstance(row, dict) or not all(isinstance(row.get(language), str) for language in direction):
            raise ValueError(f'{path} line {number}: expected an object with "{direction[0]}" and "{direction[1]}"')
        yield row[direction[0]], row[direction[1]]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or .gz, in UTF-8."""
    read = number = 0
    try:
        size = path.stat().st_size if path.is_file() else MOST_BYTES  # a pipe has no size
        most, most_lines = min(MOST_BYTES, max(MIN_BYTES, MOST_RATIO * size)), max(MIN_LINES, size // LINE)
        with gzip.open(path, "rb") if path.suffix == PACKED else path.open("rb") as file:
            while line := file.readline(4 * MOST_LETTERS):
                number, read = number + 1, read + len(line)
                if read > most:
                    raise ValueError(f"it holds more than {most:,} bytes")
                if number > most_lines:
                    raise ValueError(f"it holds more than {most_lines:,} lines, in {size:,} bytes")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if len(text) > MOST_LETTERS or not (line.endswith(b"\n") or len(line) < 4 * MOST_LETTERS):
                    raise ValueError(f"line {number:,} has more than {MOST_LETTERS:,} letters")
                yield text
    except UnicodeDecodeError:
        raise ValueError(f"{path} can't be read: line {number:,} is not UTF-8") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} can't be read: {reason(error)}") from None


def _held_out(pairs: TextPairs, count: int) -> set[int]:
    """Which pairs are for validation: chosen by what they say, so that the same sentence is never on both sides."""
    if not count:
        return set()
    if count >= len(pairs):
        raise ValueError(f"held_out is {count}, and there are {len(pairs)} pairs; expected fewer")
    sentences = pairs.sources
    order = sorted(range(len(sentences)), key=lambda i: hashlib.sha256(sentences[i].encode()).digest())
    last = sentences[order[count - 1]]
    return {i for place, i in enumerate(order) if place < count or sentences[i] == last}


def _is_whole(pairs: TextPairs, place: int) -> bool:
    return bool(pairs.sources[place].strip() and pairs.targets[place].strip())


def _stem(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == PACKED else path


def _packed_or_not(path: Path) -> Path | None:
    packed = path.with_name(path.name + PACKED)
    return path if path.is_file() else packed if packed.is_file() else None
