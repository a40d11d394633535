"""Captions in lines: Flickr's image#0 and caption, tables of image,caption, and metadata.jsonl."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from pellucid.config import parse_json
from pellucid.data.caption_files import EXPECTED, TWICE, UNSPLIT, Annotation, Annotations, Problems, lines_of, read_text
from pellucid.data.caption_json import object_captions
from pellucid.data.caption_pictures import quote
from pellucid.data.images import SUFFIXES, one_line

TOKEN_LINE = re.compile(r"([^\t]+)#\d+\t(.*)", re.DOTALL)
# How the names of Flickr8k's split lists end; Flickr_8k.trainImages.txt is one.
LISTS = {"train": "trainImages.txt", "validation": "devImages.txt", "test": "testImages.txt"}
IMAGE_HEADINGS = ("image", "image_name", "file_name", "filename")
CAPTION_HEADINGS = ("caption", "comment", "text")


def jsonl_records(files: dict[str | None, Path], problems: Problems) -> Iterator[Annotation]:
    """Lines of {"file_name": …, "text" or "caption" or "captions": …}; images lie beside them."""
    for split, file in files.items():
        kind, lines = f"lines of {file} that are no {{file_name, text}}", lines_of(read_text(file))
        below = "" if split is None else f"{file.parent.name}/"
        for line in lines:
            try:
                entry = parse_json(line, "the line", allow_nan=True)
            except ValueError:
                entry = None
            if isinstance(entry, dict) and isinstance(name := entry.get("file_name"), str):
                image = name if name.startswith(("/", "\\")) else below + name
                yield Annotation(split, below + name, image, object_captions(entry))
            else:
                problems.add(kind, line)
        problems.check(kind, len(lines), str(file))


def read_lined(path: Path, problems: Problems) -> Annotations:
    """A text file: which kind of lines it holds, and what they say."""
    text = read_text(path)
    lines = lines_of(text)
    if TOKEN_LINE.fullmatch(lines[0]):
        return Annotations("lines of image#0 and caption", _tokens(path, lines, problems), path.parent)
    rows = _rows(path, text)
    header = [field.strip().lower() for field in rows[0]]
    image = next((header.index(each) for each in IMAGE_HEADINGS if each in header), None)
    caption = next((header.index(each) for each in CAPTION_HEADINGS if each in header), None)
    if image is not None and caption is not None:
        return Annotations("lines of image,caption", _table(path, rows[1:], image, caption, problems), path.parent)
    if len(rows[0]) < 2 or not rows[0][0].lower().endswith(SUFFIXES):
        raise ValueError(one_line(f"{path} begins with {quote(lines[0])}, which is no caption; {EXPECTED}"))
    return Annotations("lines of image,caption", _table(path, rows, 0, 1, problems), path.parent)


def _tokens(path: Path, lines: list[str], problems: Problems) -> Iterator[Annotation]:
    """Flickr8k's and Flickr30k's own files; the split lists lie beside them, or one folder away."""
    splits: dict[str, str] = {}
    for split, ending in LISTS.items():
        for each in [*sorted(path.parent.glob(f"*{ending}")), *sorted(path.parent.glob(f"*/*{ending}"))][:1]:
            names = [line.strip() for line in lines_of(read_text(each))]
            for name in sorted(set(names) & set(splits)):
                problems.add(TWICE, name)
            splits |= dict.fromkeys(names, split)  # the later list judges
    kind = f"lines of {path} that are no image#0<tab>caption"
    seen, unlisted = set(), set()
    for line in lines:
        if not (match := TOKEN_LINE.fullmatch(line)):
            problems.add(kind, line)
        elif splits and match[1] not in splits:
            unlisted.add(match[1])
        else:
            seen.add(match[1])
            yield Annotation(splits.get(match[1]), match[1], match[1], [match[2]])
    for name, split in splits.items():
        if name not in seen:
            yield Annotation(split, name, name, [])
    for name in sorted(unlisted):
        problems.add(UNSPLIT, name)
    problems.check(kind, len(lines), str(path))


def _rows(path: Path, text: str) -> list[list[str]]:
    limit = csv.field_size_limit(1 << 24)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        if any("\n" in field and "," in field.split("\n", 1)[1] for row in rows for field in row):
            # A quotation that is never closed swallows the lines below it: then each line is taken for itself.
            rows = [row for line in lines_of(text) for row in csv.reader([line])]
    except csv.Error as error:
        raise ValueError(one_line(f"{path} can't be read: {error}")) from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _table(path: Path, rows: list[list[str]], image: int, caption: int, problems: Problems) -> Iterator[Annotation]:
    kind = f"lines of {path} that are no image,caption"
    width = max(image, caption) + 1
    for row in rows:
        if len(row) < width:
            problems.add(kind, ",".join(row))
        else:  # a comma that nobody quoted belongs to the caption, which comes last
            text = ",".join(row[caption:]) if caption == width - 1 and len(row) > width else row[caption]
            yield Annotation(None, row[image].strip(), row[image].strip(), [text])
    problems.check(kind, len(rows), str(path))
