"""What every format of captions comes down to: clean sentences, an image for each name, and what was left out."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pellucid.data.caption_pictures import PictureFile, quote, shorten
from pellucid.data.lazy import TOLERATED
from pellucid.data.listings import some
from pellucid.data.sentences import one_line, reason
from pellucid.data.shards import Member

MAX_TEXT = 2 << 30  # bytes of a file of captions
# What terminals and tokenizers would act on: C0 and C1 without blanks, and the marks that turn the direction of text.
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
BROKEN_TEXT = re.compile("[\ufffd\ud800-\udfff]")  # where bytes were no UTF-8, and halves of characters

EXPECTED = (
    "expected Karpathy's dataset_*.json, COCO's captions_*.json, a list of {image, caption}, lines of "
    "image#0<tab>caption, a table with the columns file_name and caption, metadata.jsonl, WebDataset shards, or images "
    "with a .txt beside each"
)

MISSING = "images that are not there"
BARE = "images without a caption"
EMPTY = "empty captions"
MOST_LETTERS = 1 << 16  # of a caption
LONG = f"captions of more than {MOST_LETTERS:,} letters"
NO_TEXT = "captions that are no readable text"
CONTROLS = "captions with control characters"
TWICE = "images in two splits"
UNSPLIT = "images in none of the split lists"
JUDGES = ("test", "validation", "train", None)
HARMLESS = (UNSPLIT,)  # official sets have them


class Annotation(NamedTuple):
    """What a file says of one image, or of one caption of it; nothing of it is checked yet."""

    split: str | None
    id: str
    image: str | Path | Member
    captions: Iterable[object]
    hint: str = ""  # the folder it should lie in, where several have an image of its name


class Annotations(NamedTuple):
    """A format, what it says, and the folder in which the images that it names are looked for."""

    format: str
    records: Iterable[Annotation]
    folder: Path | None = None  # None: the records hold their images


class CaptionedImage(NamedTuple):
    """An image and its captions."""

    picture: PictureFile
    captions: tuple[str, ...]


@dataclass(frozen=True)
class CaptionListing:
    """The captioned images of a source by split, before any of them is decoded."""

    format: str
    splits: dict[str, list[CaptionedImage]]
    is_split: bool = True  # False: all are listed under "train" because nothing says otherwise

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))


@dataclass
class Problems:
    """What is wrong with a source: each kind of problem with how often it is met and where first."""

    strict: bool = False
    tolerated: float = TOLERATED
    by_kind: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, where: str) -> None:
        if self.strict and kind not in HARMLESS:
            raise ValueError(f"there are {kind}, the first: {quote(where)}; mend it, or load without strict")
        self.by_kind[kind].append(where)

    def check(self, kind: str, total: int, source: str) -> None:
        """Raises if more than the tolerated share of `total` is of this kind."""
        count = len(self.by_kind.get(kind, ()))
        if count > self.tolerated * total:
            share, first = f"more than {self.tolerated:.0%}", quote(self.by_kind[kind][0])
            raise ValueError(one_line(f"{source} has {count:,} {kind}, {share} of {total:,}; the first: {first}"))

    def lines(self) -> list[str]:
        """A sentence for each kind."""
        kinds = self.by_kind.items()
        return [one_line(f"{len(where):,} {kind}: {some(tuple(map(shorten, where)))}") for kind, where in kinds]


def clean(caption: str) -> str:
    """Control characters become blanks, and blanks one blank.

    >>> clean(" A dog\\x07 \\n runs. ")
    'A dog runs.'
    """
    return " ".join(CONTROL.sub(" ", caption).split())


def read_text(path: Path) -> str:
    """The text of a file, UTF-8 unless it begins as UTF-16 does; what is neither becomes U+FFFD, to be found later."""
    try:
        size = path.stat().st_size
        if size > MAX_TEXT:
            raise ValueError(f"it has {size:,} bytes, more than the limit of {MAX_TEXT:,}")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(one_line(f"{path} can't be read: {reason(error)}")) from error
    text = as_text(content)
    if not text.strip():
        raise ValueError(one_line(f"{path} is empty; expected captions"))
    return text


def lines_of(text: str) -> list[str]:
    """The lines that hold something. `splitlines` would split at some control characters too."""
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def as_text(content: bytes) -> str:
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def assemble(
    records: Iterable[Annotation],
    pictures: Callable[[Annotation], Path | Member | None],
    problems: Problems,
    source: str,
) -> tuple[dict[str, list[CaptionedImage]], bool]:
    """(The entries by split, whether the records name splits): captions cleaned, those of one image brought together.

    An image that two splits hold stays in the one that judges: in test, else in validation.
    """
    merged: dict[str, tuple[Annotation, list[str]]] = {}
    twice: set[str] = set()
    total = 0
    for record in records:
        captions = list(record.captions)
        total += len(captions)
        first, sentences = merged.setdefault(record.id, (record, []))
        if first.split != record.split:
            if record.id not in twice:
                problems.add(TWICE, record.id)
                twice.add(record.id)
            if JUDGES.index(record.split) > JUDGES.index(first.split):
                continue
            sentences = []
            merged[record.id] = record, sentences
        sentences += _sentences(captions, record.id, problems)
    splits: dict[str, list[CaptionedImage]] = {}
    for name, (record, sentences) in merged.items():
        entries = splits.setdefault(record.split or "train", [])
        file = None if BROKEN_TEXT.search(name) else pictures(record)
        if file is None:
            problems.add(MISSING, record.image if isinstance(record.image, str) else name)
        elif not sentences:
            problems.add(BARE, name)
        else:
            entries.append(CaptionedImage(PictureFile(name, file), tuple(sentences)))
    problems.check(MISSING, len(merged), source)
    problems.check(NO_TEXT, total, source)
    return splits, any(record.split for record, _ in merged.values())


def _sentences(captions: list[object], name: str, problems: Problems) -> list[str]:
    sentences = []
    for caption in captions:
        if not isinstance(caption, str) or BROKEN_TEXT.search(caption):
            problems.add(NO_TEXT, f"{name}: {caption}" if isinstance(caption, str) else name)
        elif not (cleaned := clean(caption)):
            problems.add(EMPTY, name)
        elif len(cleaned) > MOST_LETTERS:
            problems.add(LONG, name)
        else:
            if CONTROL.search(caption):
                problems.add(CONTROLS, f"{name}: {cleaned}")
            sentences.append(cleaned)
    return sentences
