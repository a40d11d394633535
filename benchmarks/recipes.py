"""A classifier's recipe over several seeds: accuracy, seconds of training and of compiling, each seed.

    python benchmarks/recipes.py vit_cifar10_fast --seeds 5 --out runs
    python benchmarks/recipes.py vit_cifar10_fast --seeds 1 --data.held-out 5000 --optim.lr 0.006    # to choose by
    python benchmarks/recipes.py vit_tiny_imagenet --seeds 3 --data.name hf:tiny-imagenet
    python benchmarks/recipes.py reverse --seeds 3

What follows changes fields of the recipe, as with `pellucid train`; then the images held out are what counts, and the
test images are not looked at. Prints a report and keeps it in results/RECIPE-DEVICE.json, unless something was changed.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from report import Column, Table, is_as_given, keep

import pellucid
from pellucid.recipes import RECIPES
from pellucid.runs import ClassifierRun
from pellucid.training.reverse import reverse

SECONDS = Column("s", 1)
TESTS = {"vit_tiny_imagenet": "validation"}  # the labels of its own test images were never published


def classify(name: str, seeds: range, out: Path, changes: list[str]) -> None:
    base = pellucid.recipe(name)
    base = tyro.cli(type(base), default=base, args=changes)
    assert isinstance(base, ClassifierRun)
    rows: list[dict[str, Any]] = []
    columns = {"seed": Column(), "top1": Column("share", 2)}
    columns |= {"held out": Column("share", 2)} if base.data.held_out else {}
    columns |= {"training": SECONDS, "compiling": SECONDS, "rate": Column("images/s")}
    settings: dict[str, Any] = {"split": TESTS.get(name, "test"), "duration": base.duration}
    device = torch.device("cpu")
    for seed in seeds:
        torch._dynamo.reset()
        result = pellucid.train(replace(base, seed=seed), out=out / f"{name}-{seed}")
        row = {"seed": seed, "top1": None, "held out": result.figures["top1"], "training": result.seconds}
        row |= {"compiling": result.warm_up, "rate": result.images / result.seconds}
        if is_as_given(changes):
            report = result.model.evaluate(base.data, settings["split"])
            row["top1"] = report.top1
            settings |= {"images": len(report.labels), "parameters": _parameters(result.model.model)}
        device = next(result.model.model.parameters()).device
        rows.append(row)
        print(row, flush=True)
    if is_as_given(changes):
        keep(name, {"seeds": Table("each seed", columns, rows)}, device, seeds=seeds, settings=settings)
    else:
        print(" ".join(changes))


def reverse_digits(seeds: range) -> None:
    results = [reverse(seed=seed) for seed in seeds]
    rows = [
        {"seed": seed, "exact": result.exact, "training": result.seconds}
        for seed, result in zip(seeds, results, strict=True)
    ]
    settings = {"sequences": results[0].tested, "duration": "600 steps", "parameters": _parameters(results[0].model)}
    table = Table("each seed", {"seed": Column(), "exact": Column("share", 2), "training": SECONDS}, rows)
    keep("reverse", {"seeds": table}, torch.device("cpu"), seeds=seeds, settings=settings)


def _parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=[*(name for name in RECIPES if name.startswith("vit")), "reverse"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the runs")
    options, changes = parser.parse_known_args()
    seeds = range(options.first, options.first + options.seeds)
    torch.set_float32_matmul_precision("high")
    if options.recipe == "reverse":
        reverse_digits(seeds)
    else:
        classify(options.recipe, seeds, options.out, changes)


if __name__ == "__main__":
    main()
