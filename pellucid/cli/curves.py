"""pellucid curves: loss and accuracy of runs against the epoch, out of their logs."""

import math
from pathlib import Path
from typing import Any

from pellucid.cli.verbs import Curves
from pellucid.training.config import Duration
from pellucid.training.folder import CONFIG, LOG, RunFolder
from pellucid.views.figures import check_path, save_figure
from pellucid.views.training import LINES, History, Point, curves_figure


def curves(asked: Curves) -> None:
    """Draw the runs whole or, for each number of epochs, the runs of that length, else the longer ones cut."""
    check_path(asked.out)
    if not 1 <= len(asked.runs) <= len(LINES):
        raise ValueError(f"{len(asked.runs)} runs are given; one picture shows 1…{len(LINES)}")
    if any(count < 1 for count in asked.epochs):
        raise ValueError(f"--epochs is {' '.join(map(str, asked.epochs))}; expected one or more each")
    runs = [history(path, name) for path, name in zip(asked.runs, names(asked.runs), strict=True)]
    panels = [panel(runs, count) for count in asked.epochs] or [("", runs)]
    save_figure(curves_figure(panels), asked.out)
    for run in runs:
        last = run.held_out[-1] if run.held_out else None
        said = f"{last.accuracy:.2%} right on held-out images" if last else "not evaluated"
        print(f"{run.name}: {round(run.steps[-1].epoch, 1):g} of {round(run.length, 1):g} epochs, {said}")
    print(f"curves: {asked.out}")


def panel(runs: list[History], count: int) -> tuple[str, list[History]]:
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


def history(path: Path, name: str) -> History:
    """What a run's log tells, in the order of its steps; of a step that was logged twice, what was logged last."""
    steps, evaluations = {}, {}
    for line in RunFolder(path).lines():
        figures = line.get("evaluation")
        if figures is None:
            steps[line["step"]] = Point(line["epoch"], _number(line, "loss"), _number(line, "accuracy"))
        elif figures:
            right = _number(figures, "top1" if "top1" in figures else "accuracy")
            evaluations[line["step"]] = Point(line["epoch"], _number(figures, "loss"), right)
    if not steps:
        raise ValueError(f"{path} has no steps in {LOG}; expected the folder of a run that has begun")
    points, held_out = (tuple(found[step] for step in sorted(found)) for found in (steps, evaluations))
    last = max(steps)
    step = steps[last].epoch / last
    return History(name, points, held_out, max(_planned(path, step), points[-1].epoch), step)


def names(paths: tuple[Path, ...]) -> list[str]:
    """What the runs are called: their folders' names, with as much of the path as tells them apart.

    >>> names((Path("runs/a"), Path("runs/b"))), names((Path("old/a"), Path("new/a")))
    (['a', 'b'], ['old/a', 'new/a'])
    """
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError("the same run is given twice; leave one out")
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def _planned(path: Path, step: float) -> float:
    """Epochs that the run was to take; zero where its config doesn't say."""
    if not (path / CONFIG).is_file():
        return 0.0
    duration = Duration.parse(RunFolder(path).config().duration)
    return {"epochs": duration.amount, "steps": duration.amount * step, "minutes": 0.0}[duration.unit]


def _number(figures: dict[str, Any], name: str) -> float:
    return float(figures.get(name, math.nan))
