"""A run's folder: config.json, plan.json, environment.json, log.jsonl, checkpoints/, and a second stage in critical/.

What is written can always be read back: files are replaced whole, and the log is cut back to the checkpoint that a run
goes on from, so that no step is told twice.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pellucid.config import brief, from_json, read_json, to_json
from pellucid.files import make_folder, sync_handle, write_bytes, write_json, write_text
from pellucid.runs.checkpoints import Checkpoints, step_of
from pellucid.runs.config import RUNS, AnyRun, CaptionerRun, ClassifierRun, Duration, Plan, Run
from pellucid.runs.environment import describe_environment
from pellucid.runs.log import Log, number, read_lines

CONFIG, PLAN, LOG = "config.json", "plan.json", "log.jsonl"
ENVIRONMENT, TOKENIZER = "environment.json", "tokenizer.json"
HELD_OUT = (
    "held_out.json"  # images by split that the run isn't trained on, where its source doesn't say: see data/division
)
CALIBRATION = "calibration.json"  # what answers are divided by, of which weights, and on what that was fitted
SECOND_STAGE = "critical"  # folder of a run in a run, which goes on from the weights of the first

log = logging.getLogger("pellucid")


class RunFolder:
    """Where a run keeps what it does.

    >>> RunFolder("runs/mine").path.name
    'mine'
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_file, self.plan_file = self.path / CONFIG, self.path / PLAN
        self.log_file, self.environment_file = self.path / LOG, self.path / ENVIRONMENT
        self.tokenizer_file = self.path / TOKENIZER
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def second_stage(self) -> "RunFolder":
        """The folder in it where its second stage is kept, if it has one."""
        return RunFolder(self.path / SECOND_STAGE)

    @property
    def is_second_stage(self) -> bool:
        """Whether it is the second stage of a run."""
        return self.path.name == SECOND_STAGE and (self.path.parent / CONFIG).is_file()

    def create(self, run: Run, files: Mapping[str, str] | None = None) -> None:
        """A new run, with files it needs beside its config; a folder that already holds one is left alone."""
        self.check_free()
        make_folder(self.checkpoints.folder)
        write_json(self.environment_file, describe_environment())
        for name, text in (files or {}).items():
            write_text(self.path / name, text)
        write_json(self.config_file, {"kind": run.kind} | to_json(run))  # last: a folder with a config is a run

    def check_free(self) -> None:
        """A sentence if there is a run already."""
        if self.config_file.exists():
            raise ValueError(
                f"{self.path} already holds a run; go on with it by --resume {self.path}, or choose another --out"
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else trains here meanwhile. The system forgets the lock with the process, however that ends."""
        if os.name != "posix":
            yield
            return
        import fcntl

        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ValueError(f"{self.path} is being trained by another process; wait for it, or stop it") from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            os.close(handle)

    def run(self) -> AnyRun:
        """The run, as it was begun."""
        if not self.config_file.is_file():
            raise ValueError(f"{self.path} holds no run: there is no {CONFIG} in it")
        return self._read(self.config_file, run_from_json)

    def plan(self) -> Plan | None:
        """The run's durations in steps; None before they are known."""
        return self._read(self.plan_file, partial(from_json, Plan)) if self.plan_file.is_file() else None

    def keep_plan(self, plan: Plan) -> None:
        """Write the plan down, before the first step."""
        write_json(self.plan_file, to_json(plan))

    def prolong(self, duration: str) -> None:
        """Give the run a longer duration: its plan first, so that a kill in between leaves a run that goes on."""
        run, plan = self.run(), self.plan()
        if self.second_stage.config_file.is_file():
            raise ValueError(f"{self.path} is in its second stage; its first can't be longer any more")
        length = Duration.parse(duration)
        if length.unit == "minutes":
            raise ValueError(f"duration is {duration!r}; expected steps or epochs for a run that goes on")
        if plan is not None:
            steps = plan.steps_of(length, run.batch)
            if steps < plan.steps:
                raise ValueError(f"duration is {duration!r}, {steps:,} steps; {self.path} has {plan.steps:,} already")
            self.keep_plan(replace(plan, steps=steps))
        write_json(self.config_file, {"kind": run.kind} | to_json(replace(run, duration=duration)))

    def held_out(self) -> dict[str, dict[str, int]]:
        """By split: the names of the images that were held out, and their sizes in bytes. Older runs don't say."""
        path = self.path / HELD_OUT
        return self._read(path, _check_held_out) if path.is_file() else {}

    def keep_temperature(self, temperature: float, data: str, images: int) -> None:
        """What the answers of its weights are to be divided by; of later weights that says nothing."""
        about = {"temperature": temperature, "step": step_of(self.weights()), "data": data, "images": images}
        write_json(self.path / CALIBRATION, about)

    def temperature(self) -> float:
        """What the answers are divided by; one unless it was fitted to the weights that answer."""
        path = self.path / CALIBRATION
        if not path.is_file():
            return 1.0
        kept = self._read(path, _check_calibration)
        if kept["step"] != step_of(self.weights()):
            log.warning("%s was calibrated after step %s, and its weights are others now", self.path, kept["step"])
            return 1.0
        return kept["temperature"]

    def _read(self, path: Path, make: Callable[[Any], Any]) -> Any:
        data = read_json(path)
        try:
            return make(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def weights(self) -> Path:
        """The checkpoint that the run is known by: of its second stage, if that has one, else its own."""
        path = self.second_stage.checkpoints.weights() or self.checkpoints.weights()
        if path is None:
            raise ValueError(
                f"the run {self.path} has kept no weights: there is neither best.safetensors nor last.safetensors "
                f"in {self.checkpoints.folder}"
            )
        return path

    def log(self, lines: Iterable[dict[str, Any]]) -> None:
        """On the disk when this returns: no checkpoint is newer than the log."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            sync_handle(file.fileno())

    def read_log(self) -> Log:
        """What was logged, without odd lines; a warning says how many those are."""
        log = Log()
        if self.log_file.is_file():
            log.read(self.log_file)
        self._warn_of_odd_lines(log.odd)
        return log

    def cut_log(self, step: int) -> None:
        """Forget what was logged after `step` steps: it will happen again. Odd lines go too."""
        kept, odd = [], 0
        if self.log_file.is_file():
            with self.log_file.open("rb") as stream:
                for text, entry in read_lines(stream):
                    odd += entry is None and not text.isspace()
                    if entry is not None and entry.step <= step:
                        kept.append(text)
        self._warn_of_odd_lines(odd)
        write_bytes(self.log_file, b"".join(kept))

    def _warn_of_odd_lines(self, odd: int) -> None:
        if odd:
            lines = "a line that tells" if odd == 1 else f"{odd} lines that tell"
            log.warning("%s has %s of no step and no evaluation; left out", self.log_file, lines)


def _check_held_out(data: Any) -> dict[str, dict[str, int]]:
    objects = [data, *(data.values() if isinstance(data, dict) else [])]
    sizes = (size for names in objects[1:] if isinstance(names, dict) for size in names.values())
    if not all(isinstance(each, dict) for each in objects) or not all(type(size) is int for size in sizes):
        raise ValueError("it is no object of splits, each with the names of images and their sizes in bytes")
    return data


def _check_calibration(data: Any) -> dict[str, Any]:
    temperature = number(data.get("temperature")) if isinstance(data, dict) else None
    if temperature is None or temperature <= 0:
        raise ValueError("it has no temperature above zero")
    return data | {"step": data.get("step"), "temperature": temperature}


def is_run(config: Any) -> bool:
    """Whether a config.json is a run's, and not that of a saved model."""
    return isinstance(config, dict) and "recipe" in config and isinstance(config.get("model"), dict)


def kind_of_run(config: Mapping[str, Any]) -> str:
    """Whose run a config.json is of. Those of 0.1 don't say: there, a captioner's has a second stage to speak of."""
    return str(config.get("kind", CaptionerRun.kind if "critical" in config else ClassifierRun.kind))


def run_from_json(config: Any) -> AnyRun:
    if not isinstance(config, dict):
        return from_json(ClassifierRun, config)  # which says what is wrong
    kind = kind_of_run(config)
    if kind not in RUNS:
        raise ValueError(f"config kind is {brief(kind)}; expected one of {', '.join(map(repr, RUNS))}")
    return from_json(RUNS[kind], {name: value for name, value in config.items() if name != "kind"})
