"""A run's folder: config.json, plan.json, environment.json, log.jsonl, checkpoints/last and checkpoints/best.

What is written can always be read back: files are replaced whole, and the log is cut back to the checkpoint that a run
goes on from, so that no step is told twice.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pellucid.config import from_json, to_json
from pellucid.training.checkpoint import replace_file, write_json
from pellucid.training.config import CaptionerRun, ClassifierRun, Plan, Run

CONFIG, PLAN, LOG, ENVIRONMENT = "config.json", "plan.json", "log.jsonl", "environment.json"


class RunFolder:
    """Where a run keeps what it does."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"

    def create(self, run: Run, files: Mapping[str, str] | None = None) -> None:
        """A new run, with files it needs beside its config; a folder that already holds one is left alone."""
        if (self.path / CONFIG).exists():
            raise ValueError(
                f"{self.path} already holds a run; go on with it by --resume {self.path}, or choose another --out"
            )
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        write_json(self.path / ENVIRONMENT, environment())
        for name, text in (files or {}).items():
            replace_file(self.path / name, lambda part, text=text: part.write_text(text, encoding="utf-8"))
        write_json(self.path / CONFIG, to_json(run))  # last: a folder with a config is a run

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

    def config(self) -> ClassifierRun | CaptionerRun:
        if not (self.path / CONFIG).is_file():
            raise ValueError(f"{self.path} holds no run: there is no {CONFIG} in it")
        return self._read(CONFIG, lambda data: from_json(CaptionerRun if "critical" in data else ClassifierRun, data))

    def plan(self) -> Plan | None:
        """The run's durations in steps; None before they are known."""
        return self._read(PLAN, partial(from_json, Plan)) if (self.path / PLAN).is_file() else None

    def keep_plan(self, plan: Plan) -> None:
        write_json(self.path / PLAN, to_json(plan))

    def _read(self, name: str, made: Callable[[Any], Any]) -> Any:
        try:
            return made(json.loads((self.path / name).read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path / name} is not JSON ({error})") from None
        except ValueError as error:
            raise ValueError(f"{self.path / name}: {error}") from None

    def log(self, lines: Iterable[dict[str, Any]]) -> None:
        """On the disk when this returns: no checkpoint is newer than the log."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """What was logged. A last line that a killed process left unfinished is not there."""
        path = self.path / LOG
        if not path.exists():
            return []
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return found

    def cut_log(self, step: int) -> None:
        """Forget what was logged after `step` steps: it will happen again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        replace_file(self.path / LOG, lambda part: part.write_text(text, encoding="utf-8"))


def environment() -> dict[str, Any]:
    """Versions, commit and hardware: what a figure needs beside it."""
    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": sys.version.split()[0],
        "packages": packages,
        "commit": _commit(),
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _commit() -> str | None:
    """Of the source tree this package runs from; None when it was installed from elsewhere."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
