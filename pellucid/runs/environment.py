"""Versions, commit and hardware: what a figure needs beside it."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def describe_environment() -> dict[str, Any]:
    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": sys.version.split()[0],
        "packages": packages,
        "commit": find_commit(),
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def find_commit() -> str | None:
    """Of the source tree this package runs from; None when it was installed from elsewhere."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
