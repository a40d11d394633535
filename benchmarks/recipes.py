"""A recipe over several seeds: accuracy, seconds of training and of compiling, each seed and their mean.

    python benchmarks/recipes.py vit_cifar10_fast --seeds 5
    python benchmarks/recipes.py vit_cifar10_fast --seeds 1 --data.held-out 5000 --optim.lr 0.006    # to choose by

What follows the seeds changes fields of the recipe, as with `pellucid train`; with images held out, those are what
counts, and the test images are not looked at. Prints a report and keeps it as benchmarks/RECIPE-DATE-DEVICE.md, unless
something was changed. --save writes the first seed's weights in half precision.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import tyro
from report import keep

from pellucid.data.loader import ShuffledOrder
from pellucid.devices import pick_device
from pellucid.models import ViT
from pellucid.recipes import RECIPES, recipe
from pellucid.training import Engine
from pellucid.training.classify import Classification, resolved
from pellucid.training.distributed import Processes


def begun_again(task: Classification, run: ClassifierRun) -> Classification:
    """The same task from the weights and in the order of another seed; what was compiled for it stays."""
    torch.manual_seed(run.seed)
    task.model.load_state_dict(ViT(run.model).state_dict())
    task.run = run
    task.seed.fill_(run.seed)
    task.loader.order = ShuffledOrder(task.epoch_size, run.seed, task.device)
    return task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=[name for name in RECIPES if name.startswith("vit")])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--save", type=Path, help="folder for the first seed's weights")
    asked, changes = parser.parse_known_args()
    run = tyro.cli(ClassifierRun, default=recipe(asked.recipe), args=changes)
    assert isinstance(run, ClassifierRun)
    torch.set_float32_matmul_precision("high")
    device = pick_device(run.device)
    run, splits = resolved(run)
    task = Classification(run, splits, device, Processes())
    count = sum(p.numel() for p in task.model.parameters())
    rows, scores = [], []
    for seed in range(asked.first, asked.first + asked.seeds):
        wall = time.perf_counter()
        seeded = replace(run, seed=seed)
        result = Engine(begun_again(task, seeded), seeded, device).fit()
        top1, rate = result.figures["top1"], result.images / result.seconds
        rows.append(f"| {seed} | {top1:.2%} | {result.seconds:.1f} s | {result.warm_up:.1f} s | {rate:,.0f} |")
        scores.append(top1)
        print(rows[-1], f"{time.perf_counter() - wall:.0f} s in all", flush=True)
        if seed == asked.first and asked.save:
            ViT.half(task.model).save_pretrained(asked.save)
            task.model.float()
    held = f"{len(task.held_out):,} {'validation' if run.data.held_out else 'test'} images"
    spread = f" ± {statistics.stdev(scores):.2%} (standard deviation)" if len(scores) > 1 else ""
    lines = [
        f"{run.duration}, {count:,} parameters; top-1 of {held}: mean {statistics.mean(scores):.2%}{spread}.",
        "",
        "| seed | top-1 | training | compiling | images/s |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    if changes:
        print("\n".join([" ".join(changes), *lines]))
    else:
        keep(asked.recipe, lines, device)


if __name__ == "__main__":
    main()
