"""A captioner's recipe over several seeds: its figures beside its controls, each seed.

    python benchmarks/captioners.py captioner_flickr8k --seeds 3 --out runs --data.name flickr8k/dataset_flickr8k.json
    python benchmarks/captioners.py captioner_scenes --seeds 1 --split validation --optim.lr 0.002      # to choose by

Each seed is trained into a folder and evaluated, as anybody would do it; what follows changes fields of the recipe.
Prints a report and keeps it in results/RECIPE-DEVICE.json, unless it was made to choose by, or changes the recipe.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from report import Column, Table, is_as_given, keep

import pellucid
from pellucid.recipes import RECIPES
from pellucid.runs import CaptionerRun

SCORES = {"cider_d": Column(digits=4), "bleu4": Column(digits=4), "different": Column()}
OF_SCENES = (
    "exact_seen", "exact_unseen", "exact_count", "exact_relation", "pointing", "pointing_rollout", "pointing_chance"
)  # fmt: skip
CONTROLS = ("shuffled", "blank", "fixed", "people")
SECOND_STAGE = "critical"  # the folder of a run within the run


def figures(result: Any, report: Any, folder: Path) -> dict[str, Any]:
    """One seed's row: what the report says of it, CIDEr-D without looking, and the seconds of each stage."""
    scores = report.figures | {
        f"exact_{kind}": share for kind, share in report.figures.get("exact_by_kind", {}).items()
    }
    row = {name: scores[name] for name in (*SCORES, *OF_SCENES) if name in scores}
    row |= {name: scores[name] and scores[name]["cider_d"] for name in CONTROLS}
    second = _seconds(folder / SECOND_STAGE) if (folder / SECOND_STAGE).is_dir() else None
    stages = {"training": result.seconds} if second is None else {"training": _seconds(folder), "second stage": second}
    return row | stages | {"compiling": result.warm_up}


def _seconds(folder: Path) -> float:
    """Of training, by the last evaluation in the log."""
    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["seconds"] for line in lines if "evaluation" in line][-1]


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
    options, changes = parser.parse_known_args()
    base = pellucid.recipe(options.recipe)
    base = tyro.cli(type(base), default=base, args=changes)
    assert isinstance(base, CaptionerRun)
    torch.set_float32_matmul_precision("high")
    rows, settings, device = [], {}, torch.device("cpu")
    for seed in range(options.seeds):
        folder = options.out / f"{options.recipe}-{options.split}-{seed}"
        result = pellucid.train(replace(base, seed=seed), out=folder)
        device = next(result.model.model.parameters()).device
        report = pellucid.load(folder).to(device).evaluate(base.data.name, split=options.split, beam=options.beam)
        rows.append({"seed": seed} | figures(result, report, folder))
        print(rows[-1], flush=True)
        settings = {"split": options.split, "images": report.figures["images"], "beam": options.beam}
        settings |= {"duration": base.duration}
        settings |= {"second stage": base.critical.duration} if "second stage" in rows[-1] else {}
        settings |= {"parameters": sum(p.numel() for p in result.model.model.parameters())}
    if options.split == "test" and is_as_given(changes):
        table = Table("each seed", columns(rows[0]), rows)
        keep(options.recipe, {"seeds": table}, device, seeds=range(options.seeds), settings=settings)
    else:
        print(" ".join(changes), settings)


if __name__ == "__main__":
    main()
