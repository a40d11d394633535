"""vit-cifar10 fine-tuned on few images of twenty other classes: all weights, LoRA, the head alone, and from scratch.

    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --images 20 100 --seeds 3
    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --images 20 --seeds 3 --workers 3 --cores 2   # a CPU
    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --choose           # which LoRA, by held-out images
    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --ways lora --optim.lr 0.005    # one other, by them

The folder holds Tiny ImageNet as parquet files, train-… and validation-…. Twenty of its 200 classes are drawn once for
all, their training images by the seed. The official validation images test: results/finetuning-DEVICE.json. Who chooses
or changes fields of a recipe doesn't see them: 50 other training images of each class are what counts then, and
choosing keeps results/finetuning_choice-DEVICE.json. With --rows a training that is done is written down at once, and
isn't made again.
"""

import argparse
import json
import os
import random
import shlex
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import tyro
from pyarrow.compute import field
from report import Column, Table, is_as_given, keep
from torch import multiprocessing

import pellucid
from pellucid.data import ImageSet
from pellucid.data.images import decode
from pellucid.runs import ClassifierRun
from pellucid.training.tuning import count_trained, prepare

CLASSES, SIDE, HELD_OUT = 20, 32, 50
WAYS = {"all": "vit_finetune", "lora": "vit_lora", "head": "vit_probe", "scratch": "vit_finetune"}
ATTENTION, FEED_FORWARD = "q k v out", "inner outer"
RATES = (5e-4, 1e-3, 2e-3, 3e-3, 6e-3)
DECAY, LONGER = "--tune.layer-decay 0.8", "--duration '80 epochs'"
CHOICES = {  # of LoRA, none moving more than a twentieth of the parameters: rank, matrices, and what else changes
    f"rank {rank}: {adapt}; rate {rate:g}{', ' if more else ''}{more}": (
        f"--tune.rank {rank} --tune.adapt {adapt} --optim.lr {rate} {more}"
    )
    for rank, adapt, rates, mores in (
        (16, ATTENTION, RATES, ("", DECAY)),
        (8, f"{ATTENTION} {FEED_FORWARD}", RATES, ("", DECAY)),
        (8, f"{ATTENTION} {FEED_FORWARD}", (1e-3, 2e-3), (LONGER, f"{DECAY} {LONGER}", "--optim.weight-decay 0.05")),
        (8, f"{ATTENTION} {FEED_FORWARD}", (5e-4, 1e-3), ("--tune.alpha 32",)),
        (8, f"{ATTENTION} {FEED_FORWARD}", (2e-3,), ("--tune.beside norms tokens",)),
        (16, FEED_FORWARD, (1e-3, 2e-3), ("",)),
    )
    for rate in rates
    for more in mores
}


@dataclass(frozen=True)
class Trial:
    """One training, in whichever process. changes: of the recipe."""

    name: str
    way: str
    images: int
    seed: int
    train: ImageSet
    evaluated: ImageSet
    changes: tuple[str, ...] = ()


def read(folder: Path, split: str, chosen: Sequence[int]) -> dict[int, list[bytes]]:
    """The encoded images of some classes, in the order of the files."""
    images: dict[int, list[bytes]] = {label: [] for label in chosen}
    for path in sorted(folder.glob(f"{split}-*.parquet")):
        table = pq.read_table(path)
        table = table.filter(field("label").isin(list(chosen)))
        for image, label in zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True):
            images[label].append(image["bytes"])
    return images


def as_set(images: dict[int, list[bytes]], names: tuple[str, ...]) -> ImageSet:
    pixels = [decode(BytesIO(each), (SIDE, SIDE)) for part in images.values() for each in part]
    labels = [number for number, part in enumerate(images.values()) for _ in part]
    return ImageSet(torch.stack(pixels), torch.tensor(labels), names)


def draw(images: dict[int, list[bytes]], first: int, count: int, seed: int) -> dict[int, list[bytes]]:
    """So many images of each class, from a place on, in an order that the seed draws."""
    return {label: random.Random(seed).sample(part, len(part))[first : first + count] for label, part in images.items()}


def make_run(way: str, seed: int, changes: Sequence[str]) -> ClassifierRun:
    base = pellucid.recipe(WAYS[way])
    assert isinstance(base, ClassifierRun)
    run = replace(base, seed=seed, evaluate_every="0 steps", checkpoint_every="0 steps")
    if way == "scratch":
        run = replace(
            run, start=None, model=pellucid.load("vit-cifar10").looks, tune=replace(run.tune, layer_decay=1.0)
        )
    if not torch.cuda.is_available():
        run = replace(run, precision="float32")
    run = tyro.cli(type(run), default=run, args=list(changes))
    assert isinstance(run, ClassifierRun)
    return run


def measure(trial: Trial) -> dict[str, Any]:
    run = make_run(trial.way, trial.seed, trial.changes)
    result = pellucid.train(run, dataset={"train": trial.train, "test": trial.evaluated}, progress=False)
    report = result.model.evaluate(trial.evaluated)
    module = pellucid.load("vit-cifar10").model if run.start else result.model.model
    prepare(module, run)
    moved, parameters = count_trained(module)
    row = told(trial) | {"top1": report.top1}
    return row | {"trained": moved / parameters, "training": result.seconds}


def carry_out(trials: Sequence[Trial], pool: ProcessPoolExecutor, path: Path | None) -> list[dict[str, Any]]:
    """A row for each trial, in their order: those of the file, and the others, which are added to it as they end."""
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.is_file() else []
    done = {key(row): row for row in map(json.loads, lines)}
    left = [trial for trial in trials if key(told(trial)) not in done]
    for future in as_completed([pool.submit(measure, trial) for trial in left]):
        row = future.result()
        done[key(row)] = row
        print(row, flush=True)
        if path:
            with path.open("a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
    return [done[key(told(trial))] for trial in trials]


def told(trial: Trial) -> dict[str, Any]:
    """What tells a training from the others that one file may hold."""
    row = {"way": trial.name, "images": trial.images, "seed": trial.seed}
    return row | {"changes": " ".join(trial.changes), "evaluated": len(trial.evaluated)}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("way", "images", "seed", "changes", "evaluated"))


def settle(cores: int, numbers: Any) -> None:
    """A process's own cores, the next ones that are free, and as many threads."""
    if cores:
        mine = sorted(os.sched_getaffinity(0))[(first := cores * numbers.get()) : first + cores]
        os.sched_setaffinity(0, mine)
        torch.set_num_threads(cores)


@contextmanager
def side_by_side(workers: int, cores: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(workers):
        numbers.put(number)
    with ProcessPoolExecutor(workers, context, settle, (cores, numbers)) as pool:
        yield pool


def gather(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each way and number of images: every seed's figure, and their means."""
    gathered = []
    for count in sorted({row["images"] for row in rows}):
        for name in names:
            alike = [row for row in rows if (row["way"], row["images"]) == (name, count)]
            if not alike:
                continue
            means = {what: statistics.fmean(row[what] for row in alike) for what in ("top1", "trained", "training")}
            seeds = " ".join(f"{100 * row['top1']:.1f}" for row in alike)
            gathered.append({"way": name, "images": count, "seeds": seeds} | means)
    return gathered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[20], help="of each class")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--choose", action="store_true", help="try every LoRA of a list on held-out images")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines, one for each training that is done")
    parser.add_argument("--workers", type=int, default=1, help="trainings side by side")
    parser.add_argument("--cores", type=int, default=0, help="that each of them has for itself")
    options, changes = parser.parse_known_args()
    chosen = sorted(random.Random(0).sample(range(200), CLASSES))
    names = tuple(map(str, chosen))
    training = read(options.folder, "train", chosen)
    is_kept = is_as_given(changes) and not options.choose
    test = as_set(read(options.folder, "validation", chosen), names) if is_kept else None
    tried = {way: (way, changes) for way in options.ways}
    if options.choose:
        tried = {"all": ("all", changes)}
        tried |= {name: ("lora", [*shlex.split(choice), *changes]) for name, choice in CHOICES.items()}
    trials = []
    for count in sorted(options.images, reverse=True):  # the longest first
        for seed in range(options.seeds):
            train = as_set(draw(training, 0, count, seed), names)
            evaluated = test or as_set(draw(training, count, HELD_OUT, seed), names)
            trials += [
                Trial(name, way, count, seed, train, evaluated, tuple(more)) for name, (way, more) in tried.items()
            ]
    with side_by_side(options.workers, options.cores) as pool:
        rows = gather(carry_out(trials, pool, options.rows), list(tried))
    if not is_kept and not options.choose:
        return
    columns = {"way": Column(), "images": Column(), "seeds": Column(), "top1": Column("share", 1)}
    columns |= {"trained": Column("share", 1), "training": Column("s", 1)}
    settings = {
        "images": "of each class, for training",
        "classes": " ".join(names),
        "evaluated on": f"{CLASSES * HELD_OUT} {'held-out training' if test is None else 'test'} images",
        "side by side": options.workers,
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.cores:
        torch.set_num_threads(options.cores)
    title = "vit-cifar10 on twenty classes of Tiny ImageNet: each seed's top-1 in %, the mean, what moves"
    tables = {"ways": Table(title, columns, rows)}
    keep(f"finetuning{'_choice' * options.choose}", tables, device, seeds=range(options.seeds), settings=settings)


if __name__ == "__main__":
    main()
