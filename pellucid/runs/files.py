"""Files that are there whole or not at all, and what is said of damaged ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a file beside `path`, which then takes its place at once; what was there survives any failure."""
    part = path.with_name(f"{path.name}.part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=2) + "\n")


def damaged(path: Path, error: Any) -> ValueError:
    return ValueError(f"{path} is damaged or no checkpoint ({error})")
