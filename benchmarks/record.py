"""What one change of a classifier's recipe brings: the time of a step, and the accuracy on images held out.

    python benchmarks/record.py steps                        # results/steps-DEVICE.json
    python benchmarks/record.py trials --epochs 36           # results/trials-DEVICE.json, one seed each
    python benchmarks/record.py trials base learned+lr4@48   # changes by name, several joined by +, and other epochs
    python benchmarks/record.py steps --data.path PATH       # what follows changes fields of the recipe for all

A step is timed alone on its device. Trials hold 5,000 training images out, and never look at the test images. Twice the
epochs are taken to be worth 2.4 points: `worth` is what a trial would have in the time of the first, so that what is
slower and better can be compared with what is faster and worse. With --rows a trial that is done is written down at
once and isn't made again: what was cut off goes on, and several processes, each with other names, share one file.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro
from report import Column, Table, keep

import pellucid
from pellucid.config import override
from pellucid.devices import pick_device
from pellucid.processes import Processes
from pellucid.runs import ClassifierRun
from pellucid.training import Engine, classify

CHANGES: dict[str, dict[str, Any]] = {
    "base": {},
    "small": {"augment": {"small": 0.5}},
    "smaller": {"augment": {"small": 0.5, "small_side": 16}},
    "grow": {"augment": {"small": 0.7, "smaller": 0.35}},
    "growless": {"augment": {"small": 0.55, "smaller": 0.25}},
    "growmore": {"augment": {"small": 0.8, "smaller": 0.45}},
    "halving": {"model": {"stem": "conv"}},
    "shallow": {"model": {"depth": 6}},
    "lr4": {"optim": {"lr": 4.5e-3}},
    "muon15": {"optim": {"muon_lr": 0.015}},
    "muon7": {"optim": {"muon_lr": 0.007}},
    "warm5": {"optim": {"warmup": 0.05}},
    "warm25": {"optim": {"warmup": 0.25}},
    "mixhalf": {"augment": {"cutmix": 0.5}},
    "ema": {"optim": {"ema": 0.99}},
    "stem": {"optim": {"muon_stem": True}},
    "large": {"augment": {"small": 0.0}},
    "learned": {"model": {"positions": "learned"}},
    "adamstem": {"optim": {"muon_stem": False}},
    "lr6": {"optim": {"lr": 6e-3}},
    "decay2": {"optim": {"muon_decay": 0.2}},
    "decay3": {"optim": {"muon_decay": 0.3}},
    "small7": {"augment": {"small": 0.7}},
    "half": {"batch": 512},
    "rotary": {"model": {"positions": "rotary"}},
    "sine": {"model": {"positions": "sinusoidal"}},
    "unmixed": {"augment": {"cutmix": 0.0}},
}
DOUBLING = 0.024  # what twice the epochs bring: between 92 % with 40 and 94.4 with 80


def changed(run: ClassifierRun, name: str) -> ClassifierRun:
    """The run with the changes that a name stands for, one after the other."""
    for part in name.split("+"):
        if part not in CHANGES:
            raise ValueError(f"there is no change {part!r}; expected some of {', '.join(CHANGES)}, joined by +")
        run = override(run, CHANGES[part])
    return run


def time_step(run: ClassifierRun, count: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of a step, for each size of images that a run has."""
    torch._dynamo.reset()
    run, splits = classify.resolve(run)
    engine = Engine(classify.Classification(run, splits, device, Processes()), run, device)
    times, steps = {}, 100 * count
    for where, start in starts(run, steps, count).items():
        for timed in (False, True):  # the first time it compiles
            begun = time.perf_counter()
            for step, parts in enumerate(engine.task.batches(start, steps), start):
                if step == start + count:
                    break
                engine._step(step, steps, parts)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if timed:
                times[where] = 1e3 * (time.perf_counter() - begun) / count
    return times


def starts(run: ClassifierRun, steps: int, count: int) -> dict[str, int]:
    """A step in the middle of each part of a run in which images are of one size."""
    smaller, small = run.augment.smaller, run.augment.small
    parts = {"smaller": (0.0, smaller), "small": (smaller, small), "whole": (small, 1.0)}
    return {where: int(steps * (a + b) / 2) - count // 2 for where, (a, b) in parts.items() if b > a}


def mean_step(run: ClassifierRun, times: dict[str, float]) -> float:
    """Of a whole run, for as many images as a batch of 1,024 has."""
    smaller, small = run.augment.smaller, run.augment.small
    shares = {"smaller": smaller, "small": small - smaller, "whole": 1 - small}
    return sum(shares[where] * each for where, each in times.items()) * 1024 / run.batch


def steps(base: ClassifierRun, names: list[str], count: int) -> None:
    rows: list[dict[str, Any]] = []
    device = pick_device(base.device)
    for name in names:
        run = changed(base, name)
        times = time_step(run, count, device)
        rows.append({"what": name, "mean": mean_step(run, times), "smaller": None, "small": None} | times)
        rows[-1]["beside"] = rows[-1]["mean"] / rows[0]["mean"]
        print(rows[-1], flush=True)
    ms = Column("ms", 2)
    columns = {"what": Column(), "smaller": ms, "small": ms, "whole": ms, "mean": ms, "beside": Column("×", 2)}
    table = Table("a step with smaller, small and whole images, and the mean for 1,024 of them", columns, rows)
    keep("steps", {"steps": table}, device, seeds=[base.seed], settings={"recipe": base.recipe, "steps timed": count})


def trials(base: ClassifierRun, names: list[str], epochs: float, path: Path | None) -> None:
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []
    done = {(row["what"], row["epochs"], row["seed"]): row for row in map(json.loads, lines)}
    asked = []
    for name in names:
        parts, _, own = name.partition("@")
        length = float(own or epochs)
        asked.append(key := (name, length, base.seed))
        if key in done:
            continue
        torch._dynamo.reset()
        run = replace(changed(base, parts), duration=f"{length:g} epochs", checkpoint_every="0 steps")
        result = pellucid.train(run, progress=False)
        row = {"what": name, "epochs": length, "seed": base.seed, "held out": result.figures["top1"]}
        done[key] = row | {"training": result.seconds}
        print(done[key], flush=True)
        if path:
            with path.open("a", encoding="utf-8") as file:
                print(json.dumps(done[key]), file=file)
    rows = [done[key] for key in asked]
    for row in rows:
        row["worth"] = row["held out"] - DOUBLING * math.log2(row["training"] / rows[0]["training"])
    share = Column("share", 2)
    columns = {"what": Column(), "epochs": Column(), "seed": Column(), "held out": share}
    columns |= {"training": Column("s", 1), "worth": share}
    table = Table("one seed each, on images held out, and what it is worth in the time of the first", columns, rows)
    settings = {"recipe": base.recipe, "images held out": base.data.held_out}
    keep("trials", {"trials": table}, pick_device(base.device), seeds=[base.seed], settings=settings)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["steps", "trials"])
    parser.add_argument("names", nargs="*", metavar="change", help=f"of {', '.join(CHANGES)}, joined by +; or all")
    parser.add_argument("--recipe", default="vit_cifar10_fast")
    parser.add_argument("--epochs", type=float, default=36)
    parser.add_argument("--rows", type=Path, help="a file of JSON lines, one for each trial that is done")
    parser.add_argument("--count", type=int, default=60, help="steps that are timed")
    options, changes = parser.parse_known_args(words)
    recipe = pellucid.recipe(options.recipe)
    assert isinstance(recipe, ClassifierRun)
    recipe = replace(recipe, data=replace(recipe.data, held_out=5000))
    base = tyro.cli(ClassifierRun, default=recipe, args=changes)
    names = options.names or list(CHANGES)
    for name in names:
        changed(base, name.partition("@")[0])  # a name that isn't known ends it before anything is trained
    torch.set_float32_matmul_precision("high")
    if options.part == "steps":
        steps(base, names, options.count)
    else:
        trials(base, names, options.epochs, options.rows)


if __name__ == "__main__":
    main()
