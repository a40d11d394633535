"""Captions in lines: Flickr's image#0 and caption, tables, and metadata.jsonl."""

import re
from collections.abc import Iterator
from pathlib import Path

from pellucid.config import parse_json
from pellucid.data.caption_files import TWICE, UNSPLIT, Annotation, Annotations, Problems, lines_of, read_text
from pellucid.data.caption_json import object_captions
from pellucid.data.caption_tables import read_table

TOKEN_LINE = re.compile(r"([^\t]+)#\d+\t(.*)", re.DOTALL)
# How the names of Flickr8k's split lists end; Flickr_8k.trainImages.txt is one.
LISTS = {"train": "trainImages.txt", "validation": "devImages.txt", "test": "testImages.txt"}


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
    return read_table(path, text, problems)


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
