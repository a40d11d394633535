"""vit-cifar10 fine-tuned on few images of twenty other classes: all weights, LoRA, the head alone, and from scratch.

    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --images 20 --seeds 3
    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --images 100 --seeds 3
    python benchmarks/finetuning.py ../shared/data/tiny-imagenet --ways lora --optim.lr 0.005    # to choose by

The folder holds Tiny ImageNet as parquet files, train-… and validation-…. Twenty of its 200 classes are drawn once for
all, their training images by the seed. The official validation images test. What follows changes fields of the recipe;
then 50 other training images of each class are what counts, and the test images are not looked at.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import tyro
from pyarrow.compute import field
from report import Column, Table, is_as_given, keep

import pellucid
from pellucid.data import ImageSet
from pellucid.data.images import decode
from pellucid.runs import ClassifierRun
from pellucid.training.tuning import count_trained, prepare

CLASSES, SIDE, HELD_OUT = 20, 32, 50
WAYS = {"all": "vit_finetune", "lora": "vit_lora", "head": "vit_probe", "scratch": "vit_finetune"}


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


def make_run(way: str, seed: int, changes: list[str]) -> ClassifierRun:
    base = pellucid.recipe(WAYS[way])
    assert isinstance(base, ClassifierRun)
    run = replace(base, seed=seed, evaluate_every="0 steps", checkpoint_every="0 steps")
    if way == "scratch":
        run = replace(
            run, start=None, model=pellucid.load("vit-cifar10").looks, tune=replace(run.tune, layer_decay=1.0)
        )
    run = tyro.cli(type(run), default=run, args=changes)
    assert isinstance(run, ClassifierRun)
    return run


def measure(way: str, seed: int, train: ImageSet, evaluated: ImageSet, changes: list[str]) -> dict[str, Any]:
    run = make_run(way, seed, changes)
    result = pellucid.train(run, dataset={"train": train, "test": evaluated}, progress=False)
    report = result.model.evaluate(evaluated)
    module = pellucid.load("vit-cifar10").model if run.start else result.model.model
    prepare(module, run)
    moved, parameters = count_trained(module)
    row = {"way": way, "seed": seed, "top1": report.top1, "trained": moved / parameters, "training": result.seconds}
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=20, help="of each class")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options, changes = parser.parse_known_args()
    chosen = sorted(random.Random(0).sample(range(200), CLASSES))
    names = tuple(map(str, chosen))
    training = read(options.folder, "train", chosen)
    test = as_set(read(options.folder, "validation", chosen), names) if is_as_given(changes) else None
    rows = []
    for seed in range(options.seeds):
        train = as_set(draw(training, 0, options.images, seed), names)
        evaluated = test or as_set(draw(training, options.images, HELD_OUT, seed), names)
        rows += [measure(way, seed, train, evaluated, changes) for way in options.ways]
    if test is None:
        return
    columns = {"way": Column(), "seed": Column(), "top1": Column("share", 1), "trained": Column("share", 1)}
    tables = {"ways": Table("each way and seed", columns | {"training": Column("s", 1)}, rows)}
    settings = {"images of each class": options.images, "classes": " ".join(names), "test images": len(test)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    keep(f"finetuning_{options.images}", tables, device, seeds=range(options.seeds), settings=settings)


if __name__ == "__main__":
    main()
