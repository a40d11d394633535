"""Training runs, read and never written: what is in a folder of them, and what each has logged so far.

A name in a request is only ever compared with the names of a listing; no path is made of it. What leads out of the
folder by a link isn't there.
"""

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pellucid.config import finite, read_json
from pellucid.runs import Checkpoint, RunFolder
from pellucid.runs.folder import SECOND_STAGE, kind_of_run
from pellucid.runs.log import Log, LoggedStep, whole_number

LARGEST = 1 << 20  # bytes of a run's JSON files
LIVE = 30.0  # seconds: a run that has logged nothing for longer is not running, as far as can be told from outside


class Runs:
    """The runs in one folder: its subfolders with a config, and the second stages inside those."""

    def __init__(self, folder: Path | None):
        self.folder = None if folder is None else folder.expanduser().resolve()
        self.logs: dict[Path, Log] = {}
        self.lock = threading.Lock()

    def listing(self) -> dict[str, Path]:
        """Where the runs lie, by name, the newest first."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        places = {path.name: path for path in self.folder.iterdir() if self._is_run(path)}
        inner = {f"{name}:{SECOND_STAGE}": RunFolder(path).second_stage.path for name, path in places.items()}
        places |= {name: path for name, path in inner.items() if self._is_run(path)}
        return dict(sorted(places.items(), key=lambda item: self._changed(item[1]), reverse=True))

    def summaries(self) -> list[dict[str, Any]]:
        """The runs in a few words each."""
        return [self.summary(name, path) for name, path in self.listing().items()]

    def summary(self, name: str, path: Path) -> dict[str, Any]:
        folder, log = RunFolder(path), self.log(path)
        config = self._json(folder.config_file)
        plan = whole_number(self._json(folder.plan_file).get("steps"))
        evaluated = log.evaluations[-1] if log.evaluations else None
        fresh = time.time() - self._changed(path) < LIVE
        return {
            "name": name,
            "recipe": str(config.get("recipe", "")),
            "kind": kind_of_run(config),
            "step": log.last,
            "steps": plan,
            "running": bool(fresh and log.last and (plan is None or log.last < plan)),
            "figures": evaluated.figures if evaluated else {},
        }

    def detail(self, name: str, path: Path, after: int, points: int) -> dict[str, Any]:
        """Everything: config, environment, and the curves after a step."""
        folder, log = RunFolder(path), self.log(path)
        return self.summary(name, path) | {
            "config": self._json(folder.config_file),
            "environment": self._json(folder.environment_file),
            "curves": thin_out([line for line in log.steps if line.step > after], points),
            "checkpoints": [{"name": each.path.stem, "step": each.step} for each in self.checkpoints(path)],
            "evaluations": [line._asdict() for line in log.evaluations if line.step > after],
            "odd_lines": log.odd,
        }

    def checkpoints(self, path: Path) -> list[Checkpoint]:
        """The weights that the run has kept, with the steps they are of, the earliest first."""
        return [each for each in RunFolder(path).checkpoints.listing() if self._is_inside(each.path)]

    def weights_written(self, path: Path) -> int | None:
        """When the weights that a run is known by (the best, else the last) were written; None if they aren't there."""
        try:
            weights = RunFolder(path).checkpoints.weights()
        except ValueError:  # damaged, and there is no other
            return None
        return weights.stat().st_mtime_ns if weights is not None and self._is_inside(weights) else None

    def log(self, path: Path) -> Log:
        """The run's log, read on from where it was read to."""
        with self.lock:
            log = self.logs.setdefault(path, Log())
            file = RunFolder(path).log_file
            if self._is_inside(file) and file.is_file():
                log.read(file)
            return log

    def _is_run(self, path: Path) -> bool:
        config = RunFolder(path).config_file
        return path.is_dir() and self._is_inside(path) and config.is_file() and self._is_inside(config)

    def _is_inside(self, path: Path) -> bool:
        assert self.folder is not None
        return path.resolve().is_relative_to(self.folder)

    def _changed(self, path: Path) -> float:
        for file in (RunFolder(path).log_file, RunFolder(path).config_file):
            if self._is_inside(file) and file.is_file():
                return file.stat().st_mtime
        return 0.0

    def _json(self, path: Path) -> dict[str, Any]:
        """A small file of the run; empty if it isn't there or can't be read."""
        if not self._is_inside(path) or not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        try:
            data = finite(read_json(path, most_bytes=LARGEST, allow_nan=True))
        except (ValueError, OSError):
            return {}
        return data if isinstance(data, dict) else {}


def thin_out(steps: list[LoggedStep], points: int) -> dict[str, list[float | None]]:
    """Logged steps as columns. More than `points` of them become means of equal spans, told at the span's last step.

    >>> thin_out([LoggedStep(i, i / 2, {"loss": 6.0 - i}) for i in range(1, 5)], points=2)
    {'step': [2, 4], 'epoch': [1.0, 2.0], 'loss': [4.5, 2.5]}
    """
    span = max(1, math.ceil(len(steps) / points))
    last = [part[-1] for part in _parts(steps, span)]
    columns: dict[str, list[float | None]] = {
        "step": [each.step for each in last],
        "epoch": [each.epoch for each in last],
    }
    for name in dict.fromkeys(name for each in steps[:1] + steps[-1:] for name in each.figures):
        columns[name] = [_mean(part) for part in _parts([each.figures.get(name) for each in steps], span)]
    return columns


def _parts(values: list[Any], span: int) -> Iterator[list[Any]]:
    return (values[start : start + span] for start in range(0, len(values), span))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(value / len(known) for value in known) if known else None  # finite, as each of them is
