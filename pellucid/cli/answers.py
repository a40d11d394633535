"""Answers about many pictures in one file, a line for each: written as they come, and gone on with where they end."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pellucid.cli.pictures import check_all_read, name_of, read_pictures
from pellucid.config import parse_json
from pellucid.data.decoding import Item
from pellucid.decode.captions import Caption
from pellucid.extras import require
from pellucid.files import replace_file, write_text
from pellucid.processes import Processes
from pellucid.ready import ReadyModel
from pellucid.ready.classifier import Prediction

SUFFIXES = (".csv", ".jsonl", ".parquet")
UNFINISHED = ".part.csv"  # beside a table that can't be added to
TEXTS = ("image", "label", "caption")  # columns of words; the others hold numbers
ALIKE = 0.01  # how far a number may lie from what another machine computed
MOST_NAMED = 20  # pictures that can't be read, one by one
Row = list[Any]  # the name of a picture, then texts and numbers; None where there is nothing


@dataclass(frozen=True)
class Form:
    """What a line says of a picture: a list of things under `key`, each with these parts; or, without one, parts alone.

    >>> PREDICTIONS = Form("predictions", ("label", "probability"), 2)
    >>> PREDICTIONS.header
    ['image', 'label', 'probability', 'label_2', 'probability_2']
    >>> PREDICTIONS.entry(["a.png", "cat", 0.9, "dog", 0.1])["predictions"][1]
    {'label': 'dog', 'probability': 0.1}
    """

    key: str
    parts: tuple[str, ...]
    times: int = 1
    digits: int | None = 6  # of numbers in a table; None for all that a float32 has

    @property
    def header(self) -> list[str]:
        places = ["", *(f"_{place}" for place in range(2, self.times + 1))]
        return ["image", *(f"{part}{place}" for place in places for part in self.parts)]

    def entry(self, row: Row) -> dict[str, Any]:
        """As JSON has it."""
        if not self.key:
            return dict(zip(self.header, row, strict=True))
        wide = len(self.parts)
        groups = [row[1 + start : 1 + start + wide] for start in range(0, len(row) - 1, wide)]
        return {"image": row[0], self.key: [dict(zip(self.parts, each, strict=True)) for each in groups if any(each)]}

    def row(self, entry: Any) -> Row:
        """From JSON."""
        if not self.key:
            if list(entry) != self.header:
                raise ValueError("it has other columns")
            return list(entry.values())
        there = entry[self.key]
        if len(there) != self.times and self.key == "predictions":
            raise ValueError(f"it names {len(there)} classes a picture")
        row = [entry["image"], *(each[part] for each in there for part in self.parts)]
        return row + [None] * (len(self.header) - len(row))

    def is_text(self, column: str) -> bool:
        return column.partition("_")[0] in TEXTS

    def read(self, cells: Sequence[str]) -> Row:
        """From the cells of a table."""
        pairs = zip(self.header, cells, strict=True)
        return [cell if self.is_text(name) else float(cell) if cell else None for name, cell in pairs]

    def write(self, value: Any) -> str:
        """A cell of a table."""
        if isinstance(value, float):
            return repr(value) if self.digits is None else f"{value:.{self.digits}f}"
        return "" if value is None else str(value)

    def differs(self, before: Row, now: Row) -> bool:
        """Whether two models must have said these of the same picture, by the first thing that each says."""
        pairs = list(zip(before, now, strict=True))[1 : 1 + len(self.parts)]
        return any(abs(a - b) > ALIKE * (1 + abs(b)) if isinstance(b, float) else a != b for a, b in pairs)


def predictions(top: int) -> Form:
    return Form("predictions", ("label", "probability"), top)


def captions(n_best: int) -> Form:
    return Form("captions", ("caption", "log_prob"), n_best)


def row_of(image: str, best: Sequence[Prediction] | Sequence[Caption], form: Form) -> Row:
    cells = [cell for each in best for cell in (each if isinstance(each, Prediction) else (each.text, each.log_prob))]
    return [image, *cells, *[None] * (len(form.header) - 1 - len(cells))]


def check_place(path: Path) -> None:
    """A sentence if no answers can be written there."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out is {str(path)!r}; expected a file that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder; expected a file to write")
    if path.suffix.lower() == ".parquet":
        require("pyarrow", "--out FILE.parquet")


class AnswersFile:
    """A file of answers, CSV, JSON lines or parquet by its suffix. What it holds already stays, in `rows`, by image.

    A file with other columns is refused.
    """

    def __init__(self, path: Path, form: Form):
        check_place(path)
        self.name, self.form = path, form
        self.parquet = path if path.suffix.lower() == ".parquet" else None
        if self.parquet is not None:
            path = path.with_name(path.name + UNFINISHED)
        self.path, self.is_csv = path, path.suffix.lower() == ".csv"
        if self.parquet is not None and self.parquet.exists() and not path.exists():
            write_rows(self.parquet, path, form)  # go on with what is there
        self.rows = {row[0]: row for row in self._read()}
        self.file: TextIO | None = None

    def __enter__(self) -> "AnswersFile":
        is_new = not self.path.exists() or not self.path.stat().st_size
        self.file = self.path.open("a", encoding="utf-8", errors="surrogateescape", newline="")
        if is_new and self.is_csv:
            self.file.write(_line(self.form.header))
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        assert self.file is not None
        self.file.close()
        if self.parquet is not None and kind is None:
            write_parquet(self.path, self.parquet, self.form)
            self.path.unlink()

    def write(self, rows: Sequence[Row]) -> None:
        """A line for each picture, all of them with the system afterwards."""
        assert self.file is not None
        for row in rows:
            if self.is_csv:
                self.file.write(_line([self.form.write(cell) for cell in row]))
            else:
                self.file.write(json.dumps(self.form.entry(row), allow_nan=False) + "\n")
        self.file.flush()

    def check_same(self, now: Row) -> None:
        """Refuse to go on with a file in which another model answered, by what is said now of one of its pictures."""
        before = self.rows[now[0]]
        if self.form.differs(before, now):
            said = [" ".join(map(self.form.write, row[1:4])) for row in (before, now)]
            raise ValueError(
                f"{self.name} was written by another model, or asked otherwise: of {now[0]} it has {said[0]!r}, and "
                f"now it would be {said[1]!r}; give another file, or remove it"
            )

    def _read(self) -> list[Row]:
        """What is answered; half a line at the end, of somebody interrupted, is cut off."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        text = whole.decode("utf-8", errors="surrogateescape")
        rows = self._rows_of_table(text) if self.is_csv else self._rows_of_lines(text)
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return rows

    def _rows_of_table(self, text: str) -> list[Row]:
        rows = list(csv.reader(io.StringIO(text, newline="")))
        if rows and rows[0] != self.form.header:
            raise ValueError(
                f"{self.path} is there already, with other columns than {','.join(self.form.header[:7])}"
                f"{',…' * (len(self.form.header) > 7)}; give another file, or remove it"
            )
        return [self.form.read(row) for row in rows[1:] if len(row) == len(self.form.header)]

    def _rows_of_lines(self, text: str) -> list[Row]:
        try:
            return [self.form.row(parse_json(line, "a line")) for line in text.splitlines()]
        except (ValueError, TypeError, KeyError) as error:
            said = f" ({error})" if type(error) is ValueError else ""
            raise ValueError(
                f"{self.path} is there already, and holds no such answers{said}; give another file, or remove it"
            ) from error


def answer_into(
    out: Path,
    form: Form,
    images: Sequence[Path | Item],
    batch: int,
    model: ReadyModel,
    ask: Callable[[list[Any]], list[Any]],
    processes: Processes,
) -> None:
    """All answers into a file, but for those that it has; unreadable pictures are named when the others are done.

    ask: a model about some pictures. The first process alone reads and writes the file; the others are told what is
    left.
    """

    def answer(part: Sequence[Path | Item]) -> tuple[list[Row], list[str]]:
        complaints: list[str] = []
        read = next(read_pictures(part, model, len(part), complaints.append), [])
        best = ask([each.pixels for each in read]) if read else []
        return [row_of(name_of(each.path), its, form) for each, its in zip(read, best, strict=True)], complaints

    images = list({name_of(image): image for image in images}.values())
    file = AnswersFile(out, form) if processes.first else None
    answered = [name_of(image) for image in images if name_of(image) in file.rows] if file else []
    if file and answered:
        for row in answer([image for image in images if name_of(image) == answered[0]])[0]:
            file.check_same(row)
    done = set(parse_json(processes.share(json.dumps(answered)), "what the first process says"))
    if processes.first and done:
        print(f"{out} has {len(done):,} of the {len(images):,} pictures already; {len(images) - len(done):,} are left")
    complaints: list[str] = []
    written = 0
    # Whole batches, as they would have been: the last digits depend on what is computed together.
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    parts = [part for part in parts if any(name_of(image) not in done for image in part)]
    with file or nullcontext(), _progress(len(images) - len(done), shown=processes.first) as advance:
        for rows, complained in processes.share_work(parts, answer):
            new = [row for row in rows if row[0] not in done]
            if file:
                file.write(new)
            complaints += complained
            written += len(new)
            advance(len(new) + len(complained))
    if processes.first:
        print(f"wrote {written:,} answers: {out}")
        for complaint in complaints[:MOST_NAMED]:
            print(f"pellucid: {complaint}", file=sys.stderr)
        if len(complaints) > MOST_NAMED:
            print(f"pellucid: and {len(complaints) - MOST_NAMED:,} more that can't be read", file=sys.stderr)
    check_all_read(written, images[len(done) :])


@contextmanager
def _progress(count: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """On a terminal, a bar with pictures a second and the time that is left."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        task, begun, done = bar.add_task("", total=count, rate=""), time.perf_counter(), 0

        def advance(pictures: int) -> None:
            nonlocal done
            done += pictures
            bar.update(task, completed=done, rate=f"{done / (time.perf_counter() - begun):,.0f} pictures/s")

        yield advance


def write_parquet(rows: Path, path: Path, form: Form) -> None:
    """A table of the rows of a CSV file: names are text, and probabilities numbers."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    types = {name: pyarrow.string() if form.is_text(name) else pyarrow.float64() for name in form.header}
    how = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    newlines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(rows, parse_options=newlines, convert_options=how)
    replace_file(path, lambda part: pyarrow.parquet.write_table(table, part))


def write_rows(path: Path, rows: Path, form: Form) -> None:
    """The rows of a table as `write_parquet` took them."""
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is there already, and can't be read: {error}") from error
    columns = [[form.write(value) for value in table.column(name).to_pylist()] for name in table.column_names]
    lines = [table.column_names, *zip(*columns, strict=True)]
    write_text(rows, "".join(_line(list(line)) for line in lines))


def _line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
