"""pellucid predict: what a model sees in pictures of yours."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pellucid.cli.answers import AnswersFile, describe
from pellucid.cli.pictures import Read, check_all_read, find_pictures, read_pictures
from pellucid.cli.verbs import PredictOptions
from pellucid.devices import pick_device
from pellucid.ready import ReadyClassifier, load_classifier
from pellucid.ready.classifier import Prediction

MOST_NAMED = 20  # pictures that can't be read, one by one


def predict(options: PredictOptions) -> None:
    """Name the likeliest classes of every picture that can be read; the others get a sentence each, and exit code 2."""
    for name, value in (("--top", options.top), ("--batch", options.batch)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected one or more")
    if options.json and options.out:
        raise ValueError("--json prints what --out writes; give one of the two")
    paths = find_pictures(options.images)
    model = load_classifier(options.model, pick_device(options.device))
    if options.out:
        _write(options, model, paths, options.out)
        return
    listed = []
    for read in read_pictures(paths, model, options.batch):
        for path, best in _answer(model, read, options):
            listed.append(describe(path, best))
            if not options.json:
                print("  ".join([path, *(f"{label} {100 * share:.1f} %" for label, share in best)]), flush=True)
    if options.json:
        print(json.dumps(listed, allow_nan=False))
    check_all_read(len(listed), paths)


def _write(options: PredictOptions, model: ReadyClassifier, paths: Sequence[Path], out: Path) -> None:
    """All answers into a file, but for those that it has; unreadable pictures are named when the others are done."""
    file = AnswersFile(out, min(options.top, len(model.labels)))
    paths = list(dict.fromkeys(paths))
    left = [path for path in paths if str(path) not in file.answered]
    if len(left) < len(paths):
        print(f"{out} has {len(paths) - len(left):,} of the {len(paths):,} pictures already; {len(left):,} are left")
    complaints: list[str] = []
    written = 0
    with file, _progress(len(left)) as advance:
        for start in range(0, len(left), options.batch):
            part = left[start : start + options.batch]
            for read in read_pictures(part, model, len(part), complaints.append):
                file.write(_answer(model, read, options))
                written += len(read)
            advance(len(part))
    print(f"wrote {written:,} answers: {out}")
    for complaint in complaints[:MOST_NAMED]:
        print(f"pellucid: {complaint}", file=sys.stderr)
    if len(complaints) > MOST_NAMED:
        print(f"pellucid: and {len(complaints) - MOST_NAMED:,} more that can't be read", file=sys.stderr)
    check_all_read(written, left)


def _answer(
    model: ReadyClassifier, read: Sequence[Read], options: PredictOptions
) -> list[tuple[str, list[Prediction]]]:
    best = model.predict([each.pixels for each in read], options.top, options.views)
    return [(str(each.path), its) for each, its in zip(read, best, strict=True)]


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """On a terminal, a bar with pictures a second and the time that is left."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task, begun, done = bar.add_task("", total=count, rate=""), time.perf_counter(), 0

        def advance(pictures: int) -> None:
            nonlocal done
            done += pictures
            bar.update(task, completed=done, rate=f"{done / (time.perf_counter() - begun):,.0f} pictures/s")

        yield advance
