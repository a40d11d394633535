"""Error and peak memory of every summary at 8,192 tokens, against float64 and beside building the map.

tests/measure_memory.py measures, in a process of its own; on CUDA, where kernels run, for bfloat16 too (--device cuda).
Prints a report and keeps it in results/summaries-DEVICE.json.
"""

import argparse
import json
import subprocess
import sys

import torch
from report import Column, Table, keep
from tables import ROOT


def measure(device: str, precision: str) -> Table:
    command = [sys.executable, str(ROOT / "tests" / "measure_memory.py"), device, precision]
    measured = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    rows = [
        {"what": "building the map" if name == "map" else name, "error": one.get("error"), "memory": one["megabytes"]}
        for name, one in measured.items()
    ]
    columns = {"what": Column(), "error": Column(), "memory": Column("MB")}
    return Table(f"largest error against float64, and peak memory, of q, k and v in {precision}", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = parser.parse_args().device
    tables = {"worst": measure(device, "float32")}
    if device == "cuda":
        tables["bfloat16"] = measure(device, "bfloat16")
    settings = {"tokens": 8192, "heads": 2, "width of a head": 64}
    keep("summaries", tables, torch.device(device), seeds=[0], settings=settings)


if __name__ == "__main__":
    main()
