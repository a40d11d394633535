"""Tables of labels: a picture a line, and what it shows, in one column or in a column of 0 and 1 for each class."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pellucid.data.caption_tables import IDS, IMAGES, SPLITS, choose_delimiter, plain_name, words
from pellucid.data.lazy import ImageFile
from pellucid.data.listings import SPLIT_NAMES, Entries, Listing, some
from pellucid.data.opener import SUFFIXES

LABELS = words("""label labels class classes classname classnames category categories species breed tag tags target
targets""")
PARTING = "|;,"  # what stands between the classes of one picture; else spaces
MOST_BYTES = 1 << 28
LabelRow = Sequence[str]


def list_labels(table: Path, folder: Path | None = None, *, several: bool = False) -> Listing:
    """The pictures that a table of labels names, by split if it has such a column.

    folder: where the pictures lie, if not beside the table. several: a label may name several classes, parted by bars,
    semicolons, commas or spaces. A table with a column of 0 and 1 for each class says by itself whether several may be
    true.
    """
    header, rows = read_rows(table)
    image, split, label = find_columns(table, header, rows)
    columns = [place for place in range(len(header)) if place not in (image, split)]
    if label is not None:
        named = [parse_names(row[label], several) for row in rows]
    elif columns and all(row[place].strip() in ("0", "1", "0.0", "1.0") for row in rows for place in columns):
        named = [tuple(header[place] for place in columns if float(row[place])) for row in rows]
        several = several or any(len(names) != 1 for names in named)
    else:
        raise ValueError(
            f"{table} has the columns {some(tuple(header), 8)}, and none is known to hold labels; rename it 'label', "
            "or give a column of 0 and 1 for each class"
        )
    if not several and (row := next((row for row, names in zip(rows, named, strict=True) if names == ("",)), None)):
        raise ValueError(
            f"{table} has no label for {row[image]!r}; give it one, or, if none or several of the classes may be true "
            "of a picture, give --data.several"
        )
    own = [header[place] for place in columns] if label is None else {name for names in named for name in names}
    classes = tuple(own if label is None else sorted(own, key=lambda name: (len(name) * name.isdecimal(), name)))
    return _listing(table, folder or table.parent, [row[image] for row in rows], named, classes, several, [
        row[split] for row in rows] if split is not None else None)  # fmt: skip


def read_rows(table: Path) -> tuple[list[str], Sequence[LabelRow]]:
    """The header of a table, and its rows, each as wide."""
    if not table.is_file():
        raise ValueError(f"the table {str(table)!r} doesn't exist; expected a CSV or TSV file with a header")
    if table.stat().st_size > MOST_BYTES:
        raise ValueError(f"{table} is larger than {MOST_BYTES:,} bytes")
    text = table.read_bytes().decode("utf-8-sig", errors="replace")
    delimiter = "\t" if "\t" in text.partition("\n")[0] else choose_delimiter(text.partition("\n")[0]) or ","
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(row)]
    except csv.Error as error:
        raise ValueError(f"{table} can't be read: {error}") from None
    if len(rows) < 2:
        raise ValueError(f"{table} holds no labels; expected a header, and a line for each picture")
    header = [field.strip() for field in rows[0]]
    wrong = next((i for i, row in enumerate(rows, 1) if len(row) != len(header)), None)
    if wrong:
        raise ValueError(f"row {wrong} of {table} has {len(rows[wrong - 1])} fields; its header has {len(header)}")
    if len(set(header)) < len(header):
        raise ValueError(f"{table} has two columns of one name; rename one")
    return header, rows[1:]


def find_columns(table: Path, header: LabelRow, rows: Sequence[LabelRow]) -> tuple[int, int | None, int | None]:
    """Where the picture stands, the split, and the label."""
    plain = [plain_name(field) for field in header]
    holding = [i for i in range(len(header)) if rows[0][i].strip().lower().endswith(SUFFIXES)]
    images = holding or [i for i, name in enumerate(plain) if name in (*IMAGES, *IDS)]
    if not images:
        raise ValueError(
            f"{table} has the columns {some(tuple(header), 8)}, and none names files; rename it 'file_name'"
        )
    splits = [
        i for i, name in enumerate(plain)
        if name in SPLITS and all(row[i].strip().lower() in SPLIT_NAMES for row in rows)
    ]  # fmt: skip
    labels = [i for i, name in enumerate(plain) if name in LABELS and i != images[0]]
    others = [i for i in range(len(header)) if i != images[0] and i not in splits]
    if len(labels) > 1:
        names = some(tuple(header[i] for i in labels))
        raise ValueError(f"{table} has several columns that could be the label, {names}; rename the others")
    lone = others[0] if len(others) == 1 else None
    return images[0], next(iter(splits), None), labels[0] if labels else lone


def parse_names(field: str, several: bool) -> tuple[str, ...]:
    """The classes that a field names.

    >>> parse_names("cat; dog", several=True), parse_names("cat dog", several=True), parse_names("cat, wild", False)
    (('cat', 'dog'), ('cat', 'dog'), ('cat, wild',))
    """
    if not several:
        return (field.strip(),)
    mark = next((mark for mark in PARTING if mark in field), None)
    return tuple(dict.fromkeys(name.strip() for name in field.split(mark) if name.strip()))


def _listing(
    table: Path, folder: Path, files: Sequence[str], named: Sequence[tuple[str, ...]], classes: tuple[str, ...],
    several: bool, splits: Sequence[str] | None,
) -> Listing:  # fmt: skip
    """Labels are numbers of classes or, where several may be true, numbers of sets of classes."""
    number = {name: i for i, name in enumerate(classes)}
    sets: dict[tuple[int, ...], int] = {}
    parts: dict[str, Entries] = {}
    for i, (file, names) in enumerate(zip(files, named, strict=True)):
        which = tuple(sorted(number[name] for name in names))
        label = sets.setdefault(which, len(sets)) if several else which[0]
        split = SPLIT_NAMES[splits[i].strip().lower()] if splits else "train"
        parts.setdefault(split, []).append((ImageFile(file.strip(), folder / file.strip()), label))
    if "train" not in parts:
        raise ValueError(f"{table} has no training images; its splits are {some(tuple(parts))}")
    order = {split: parts[split] for split in ("train", "validation", "test") if split in parts}
    kind = "table of labels, several for a picture" if several else "table of labels"
    return Listing(kind, order, classes, is_split=splits is not None, sets=tuple(sets) if several else ())
