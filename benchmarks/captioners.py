"""A captioner's recipe over several seeds: its figures beside its controls, each seed.

    python benchmarks/captioners.py captioner_flickr8k --seeds 3 --out runs --data.name flickr8k/dataset_flickr8k.json
    python benchmarks/captioners.py captioner_scenes --seeds 1 --split validation --optim.lr 0.002      # to choose by
    python benchmarks/captioners.py captioner_flickr8k --at-once 3 --name captioner_taught --start runs/taught …

Each seed is trained into a folder and evaluated, as anybody would do it; what follows changes fields of the recipe.
Prints a report and keeps it in results/RECIPE-DEVICE.json, unless it was made to choose by, or changes the recipe and
has no other --name. Seeds whose run is there already are only evaluated. Side by side (--at-once), each seed is trained
by a process of its own, and takes longer than alone.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from report import Column, Table, is_as_given, keep

import pellucid
from pellucid.devices import pick_device
from pellucid.recipes import RECIPES
from pellucid.runs import CaptionerRun, RunFolder

SCORES = {"cider_d": Column(digits=4), "bleu4": Column(digits=4), "different": Column()}
OF_SCENES = (
    "exact_seen", "exact_unseen", "exact_count", "exact_relation", "pointing", "pointing_rollout", "pointing_chance"
)  # fmt: skip
CONTROLS = ("shuffled", "blank", "fixed", "people")
SECOND_STAGE = "critical"  # the folder of a run within the run


def figures(report: Any, folder: Path, warm_up: float | None) -> dict[str, Any]:
    """One seed's row: what the report says of it, CIDEr-D without looking, and the seconds of each stage."""
    scores = report.figures | {
        f"exact_{kind}": share for kind, share in report.figures.get("exact_by_kind", {}).items()
    }
    row = {name: scores[name] for name in (*SCORES, *OF_SCENES) if name in scores}
    row |= {name: scores[name] and scores[name]["cider_d"] for name in CONTROLS}
    stages = {"training": _seconds(folder)}
    stages |= {"second stage": _seconds(folder / SECOND_STAGE)} if (folder / SECOND_STAGE).is_dir() else {}
    return row | stages | {"compiling": warm_up}


def _seconds(folder: Path) -> float:
    """Of training, by the last evaluation in the log."""
    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["seconds"] for line in lines if "evaluation" in line][-1]


def train_beside(recipe: str, seeds: int, at_once: int, changes: list[str], place: Any) -> None:
    """Train the seeds by the command that anybody would use, so many of them side by side."""

    def train(seed: int) -> None:
        command = [sys.executable, "-m", "pellucid", "train", recipe, *changes, "--seed", str(seed)]
        place(seed).parent.mkdir(parents=True, exist_ok=True)
        with place(seed).with_suffix(".txt").open("w") as said:
            subprocess.run([*command, "--out", str(place(seed))], stdout=said, stderr=subprocess.STDOUT, check=False)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(train, [seed for seed in range(seeds) if not is_done(place(seed))]))


def is_done(folder: Path) -> bool:
    """Whether its last stage has been evaluated at its end."""
    run = RunFolder(folder)
    if not run.config_file.is_file():
        return False
    config = run.run()
    assert isinstance(config, CaptionerRun)
    last = run if config.second_stage is None else run.second_stage
    plan = last.plan()
    return plan is not None and last.log_file.is_file() and f'"step": {plan.steps},' in last.log_file.read_text()


def columns(row: dict[str, Any]) -> dict[str, Column]:
    known = SCORES | {name: Column("share", 2) for name in OF_SCENES} | {name: Column(digits=3) for name in CONTROLS}
    known |= {name: Column("s", 1) for name in ("training", "second stage", "compiling")}
    return {name: known.get(name, Column()) for name in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=[name for name in RECIPES if name.startswith("captioner")])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the runs")
    parser.add_argument("--split", choices=["test", "validation"], default="test")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1, help="seeds that are trained side by side")
    parser.add_argument("--name", help="of the file in results/, for changes of the recipe that are to be kept")
    parser.add_argument("--notes", default="")
    options, changes = parser.parse_known_args()
    base = pellucid.recipe(options.recipe)
    base = tyro.cli(type(base), default=base, args=changes)
    assert isinstance(base, CaptionerRun)
    torch.set_float32_matmul_precision("high")
    rows, settings, device = [], {}, pick_device("auto")

    def place(seed: int) -> Path:
        return options.out / f"{options.name or options.recipe}-{options.split}-{seed}"

    if options.at_once > 1:
        train_beside(options.recipe, options.seeds, options.at_once, changes, place)
    for seed in range(options.seeds):
        warm_up = None
        if not is_done(place(seed)):
            if options.at_once > 1:
                print(f"seed {seed} came to no end: {place(seed).with_suffix('.txt')}", flush=True)
                continue
            warm_up = pellucid.train(replace(base, seed=seed), out=place(seed)).warm_up
        model = pellucid.load(place(seed), device=device)
        report = model.evaluate(base.data.name, split=options.split, beam=options.beam, path=base.data.images)
        rows.append({"seed": seed} | figures(report, place(seed), warm_up))
        print(rows[-1], flush=True)
        settings = {"split": options.split, "images": report.figures["images"], "beam": options.beam}
        settings |= {"duration": base.duration}
        settings |= {"second stage": base.critical.duration} if "second stage" in rows[-1] else {}
        settings |= {"parameters": sum(p.numel() for p in model.model.parameters())}
    if rows and options.split == "test" and (options.name or is_as_given(changes)):
        table = Table("each seed", columns(rows[0]), rows)
        seeds = [row["seed"] for row in rows]
        name = options.name or options.recipe
        keep(name, {"seeds": table}, device, seeds=seeds, settings=settings, notes=options.notes)
    else:
        print(" ".join(changes), settings)


if __name__ == "__main__":
    main()
