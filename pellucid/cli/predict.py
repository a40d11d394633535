"""pellucid predict: what a model sees in pictures of yours."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pellucid.cli.answers import AnswersFile, describe
from pellucid.cli.pictures import check_all_read, find_images, name_of, read_pictures
from pellucid.cli.verbs import PredictOptions
from pellucid.config import parse_json
from pellucid.data.decoding import Item
from pellucid.devices import pick_device
from pellucid.processes import Processes, joined
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
    paths = find_images(options.images)
    device = pick_device(options.device)
    model = load_classifier(options.model, device)
    with joined(device) as processes:
        if options.out:
            _write(options, model, paths, options.out, processes)
        else:
            _print(options, model, paths, processes)


def _print(options: PredictOptions, model: ReadyClassifier, paths: Sequence[Path | Item], processes: Processes) -> None:
    listed = []
    for answers, complaints in _answer_all(model, paths, options, processes):
        for complaint in complaints if processes.first else ():
            print(f"pellucid: {complaint}", file=sys.stderr)
        for path, best in answers:
            listed.append(describe(path, best))
            if processes.first and not options.json:
                print("  ".join([path, *(f"{label} {100 * share:.1f} %" for label, share in best)]), flush=True)
    if processes.first and options.json:
        print(json.dumps(listed, allow_nan=False))
    check_all_read(len(listed), paths)


def _write(
    options: PredictOptions, model: ReadyClassifier, paths: Sequence[Path | Item], out: Path, processes: Processes
) -> None:
    """All answers into a file, but for those that it has; unreadable pictures are named when the others are done.

    The first process alone reads and writes the file; the others are told what is left.
    """
    paths = list({name_of(path): path for path in paths}.values())
    file = AnswersFile(out, min(options.top, len(model.labels))) if processes.first else None
    answered = [name_of(path) in file.answered for path in paths] if file else []
    done = parse_json(processes.share(json.dumps(answered)), "what the first process says")
    left = [path for path, there in zip(paths, done, strict=True) if not there]
    if processes.first and len(left) < len(paths):
        print(f"{out} has {len(paths) - len(left):,} of the {len(paths):,} pictures already; {len(left):,} are left")
    complaints: list[str] = []
    written = 0
    with file or nullcontext(), _progress(len(left), shown=processes.first) as advance:
        for answers, complained in _answer_all(model, left, options, processes):
            if file:
                file.write(answers)
            complaints += complained
            written += len(answers)
            advance(len(answers) + len(complained))
    if processes.first:
        print(f"wrote {written:,} answers: {out}")
        for complaint in complaints[:MOST_NAMED]:
            print(f"pellucid: {complaint}", file=sys.stderr)
        if len(complaints) > MOST_NAMED:
            print(f"pellucid: and {len(complaints) - MOST_NAMED:,} more that can't be read", file=sys.stderr)
    check_all_read(written, left)


def _answer_all(
    model: ReadyClassifier, paths: Sequence[Path | Item], options: PredictOptions, processes: Processes
) -> Iterator[tuple[list[tuple[str, list[Prediction]]], list[str]]]:
    """Batch by batch, the answers and what is said of pictures that can't be read; each process does its share."""
    parts = [paths[start : start + options.batch] for start in range(0, len(paths), options.batch)]
    alone = len(paths) == 1 and not options.out  # then what is wrong with it is all that there is to say

    def answer(part: Sequence[Path | Item]) -> tuple[list[tuple[str, list[Prediction]]], list[str]]:
        complaints: list[str] = []
        read = next(read_pictures(part, model, len(part), None if alone else complaints.append), [])
        best = model.predict([each.pixels for each in read], options.top, options.views) if read else []
        return [(name_of(each.path), its) for each, its in zip(read, best, strict=True)], complaints

    return processes.share_work(parts, answer)


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
