"""A report on the terminal and in a dated file beside the scripts."""

import datetime
import platform
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent


def keep(name: str, lines: list[str], device: torch.device) -> None:
    """Print the lines under what they were measured on, and keep them as NAME-DATE-DEVICE.md."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown commit"
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    date = datetime.date.today().isoformat()
    about = f"{date}, {hardware}, PyTorch {torch.__version__}, Python {platform.python_version()}, commit {commit}"
    text = "\n".join([f"# {name}", "", about, "", *lines]) + "\n"
    print(text)
    (HERE / f"{name}-{date}-{device.type}.md").write_text(text, encoding="utf-8")
