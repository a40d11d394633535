"""What one change of a classifier's recipe brings: the time of a step, and the accuracy on images held out.

    python benchmarks/record.py steps                        # results/steps-DEVICE.json
    python benchmarks/record.py trials --epochs 36           # results/trials-DEVICE.json, one seed each
    python benchmarks/record.py trials base small+stem       # changes by name, several joined by +
    python benchmarks/record.py steps --data.path PATH       # what follows changes fields of the recipe for all

A step is timed alone on its device. Trials hold 5,000 training images out, and never look at the test images. Twice the
epochs are taken to be worth 2.4 points: `worth` is what a trial would have in the time of the first, so that what is
slower and better can be compared with what is faster and worse.
"""

import argparse
import math
import time
from dataclasses import replace
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
    "stem": {"optim": {"muon_stem": True}},
    "lr6": {"optim": {"lr": 6e-3}},
    "decay2": {"optim": {"muon_decay": 0.2}},
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
    """Milliseconds of a step at the beginning of a run and at its end, where images may be larger."""
    torch._dynamo.reset()
    run, splits = classify.resolve(run)
    engine = Engine(classify.Classification(run, splits, device, Processes()), run, device)
    times, steps = {}, 100 * count
    for where, start in (("first", 0), ("last", steps - count)):
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


def mean_step(run: ClassifierRun, times: dict[str, float]) -> float:
    """Of a whole run, for as many images as a batch of 1,024 has."""
    small = run.augment.small
    return (small * times["first"] + (1 - small) * times["last"]) * 1024 / run.batch


def steps(base: ClassifierRun, names: list[str], count: int) -> None:
    rows: list[dict[str, Any]] = []
    device = pick_device(base.device)
    for name in names:
        run = changed(base, name)
        times = time_step(run, count, device)
        rows.append({"what": name, "mean": mean_step(run, times)} | times)
        rows[-1]["beside"] = rows[-1]["mean"] / rows[0]["mean"]
        print(rows[-1], flush=True)
    ms = Column("ms", 2)
    columns = {"what": Column(), "first": ms, "last": ms, "mean": ms, "beside": Column("×", 2)}
    table = Table("a step at the beginning, at the end, and the mean for 1,024 images", columns, rows)
    keep("steps", {"steps": table}, device, seeds=[base.seed], settings={"recipe": base.recipe, "steps timed": count})


def trials(base: ClassifierRun, names: list[str], epochs: float) -> None:
    rows: list[dict[str, Any]] = []
    for name in names:
        torch._dynamo.reset()
        run = replace(changed(base, name), duration=f"{epochs:g} epochs", checkpoint_every="0 steps")
        result = pellucid.train(run, progress=False)
        row = {"what": name, "held out": result.figures["top1"], "training": result.seconds}
        longer = result.seconds / (rows[0] if rows else row)["training"]
        rows.append(row | {"worth": row["held out"] - DOUBLING * math.log2(longer)})
        print(rows[-1], flush=True)
    share = Column("share", 2)
    columns = {"what": Column(), "held out": share, "training": Column("s", 1), "worth": share}
    table = Table("one seed each, on images held out, and what it is worth in the time of the first", columns, rows)
    settings = {"recipe": base.recipe, "duration": f"{epochs:g} epochs", "images held out": base.data.held_out}
    keep("trials", {"trials": table}, pick_device(base.device), seeds=[base.seed], settings=settings)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["steps", "trials"])
    parser.add_argument("names", nargs="*", metavar="change", help=f"of {', '.join(CHANGES)}, joined by +; or all")
    parser.add_argument("--recipe", default="vit_cifar10_fast")
    parser.add_argument("--epochs", type=float, default=36)
    parser.add_argument("--count", type=int, default=60, help="steps that are timed")
    options, changes = parser.parse_known_args(words)
    recipe = pellucid.recipe(options.recipe)
    assert isinstance(recipe, ClassifierRun)
    recipe = replace(recipe, data=replace(recipe.data, held_out=5000))
    base = tyro.cli(ClassifierRun, default=recipe, args=changes)
    names = options.names or list(CHANGES)
    for name in names:
        changed(base, name)  # a name that isn't known ends it before anything is trained
    torch.set_float32_matmul_precision("high")
    if options.part == "steps":
        steps(base, names, options.count)
    else:
        trials(base, names, options.epochs)


if __name__ == "__main__":
    main()
