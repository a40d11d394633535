"""Answers about many pictures in one file, a line for each: written as they come, and gone on with where they end."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from pellucid.config import parse_json
from pellucid.extras import require
from pellucid.files import replace_file, write_text
from pellucid.ready.classifier import Prediction

SUFFIXES = (".csv", ".jsonl", ".parquet")
UNFINISHED = ".part.csv"  # beside a table that can't be added to


class AnswersFile:
    """A file of answers, CSV or JSON lines by its suffix. What it holds already stays: `answered` are its pictures.

    top: how many classes each line names; a file with another number of them is refused.
    """

    def __init__(self, path: Path, top: int):
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"--out is {str(path)!r}; expected a file that ends in {' or '.join(SUFFIXES)}")
        if not path.parent.is_dir():
            raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder; expected a file to write")
        self.parquet = path if path.suffix.lower() == ".parquet" else None
        if self.parquet is not None:
            require("pyarrow", "--out FILE.parquet")
            path = path.with_name(path.name + UNFINISHED)
        self.path, self.is_csv = path, path.suffix.lower() == ".csv"
        places = [f"_{place}" if place > 1 else "" for place in range(1, top + 1)]
        self.header = ["image", *(f"{name}{place}" for place in places for name in ("label", "probability"))]
        if self.parquet is not None and self.parquet.exists() and not path.exists():
            write_rows(self.parquet, path)  # go on with what is there
        self.answered = self._read()
        self.file: TextIO | None = None

    def __enter__(self) -> "AnswersFile":
        is_new = not self.path.exists() or not self.path.stat().st_size
        self.file = self.path.open("a", encoding="utf-8", errors="surrogateescape", newline="")
        if is_new and self.is_csv:
            self.file.write(_row(self.header))
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        assert self.file is not None
        self.file.close()
        if self.parquet is not None and kind is None:
            write_parquet(self.path, self.parquet)
            self.path.unlink()

    def write(self, answers: Sequence[tuple[str, Sequence[Prediction]]]) -> None:
        """A line for each picture, all of them on disk afterwards."""
        assert self.file is not None
        for image, best in answers:
            if self.is_csv:
                fields = [field for label, share in best for field in (label, f"{share:.6f}")]
                self.file.write(_row([image, *fields]))
            else:
                self.file.write(json.dumps(describe(image, best), allow_nan=False) + "\n")
        self.file.flush()

    def _read(self) -> set[str]:
        """The pictures that are answered; half a line at the end, of somebody interrupted, is cut off."""
        if not self.path.exists():
            return set()
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        text = whole.decode("utf-8", errors="surrogateescape")
        answered = self._images_of_table(text) if self.is_csv else self._images_of_lines(text)
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return answered

    def _images_of_table(self, text: str) -> set[str]:
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if rows and rows[0] != self.header:
            raise ValueError(
                f"{self.path} is there already, with other columns than {','.join(self.header)}; give another file, or "
                "remove it"
            )
        return {row[0] for row in rows[1:] if len(row) == len(self.header)}

    def _images_of_lines(self, text: str) -> set[str]:
        try:
            entries = [parse_json(line, "a line") for line in text.splitlines()]
            if wrong := [entry for entry in entries if len(entry["predictions"]) != len(self.header) // 2]:
                raise ValueError(f"it names {len(wrong[0]['predictions'])} classes a picture")
            return {entry["image"] for entry in entries}
        except (ValueError, TypeError, KeyError) as error:
            said = f" ({error})" if type(error) is ValueError else ""
            raise ValueError(
                f"{self.path} is there already, and holds no such answers{said}; give another file, or remove it"
            ) from error


def write_parquet(rows: Path, path: Path) -> None:
    """A table of the rows of a CSV file: names are text, and probabilities numbers."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    with rows.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        header = next(csv.reader(file))
    types = {name: pyarrow.float64() if name.startswith("probability") else pyarrow.string() for name in header}
    how = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    table = pyarrow.csv.read_csv(rows, convert_options=how)
    replace_file(path, lambda part: pyarrow.parquet.write_table(table, part))


def write_rows(path: Path, rows: Path) -> None:
    """The rows of a table as `write_parquet` took them."""
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is there already, and can't be read: {error}") from error
    columns = [
        [f"{value:.6f}" if isinstance(value, float) else value for value in table.column(name).to_pylist()]
        for name in table.column_names
    ]
    lines = [table.column_names, *zip(*columns, strict=True)]
    write_text(rows, "".join(_row(list(line)) for line in lines))


def describe(image: str, best: Sequence[Prediction]) -> dict[str, Any]:
    return {"image": image, "predictions": [each._asdict() for each in best]}


def _row(fields: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()
