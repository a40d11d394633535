"""What was measured, as numbers: results/NAME-DEVICE.json, overwritten when it is measured again (git has the history).

A file says when, where, with what and by which command it was made; its tables are rows of numbers under named columns.
benchmarks/tables.py makes everything that people read from them.
"""

import datetime
import json
import math
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from tables import ROOT, report

PLACES = {"--data.name", "--data.path", "--data.images", "--device"}


@dataclass(frozen=True)
class Column:
    """What a column's numbers are, and how many digits of them mean something. unit: "share" is shown in percent."""

    unit: str = ""
    digits: int = 0
    signed: bool = False

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}

    def rounded(self, value: Any) -> Any:
        """To two digits more than mean something; what is no number stays, and what came out as none is None."""
        if isinstance(value, (list, tuple)):
            return [self.rounded(part) for part in value]
        if not isinstance(value, float):
            return value
        digits = self.digits + (4 if self.unit == "share" else 2)
        return None if math.isnan(value) else round(value, digits) or float(f"{value:.3g}")


@dataclass(frozen=True)
class Table:
    """Rows of numbers and names; None where nothing was measured, [mean, low, high] where there is an interval."""

    title: str
    columns: dict[str, Column]
    rows: list[dict[str, Any]]

    def entry(self) -> dict[str, Any]:
        columns = {name: column.entry() for name, column in self.columns.items()}
        rows = [{name: column.rounded(row[name]) for name, column in self.columns.items()} for row in self.rows]
        return {"title": self.title, "columns": columns, "rows": rows}


def keep(
    name: str,
    tables: dict[str, Table],
    device: torch.device,
    *,
    seeds: Iterable[int] | None = None,
    settings: dict[str, Any] | None = None,
    notes: str = "",
    libraries: Iterable[str] = (),
    dry: bool = False,
) -> None:
    """Print the tables under what they were measured on, and keep the numbers, unless it is a dry run.

    libraries: whose versions count, too.
    """
    result = {
        "name": name,
        "device": device.type,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "versions": {"Python": platform.python_version(), "PyTorch": torch.__version__}
        | {library: _version(library) for library in libraries},
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(without_places, sys.argv[1:])]),
        "seeds": None if seeds is None else list(seeds),
        "settings": settings or {},
        "notes": notes,
        "tables": {key: table.entry() for key, table in tables.items()},
    }
    print(report(result))
    if dry:
        return
    path = ROOT / "results" / f"{name}-{device.type}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(in_lines(result) + "\n", encoding="utf-8")
    print(f"\nkept as {path}; python benchmarks/tables.py brings it into README, docs and docstrings")


def is_as_given(changes: Iterable[str]) -> bool:
    """Whether changes of a recipe say only where things are: then what is measured is the recipe."""
    return {word for word in changes if word.startswith("--")} <= PLACES


def without_places(word: str) -> str:
    """An argument with PATH for each path from the root: a result names no folder of a machine.

    >>> without_places("pilot: --start /home/me/runs/vit --data.size 128 128")
    'pilot: --start PATH --data.size 128 128'
    """
    return re.sub(r"(?<![^\s=:])/[^\s]*", "PATH", word)


def in_lines(value: Any, indent: int = 0) -> str:
    """JSON with one line for each thing that holds no other things: a row is a line, and so is a change of it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(part, dict) for part in parts):
        return json.dumps(value, ensure_ascii=False)
    inner = "  " * (indent + 1)
    if isinstance(value, list):
        lines = [inner + in_lines(part, indent + 1) for part in value]
        return "[\n" + ",\n".join(lines) + "\n" + "  " * indent + "]"
    lines = [f"{inner}{json.dumps(key)}: {in_lines(part, indent + 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + "  " * indent + "}"


def _commit() -> str | None:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
