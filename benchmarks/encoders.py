"""Captioners that differ in what their encoder begins as, or in one thing else, on validation images.

    python benchmarks/encoders.py --data flickr8k/dataset_flickr8k.json --all "--duration '25 epochs'" \\
        --variant "from CIFAR-10: --start vit-cifar10" --variant "from scratch: --start None"

Each variant is captioner_flickr8k with its changes, trained as `pellucid train` does, so many at once; its figures are
those of the run's last evaluation, on the validation images. Test images are never read. Keeps what is there after each
one in results/encoders-DEVICE.json (or under another --name), so that an end by the clock loses nothing.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from report import Column, Table, keep, without_places

from pellucid.runs import CaptionerRun, RunFolder

COLUMNS = {
    "variant": Column(),
    "size": Column(),
    "tokens": Column(),
    "epochs": Column(),
    "cider_d": Column(digits=3),
    "bleu4": Column(digits=3),
    "loss": Column(digits=3),
    "own captions": Column(digits=3),
    "training": Column("s", 1),
    "second stage": Column("s", 1),
}


def train(name: str, changes: list[str], data: str, out: Path, limit: float) -> dict[str, Any]:
    """One variant, trained by the command that anybody would use; what it printed stands beside its run."""
    folder = out / name.replace(" ", "-")
    command = [sys.executable, "-m", "pellucid", "train", "captioner_flickr8k", "--data.name", data, *changes]
    out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with (out / f"{folder.name}.txt").open("w") as said:
        try:
            done = subprocess.run(
                [*command, "--out", str(folder)], stdout=said, stderr=subprocess.STDOUT, timeout=limit, check=False
            )
            problem = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not done after {limit:.0f} s"
    row = read(name, folder)
    print(json.dumps(row | {"wall": round(time.perf_counter() - begun, 1), "problem": problem}), flush=True)
    return row


def read(name: str, folder: Path) -> dict[str, Any]:
    """What the folder of a run says, however far it came."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"variant": name}
    home = RunFolder(folder)
    if not home.config_file.is_file():
        return row
    run = home.run()
    assert isinstance(run, CaptionerRun)
    height, width = run.data.size
    row |= {
        "size": f"{height}×{width}",
        "tokens": height // run.model.encoder.patch[0] * (width // run.model.encoder.patch[1]),
    }
    first, second = (_evaluations(each.log_file) for each in (home, home.second_stage))
    if first:
        row |= {name: first[-1]["evaluation"][name] for name in ("cider_d", "bleu4", "loss")}
        row |= {"epochs": first[-1]["epoch"], "training": first[-1]["seconds"]}
    if second:
        row |= {"own captions": max(line["evaluation"]["cider_d"] for line in second)}
        row |= {"second stage": second[-1]["seconds"]}
    return row


def _evaluations(log: Path) -> list[dict[str, Any]]:
    if not log.is_file():
        return []
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "evaluation" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="path of Flickr8k's captions")
    parser.add_argument("--variant", action="append", required=True, help="NAME: changes of the recipe")
    parser.add_argument("--all", default="", help="changes that all of them have")
    parser.add_argument("--at-once", type=int, default=1, help="how many are trained side by side")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that one may take")
    parser.add_argument("--out", type=Path, default=Path("runs/encoders"), help="folder for the runs")
    parser.add_argument("--name", default="encoders", help="of the file in results/")
    parser.add_argument("--notes", default="")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    variants = [tuple(map(str.strip, text.split(":", 1))) for text in options.variant]
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(options.at_once) as pool:
        jobs = [
            pool.submit(
                train, name, shlex.split(options.all) + shlex.split(changes), options.data, options.out, options.limit
            )
            for name, changes in variants
        ]
        for job in as_completed(jobs):
            row = job.result()
            rows[row["variant"]] = row
            table = Table(
                "what was tried, on the validation images",
                COLUMNS,
                [rows[name] for name, _ in variants if name in rows],
            )
            settings = {
                "split": "validation",
                "seed": 0,
                "at once": options.at_once,
                "all": without_places(options.all),
            }
            keep(options.name, {"variants": table}, device, settings=settings, notes=options.notes)


if __name__ == "__main__":
    main()
