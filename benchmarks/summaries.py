"""Error and peak memory of every summary at 8,192 tokens, against float64 and beside building the map.

tests/measure_memory.py measures, in a process of its own. Prints a report and keeps it in results/summaries-cpu.json.
"""

import json
import subprocess
import sys

import torch
from report import Column, Table, keep
from tables import ROOT


def main() -> None:
    command = [sys.executable, str(ROOT / "tests" / "measure_memory.py")]
    measured = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    rows = [
        {"what": "building the map" if name == "map" else name, "error": one.get("error"), "memory": one["megabytes"]}
        for name, one in measured.items()
    ]
    columns = {"what": Column(), "error": Column(), "memory": Column("MB")}
    table = Table("largest error against float64, and peak memory", columns, rows)
    settings = {"tokens": 8192, "heads": 2, "width of a head": 64}
    keep("summaries", {"worst": table}, torch.device("cpu"), seeds=[0], settings=settings)


if __name__ == "__main__":
    main()
