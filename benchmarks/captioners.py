"""A captioner's recipe over several seeds: its figures and its controls, each seed and their mean.

    python benchmarks/captioners.py captioner_flickr8k --seeds 3 --out runs --data.name flickr8k/dataset_flickr8k.json
    python benchmarks/captioners.py captioner_scenes --seeds 1 --split validation --optim.lr 0.002      # to choose by

Each seed is `pellucid train` and then `pellucid evaluate`, as anybody would run them; what follows changes fields of
the recipe. Prints a report and keeps it as benchmarks/RECIPE-DATE-DEVICE.md, unless it was made to choose by.
"""

import argparse
import contextlib
import io
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from report import keep

from pellucid.cli import main as pellucid
from pellucid.cli.train import train_run
from pellucid.devices import pick_device
from pellucid.recipes import RECIPES, recipe
from pellucid.runs.config import CaptionerRun

FIGURES = ("cider_d", "bleu4", "different")
OF_SCENES = (
    "exact_seen", "exact_unseen", "exact_count", "exact_relation", "pointing", "pointing_rollout", "pointing_chance"
)  # fmt: skip


def figures(run: CaptionerRun, folder: Path, split: str, beam: int) -> dict[str, Any]:
    """What `pellucid evaluate` says of the run in the folder."""
    said = io.StringIO()
    words = ["evaluate", str(folder), "--data", run.data.name, "--split", split, "--beam", str(beam), "--json"]
    with contextlib.redirect_stdout(said):
        code = pellucid(words)
    if code:
        raise SystemExit(code)
    found = json.loads(said.getvalue())
    return found | {f"exact_{kind}": share for kind, share in found.get("exact_by_kind", {}).items()}


def names(told: dict[str, Any]) -> list[str]:
    """The figures to show of what was told; scenes have more of them."""
    return [*FIGURES, *(name for name in OF_SCENES if name in told)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=[name for name in RECIPES if name.startswith("captioner")])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the runs")
    parser.add_argument("--split", choices=["test", "validation"], default="test")
    parser.add_argument("--beam", type=int, default=5)
    asked, changes = parser.parse_known_args()
    base = tyro.cli(CaptionerRun, default=recipe(asked.recipe), args=changes)
    assert isinstance(base, CaptionerRun)
    torch.set_float32_matmul_precision("high")
    device = pick_device(base.device)
    rows, found = [], []
    for seed in range(asked.seeds):
        run, folder = replace(base, seed=seed), asked.out / f"{asked.recipe}-{asked.split}-{seed}"
        result = train_run(run, folder, device)
        told = figures(run, folder, asked.split, asked.beam)
        found.append(told)
        controls = (told[name]["cider_d"] for name in ("shuffled", "blank", "fixed", "people") if told[name])
        cells = [f"{told[name]:.4f}" if isinstance(told[name], float) else str(told[name]) for name in names(told)]
        rows.append(
            f"| {seed} | {' | '.join(cells)} | {', '.join(f'{100 * x:.1f}' for x in controls)} | "
            f"{result.seconds:.1f} s | {result.warm_up:.1f} s |"
        )
        print(rows[-1], flush=True)
    numbers = [name for name in names(found[0]) if all(isinstance(told[name], (int, float)) for told in found)]
    means = ", ".join(f"{name} {statistics.mean(told[name] for told in found):.4f}" for name in numbers)
    then = f", then {base.critical.duration} of self-critical training" if base.second_stage else ""
    lines = [
        f"{base.duration}{then}, beam {asked.beam}, {asked.split} split. Means: {means}.",
        "",
        f"| seed | {' | '.join(names(found[0]))} | CIDEr-D × 100: shuffled, blank, fixed, people | training | "
        "compiling |",
        f"|{' --- |' * (len(names(found[0])) + 4)}",
        *rows,
    ]
    if asked.split == "test":
        keep(asked.recipe, lines, device)
    else:
        print("\n".join([" ".join(changes), *lines]))


if __name__ == "__main__":
    main()
