"""Tables of pictures in Parquet files, as Hugging Face's sets are stored, read by PyArrow alone."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.config import parse_json
from pellucid.data.aspect import Goal
from pellucid.data.images import ImageHeader, View, decode, probe
from pellucid.data.listings import IN_MEMORY, SPLIT_NAMES, Entries, Listing, some
from pellucid.data.opener import MAX_BYTES
from pellucid.data.sentences import one_line, reason
from pellucid.extras import require

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")
MOST_RATIO, MIN_BYTES = 20, 1 << 26  # pictures shrink by 5 at most; what unpacks to less than 64 MB may shrink by more
ROW, MIN_ROWS = 2, 1 << 16  # bytes that a row has on disk, at least, where there are many
TOGETHER = 1 << 26  # bytes that are taken out together


@dataclass(frozen=True, slots=True)
class Encoded:
    """An image whose file, or the bytes of it, has been taken out of a table."""

    name: str
    content: Path | bytes

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return decode(self.content, size, channels, name=self.name, view=view)

    def probe(self) -> ImageHeader:
        return probe(self.content, name=self.name)

    def n_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


def find_parquets(folder: Path) -> dict[str, list[Path]]:
    """The Parquet files of a folder, or of data/ in it, by the split that begins their names."""
    paths = sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))
    files: dict[str, list[Path]] = {}
    for path in paths:
        word = re.split("[^a-z]", path.name.lower())[0]
        files.setdefault(SPLIT_NAMES.get(word, word), []).append(path)
    return files


def list_parquets(name: str, files: dict[str, list[Path]]) -> Listing | None:
    """The pictures of such files; None if they are too many to be kept as they are, beside their pixels."""
    require("pyarrow", "hf:")
    import pyarrow
    import pyarrow.parquet

    if "train" not in files:
        raise ValueError(f"hf:{name} has the splits {some(tuple(files))}; expected one called train")
    try:
        opened = {
            split: [pyarrow.parquet.ParquetFile(path) for path in paths]
            for split, paths in files.items()
            if split in SPLIT_NAMES.values()
        }
        used = [(file, path) for split, each in opened.items() for file, path in zip(each, files[split], strict=True)]
        if sum(_check_size(file.metadata, path) for file, path in used) > IN_MEMORY:
            return None
        schema = opened["train"][0].schema_arrow
        image, label, classes = find_columns(name, schema)
        splits: dict[str, Entries] = {}
        for split, each in opened.items():
            rows = [
                row for file, path in zip(each, files[split], strict=True) for row in _rows(file, path, image, label)
            ]
            cells, labels = [cell for cell, _ in rows], [value for _, value in rows]
            splits[split] = _entries(name, split, cells, labels, files[split][0].parent)
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        raise ValueError(one_line(f"hf:{name} can't be loaded: {reason(error)}")) from error
    numbers = [number for entries in splits.values() for _, number in entries]
    least, most = min(numbers, default=0), max(numbers, default=0)
    if classes is None and 0 <= most < 1_000_000:
        classes = tuple(map(str, range(most + 1)))
    if classes is None or least < 0 or most >= len(classes):
        raise ValueError(f"hf:{name} has the labels {least}…{most}; expected 0…{len(classes or ()) - 1}")
    return Listing("Parquet", splits, classes, is_split=len(splits) > 1)


def _check_size(metadata: Any, path: Path) -> int:
    """The bytes that a file says it holds, unpacked; an error if that is no size for what lies on the disk."""
    size, rows = path.stat().st_size, metadata.num_rows
    held = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    for claimed, most, what in (
        (rows, max(MIN_ROWS, size // ROW), "rows"),
        (held, max(MIN_BYTES, MOST_RATIO * size), "bytes unpacked"),
    ):
        if claimed > most:
            raise OSError(f"{path.name} has {size:,} bytes and says that it holds {claimed:,} {what}")
    return held


def _rows(file: Any, path: Path, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    """Cells and labels, some at a time. One that stands once, and is meant by each row, counts each time."""
    most = max(MIN_BYTES, MOST_RATIO * path.stat().st_size)
    chunks = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    at_once = max(1, min(256, TOGETHER // max([1, *chunks])))
    held = 0
    for batch in file.iter_batches(at_once, columns=[image, label]):
        held += batch.nbytes
        if held > most:
            raise OSError(f"{path.name} holds more than {most:,} bytes unpacked, in {path.stat().st_size:,}")
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def find_columns(name: str, schema: Any) -> tuple[str, str, tuple[str, ...] | None]:
    """The columns of images and labels, and what the classes are called, if the file says so."""
    import pyarrow

    features = _features(schema.metadata)
    structs = [
        field.name
        for field in schema
        if pyarrow.types.is_struct(field.type) and {"bytes", "path"} <= {part.name for part in field.type}
    ]
    image = choose_column(name, schema.names, structs, IMAGE_COLUMNS, "images, {bytes, path}")
    whole = [field.name for field in schema if pyarrow.types.is_integer(field.type)]
    named = [column for column in whole if "names" in features.get(column, {})]
    label = choose_column(name, schema.names, named or whole, LABEL_COLUMNS, "whole numbers")
    names = features.get(label, {}).get("names")
    good = isinstance(names, list) and all(isinstance(each, str) for each in names)
    return image, label, tuple(names) if good else None


def choose_column(name: str, there: Sequence[str], columns: list[str], usual: tuple[str, ...], kind: str) -> str:
    """The column of a type; of several, the one with a usual name."""
    if not columns:
        raise ValueError(f"hf:{name} has the columns {some(tuple(there))}; expected one of type {kind}")
    return next((column for column in usual if column in columns), columns[0])


def _features(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """What Hugging Face's library wrote about the columns; nothing, if it didn't write the file."""
    try:
        said = parse_json((metadata or {})[b"huggingface"], "huggingface")["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return {name: each for name, each in said.items() if isinstance(each, dict)} if isinstance(said, dict) else {}


def _entries(name: str, split: str, cells: list[Any], labels: list[Any], folder: Path) -> Entries:
    entries: Entries = []
    for i, (cell, label) in enumerate(zip(cells, labels, strict=True)):
        content = None if cell is None else cell["bytes"]
        if content is None and cell is not None and cell["path"]:
            content = folder / cell["path"]
        if content is None or label is None:
            raise ValueError(f"hf:{name}: row {i} of {split} has no {'image' if content is None else 'label'}")
        if isinstance(content, bytes) and len(content) > MAX_BYTES:
            raise ValueError(
                f"{split}/{i} can't be read: it has {len(content):,} bytes, more than the limit of {MAX_BYTES:,}"
            )
        entries.append((Encoded(f"{split}/{i}", content), int(label)))
    return entries
