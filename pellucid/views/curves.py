"""Loss and accuracy of runs against the epoch, out of their logs."""

import math
from collections.abc import Sequence
from pathlib import Path

from pellucid.runs import Duration, RunFolder
from pellucid.runs.log import LoggedEvaluation, LoggedStep
from pellucid.views.figures import check_path, save_figure
from pellucid.views.training import LINES, History, Point, curves_figure

LARGEST = 1e100  # of a figure: axes with more overflow


def save_curves(paths: Sequence[Path], out: Path, epochs: Sequence[int] = ()) -> list[History]:
    """Draw the runs whole or, for each number of epochs, the runs of that length, else the longer ones cut."""
    check_path(out)
    if not 1 <= len(paths) <= len(LINES):
        raise ValueError(f"{len(paths)} runs are given; one picture shows 1…{len(LINES)}")
    if any(count < 1 for count in epochs):
        raise ValueError(f"--epochs is {' '.join(map(str, epochs))}; expected one or more each")
    runs = [read_history(path, name) for path, name in zip(paths, name_runs(paths), strict=True)]
    save_figure(curves_figure([choose_runs(runs, count) for count in epochs] or [("", runs)]), out)
    return runs


def choose_runs(runs: list[History], count: int) -> tuple[str, list[History]]:
    """The runs of so many epochs; where there is none, the longer ones, cut, and a title that says so."""
    whole = [run for run in runs if run.lasts(count) and run.steps[-1].epoch + run.step > count]
    if whole:
        return f"{count} epochs, trained to the end", whole
    cut = [run.first(count) for run in runs if run.steps[-1].epoch + run.step > count]
    if not cut:
        longest = max(run.steps[-1].epoch for run in runs)
        raise ValueError(f"--epochs has {count}, but the longest run has {longest:g}; expected no more")
    lengths = sorted({round(run.length) for run in cut})
    return f"first {count} of {', '.join(map(str, lengths))} epochs", cut


def read_history(path: Path, name: str) -> History:
    """What a run's log tells, in the order of its steps; of a step that was logged twice, what was logged last."""
    folder = RunFolder(path)
    log = folder.read_log()
    steps = {each.step: _point(each, "accuracy") for each in log.steps}
    held_out = {
        each.step: _point(each, next((name for name in ("top1", "map", "found") if name in each.figures), "accuracy"))
        for each in log.evaluations
        if each.figures
    }
    if not steps:
        raise ValueError(f"{path} has no steps in {folder.log_file.name}; expected the folder of a run that has begun")
    points, evaluations = (tuple(by_step[step] for step in sorted(by_step)) for by_step in (steps, held_out))
    last = max(steps)
    step = steps[last].epoch / last
    return History(name, points, evaluations, max(_planned_epochs(folder, step), points[-1].epoch), step)


def name_runs(paths: Sequence[Path]) -> list[str]:
    """What the runs are called: their folders' names, with as much of the path as tells them apart.

    >>> name_runs((Path("runs/a"), Path("runs/b"))), name_runs((Path("old/a"), Path("new/a")))
    (['a', 'b'], ['old/a', 'new/a'])
    """
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError("the same run is given twice; leave one out")
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def _planned_epochs(folder: RunFolder, step: float) -> float:
    """Epochs that the run was to take; zero where its config doesn't say."""
    if not folder.config_file.is_file():
        return 0.0
    duration = Duration.parse(folder.run().duration)
    return {"epochs": duration.amount, "steps": duration.amount * step, "minutes": 0.0}[duration.unit]


def _point(entry: LoggedStep | LoggedEvaluation, accuracy: str) -> Point:
    loss, right = (entry.figures.get(name) for name in ("loss", accuracy))
    fine = (math.nan if figure is None or abs(figure) > LARGEST else float(figure) for figure in (loss, right))
    return Point(entry.epoch, *fine)
