"""What parallel text holds, and what is wrong with it."""

import csv
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from pellucid.config import parse_json
from pellucid.data.parallel import TABLES, ParallelData, TextPairs, list_splits, load_pairs, read_lines

ODD_RATIO, ODD_WORDS = 3.0, 5  # one side has so many times the words of the other, and so many more
NAMED = 3  # of each problem
OTHER = 1.0  # in the other side's language: three letters of it are so much likelier there, on average, in nats
FEW_LETTERS = 10  # too few to tell a language by
FILE_NAME = re.compile(r"\.\w{2,4}(#\d+)?$")
USUAL = 0.99  # share of a language's letters that are of its usual scripts


@dataclass(frozen=True)
class TextInspection:
    """Counts by split, and by problem the first places where it stands and how often that is."""

    name: str
    direction: tuple[str, str]
    pairs: dict[str, int]
    words: dict[str, tuple[float, float]]
    problems: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.direction[0]} and {self.direction[1]}", ""]
        for split, count in self.pairs.items():
            first, second = self.words[split]
            lines.append(f"  {split}: {count:,} pairs, {first:.1f} and {second:.1f} words each")
        for problem, (count, places) in self.problems.items():
            more = f" and {count - len(places):,} more" if count > len(places) else ""
            lines += ["", f"{problem}: {count:,}", *(f"  {place}" for place in places)]
            lines[-1] += more
        return "\n".join(lines if self.problems else [*lines, "", "no problems found"])


def holds_text(name: str) -> bool:
    """Whether a name means parallel text: two files, a table of pairs, or a folder with splits in two languages."""
    first, comma, second = name.partition(",")
    if comma:
        return Path(first).expanduser().is_file() and Path(second).expanduser().is_file()
    path = Path(name).expanduser()
    if not path.is_dir():
        return path.is_file() and is_table(path) and has_pairs(path)
    tables = [file for file in path.iterdir() if is_table(file)]
    return bool(list_splits(path, find_languages(path))) and all(has_pairs(table) for table in tables)


def is_table(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(TABLES)


def has_pairs(table: Path) -> bool:
    """Whether its first row names languages, or holds two sentences: what stands beside a caption is a file's name."""
    row = _first_row(table)
    cells = list(row.values())
    wordy = len(cells) == 2 and all(len(cell.split()) > 1 and not FILE_NAME.search(cell) for cell in cells)
    return len(_languages(row)) > 1 or wordy


def _first_row(table: Path) -> dict[str, str]:
    """By the names of its columns, which are numbers where a first row may be a header; nothing if it can't be read."""
    try:
        line = next((line for line in read_lines(table) if line.strip()), "")
        if ".jsonl" in table.suffixes:
            row = parse_json(line, "the line", allow_nan=True)
            row = row.get("translation", row) if isinstance(row, dict) else row
            return {str(k): v for k, v in row.items() if isinstance(v, str)} if isinstance(row, dict) else {}
        cells = next(csv.reader([line]), []) if ".csv" in table.suffixes else line.split("\t")
    except (ValueError, csv.Error):
        return {}
    return {str(number): cell for number, cell in enumerate(cells)}


def _languages(row: dict[str, str]) -> list[str]:
    """The languages that a first row names: its keys, or what stands in a header."""
    names = [cell if key.isdigit() else key for key, cell in row.items()]
    return [name for name in names if len(name) == 2 and name.isalpha() and name != "id"]


def find_languages(source: Path) -> tuple[str, str]:
    """Two languages that a table names, or that a folder's files end in, English first, then those with most files."""
    files = [source] if source.is_file() else sorted(file for file in source.iterdir() if file.is_file())
    ends = Counter(end for file in files for end in _ends(file) if len(end) in (2, 3) and end.isalpha())
    order = sorted(ends, key=lambda end: (end != "en", -ends[end]))
    return (order[0], order[1]) if len(order) > 1 else ("en", "de")


def _ends(file: Path) -> list[str]:
    return _languages(_first_row(file)) if is_table(file) else [file.name.removesuffix(".gz").rpartition(".")[2]]


def inspect_text(config: ParallelData) -> TextInspection:
    """Everything that can be told without training; sides that can't be put together are told, too."""
    direction = (config.source, config.target)
    folder = Path(config.name).expanduser()
    splits = list_splits(folder, direction) if folder.is_dir() else ["all"]
    pairs_of: dict[str, TextPairs] = {}
    broken: list[str] = []
    for split in splits:
        try:
            pairs_of[split] = load_pairs(config, split)
        except ValueError as error:
            broken.append(str(error))
    problems = {"not put together": broken, **dict(_problems(pairs_of))}
    return TextInspection(
        config.name,
        direction,
        {split: len(pairs) for split, pairs in pairs_of.items()},
        {split: (_mean_words(pairs.sources), _mean_words(pairs.targets)) for split, pairs in pairs_of.items()},
        {name: (len(places), places[:NAMED]) for name, places in problems.items() if places},
    )


def _problems(pairs_of: dict[str, TextPairs]) -> Iterable[tuple[str, list[str]]]:
    every: list[tuple[str, int, str, str]] = [
        (split, i, *pair)
        for split, p in pairs_of.items()
        for i, pair in enumerate(zip(p.sources, p.targets, strict=True), 1)
    ]
    place = lambda split, i, text="": f"{split} line {i:,}" + (f": {text[:60]}" if text else "")  # noqa: E731
    yield "an empty side", [place(s, i) for s, i, a, b in every if not (a.strip() and b.strip())]
    yield "the same on both sides", [place(s, i, a) for s, i, a, b in every if a == b and len(a.split()) > 1]
    odd = []
    for s, i, a, b in every:
        few, many = sorted((len(a.split()), len(b.split())))
        if few and many > ODD_RATIO * few and many - few >= ODD_WORDS:
            odd.append(place(s, i, f"{len(a.split())} and {len(b.split())} words"))
    yield "odd lengths", odd
    sides = {"source": [(s, i, a) for s, i, a, _ in every], "target": [(s, i, b) for s, i, _, b in every]}
    for name, texts in sides.items():
        usual = _usual_scripts(text for _, _, text in texts)
        strange = [place(s, i, text) for s, i, text in texts if _scripts(text) - usual]
        yield f"letters of another script in the {name}", strange
    for name, foreign in zip(sides, _find_foreign([(a, b) for _, _, a, b in every]), strict=True):
        yield (
            f"the {name} reads like the other language",
            [place(*sides[name][i]) for i in foreign if every[i][2] != every[i][3]],
        )
    first = "train" if "train" in pairs_of else next(iter(pairs_of), "")
    known = set(pairs_of[first].sources) if pairs_of else set()
    yield (
        f"sources of {first} in another split",
        [place(s, i, a) for s, i, a, _ in every if s != first and a in known and a],
    )
    counts = Counter((s, a, b) for s, _, a, b in every)
    yield "pairs that are there twice", [f"{s}: {a[:60]}" for (s, a, _), times in counts.items() if times > 1 and a]


def _find_foreign(pairs: list[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Which sentences of each side have letters that follow each other as on the other side.

    Three letters at a time are counted on both sides, but for what the sentence itself adds to its own.
    """
    counts: list[Counter[str]] = [Counter(), Counter()]
    for pair in pairs:
        for count, text in zip(counts, pair, strict=True):
            count.update(_threes(text))
    totals = [max(1, count.total()) for count in counts]
    foreign: tuple[list[int], list[int]] = ([], [])
    for place, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            threes, its, other = _threes(text), counts[side], counts[1 - side]
            if len(threes) < FEW_LETTERS:
                continue
            own = Counter(threes)
            gained = sum(math.log((other[three] + 0.5) / (its[three] - own[three] + 0.5)) for three in threes)
            if gained / len(threes) - math.log(totals[1 - side] / totals[side]) > OTHER:
                foreign[side].append(place)
    return foreign


def _threes(text: str) -> list[str]:
    text = f" {text.lower()} "
    return [text[i : i + 3] for i in range(len(text) - 2)]


def _usual_scripts(texts: Iterable[str]) -> set[str]:
    """The scripts of all but a few letters."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(text)
    counts: Counter[str] = Counter()
    for letter, times in letters.items():
        if letter.isalpha():
            counts[_script(letter)] += times
    usual: set[str] = set()
    for script, _ in counts.most_common():
        if sum(counts[each] for each in usual) >= USUAL * counts.total():
            break
        usual.add(script)
    return usual


def _scripts(text: str) -> set[str]:
    return {_script(letter) for letter in set(text) if letter.isalpha()}


@cache
def _script(letter: str) -> str:
    """The first word of its name: LATIN, CYRILLIC, CJK …"""
    return unicodedata.name(letter, "?").partition(" ")[0]


def _mean_words(sentences: list[str]) -> float:
    return sum(len(sentence.split()) for sentence in sentences) / max(1, len(sentences))


def in_languages(config: ParallelData) -> ParallelData:
    """The config with the languages that a folder or a table has."""
    path = Path(config.name).expanduser()
    if not (path.is_dir() or (path.is_file() and is_table(path))):
        return config
    source, target = find_languages(path)
    return replace(config, source=source, target=target)
