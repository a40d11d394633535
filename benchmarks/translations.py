"""Translations of Multi30k's test sentences beside what not reading them scores: of the shipped model, or of a recipe.

    python benchmarks/translations.py --data multi30k
    python benchmarks/translations.py --data multi30k --recipe translator_multi30k --pairs en-de de-en en-fr --at-once 9
    python benchmarks/translations.py --data multi30k --recipe translator_small --cores 2 --at-once 3    # on a CPU

What `pellucid evaluate translator-en-de --data multi30k --split SPLIT --json` says; of a recipe after `pellucid train
RECIPE`, for each pair of languages and seed a process of its own, so many of them side by side. A run that has its
figures isn't made again. Keeps results/translations-cpu.json, or results/RECIPE-DEVICE.json.
"""

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from report import Column, Table, keep

import pellucid
from pellucid.recipes import RECIPES

SPLITS = ("test_2016_flickr", "test_2017_flickr")
SCORE = Column(digits=2)
SCORES = dict.fromkeys(
    ("bleu", "low", "high", "chrf", "ter", "length_ratio", "shuffled", "empty", "fixed", "copy"), SCORE
)
OF_A_RUN = {"direction": Column(), "seed": Column()}
TIMES = {"training": Column("s", 1), "compiling": Column("s", 1)}
TOOK = re.compile(r"^(\d+) steps in ([\d.]+) s(?: \(.*\))?(?: after ([\d.]+) s of warming up)?$", re.MULTILINE)
KEPT = re.compile(r"are kept: .*\bbleu ([\d.]+)")
Figures = dict[str, Any]


class Work(NamedTuple):
    """One run: its recipe, its sentences, and where it is kept."""

    recipe: str
    data: str
    direction: str
    seed: int
    folder: Path

    def commands(self) -> dict[str, list[str]]:
        """By the name of what it says: what anybody would type."""
        source, target = self.direction.split("-")
        said = ["train", self.recipe, "--data.name", self.data, "--data.source", source, "--data.target", target]
        train = [*said, "--seed", str(self.seed), "--out", str(self.folder)]
        evaluate = ["evaluate", str(self.folder), "--data", self.data, "--json", "--split"]
        return {"train": train} | {split: [*evaluate, split] for split in SPLITS}


def carry_out(work: Work, places: "SimpleQueue[list[int]]", cores: int, end: float) -> None:
    """Train and evaluate, each in a process, on cores that nobody else has meanwhile; what they say lies beside.

    end: when it must be done, by the clock of `time.monotonic`.
    """
    mine = places.get()
    try:
        for name, words in work.commands().items():
            path = work.folder.with_name(f"{work.folder.name}-{name}.txt")
            if path.is_file():
                continue
            pinned = ["taskset", "-c", ",".join(map(str, mine))] if mine else []
            given = os.environ | ({"OMP_NUM_THREADS": str(cores)} if cores else {})
            command = [*pinned, sys.executable, "-m", "pellucid", *words]
            left = None if math.isinf(end) else max(0.1, end - time.monotonic())
            done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=left)
            if done.returncode:
                raise ValueError(f"{' '.join(words)}: {done.stderr[-1000:]}")
            path.write_text(done.stdout, encoding="utf-8")
            print(f"{work.folder.name}: {name}", flush=True)
    finally:
        places.put(mine)


def read(work: Work) -> tuple[Figures, list[Figures]]:
    """What a run took and scored, and all about each split."""
    told = work.folder.with_name(f"{work.folder.name}-train.txt").read_text(encoding="utf-8")
    took, kept = TOOK.search(told), KEPT.search(told)
    assert took is not None, told
    of = {"direction": work.direction.replace("-", "→"), "seed": work.seed}
    scores = []
    for split in SPLITS:
        said = work.folder.with_name(f"{work.folder.name}-{split}.txt").read_text(encoding="utf-8")
        scores.append(flat(json.loads(said), split) | of)
    row = of | {"bleu": scores[0]["bleu"], "bleu of 2017": scores[1]["bleu"], "shuffled": scores[0]["shuffled"]}
    row |= {"validation": float(kept[1]) if kept else None, "training": float(took[2])}
    return row | {"compiling": float(took[3] or 0)}, scores


def flat(figures: Figures, split: str) -> Figures:
    return figures | {"split": split} | dict(zip(("low", "high"), figures["interval"], strict=True))


def processor() -> str:
    """What the machine calls its cores."""
    cores = Path("/proc/cpuinfo")
    named = (
        re.search(r"^model name\s*:\s*(.+)$", cores.read_text(encoding="utf-8"), re.MULTILINE)
        if cores.exists()
        else None
    )
    return named[1] if named else platform.processor() or "of no name"


def only(rows: Sequence[Figures], columns: dict[str, Column]) -> list[Figures]:
    return [{name: row[name] for name in columns} for row in rows]


def measure_recipe(options: argparse.Namespace) -> None:
    out = options.out / options.recipe
    out.mkdir(parents=True, exist_ok=True)
    places: SimpleQueue[list[int]] = SimpleQueue()
    for place in range(options.at_once):
        places.put(list(range(place * options.cores, (place + 1) * options.cores)))
    works = [
        Work(options.recipe, options.data, direction, seed, out / f"{direction}-{seed}")
        for seed in range(options.seeds)
        for direction in options.pairs
    ]
    end = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.at_once) as pool:
        begun = [pool.submit(carry_out, work, places, options.cores, end) for work in works]
        failed = [each.exception() for each in begun]
    lost = [error for error in failed if error is not None]
    done = [work for work, error in zip(works, failed, strict=True) if error is None]
    if not done:
        raise lost[0]
    done.sort(key=lambda work: options.pairs.index(work.direction))  # the seeds of a direction stay in their order
    seeds, scores = [], []
    for work in done:
        row, rows = read(work)
        seeds.append(row)
        scores += rows
    model = pellucid.load(done[0].folder)
    settings: Figures = {"split": SPLITS[0], "sentences": scores[0]["sentences"], "beam": scores[0]["beam"]}
    settings |= {"duration": pellucid.recipe(options.recipe).duration, "signature": scores[0]["signature"]}
    settings |= {"parameters": sum(p.numel() for p in model.model.parameters()), "side by side": options.at_once}
    columns = OF_A_RUN | dict.fromkeys(("bleu", "bleu of 2017", "shuffled", "validation"), SCORE) | TIMES
    tables = {
        "seeds": Table("each direction and seed, sacreBLEU with case", columns, only(seeds, columns)),
        "scores": Table("and what not reading scores", COLUMNS, only(scores, COLUMNS)),
    }
    if options.cores:
        torch.set_num_threads(options.cores)
        options.notes += f" {options.cores} of {os.cpu_count()} cores for each run, {processor()}."
    notes = options.notes + (f" {len(lost)} of {len(works)} runs failed and are left out." if lost else "")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    keep(options.recipe, tables, device, seeds=range(options.seeds), settings=settings, libraries=("sacrebleu",),
         notes=notes.strip())  # fmt: skip
    for error in lost:
        print(f"failed: {error}", file=sys.stderr)


COLUMNS = OF_A_RUN | {"split": Column()} | SCORES


def measure_shipped(options: argparse.Namespace) -> None:
    model = pellucid.load(options.model)
    found = [flat(model.evaluate(options.data, split).figures, split) for split in SPLITS]
    columns = {"split": Column(), "sentences": Column()} | SCORES
    settings = {"model": options.model} | {name: found[0][name] for name in ("direction", "beam", "signature")}
    title = "sacreBLEU's scores of its translations, and of what was made without reading the source"
    table = Table(title, columns, only(found, columns))
    keep("translations", {"scores": table}, torch.device("cpu"), settings=settings, libraries=("sacrebleu",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="Multi30k's folder")
    parser.add_argument("--model", default="translator-en-de")
    parser.add_argument("--recipe", choices=[name for name in RECIPES if name.startswith("translator")])
    parser.add_argument("--pairs", nargs="+", default=["en-de"], help="of languages, as en-de")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--cores", type=int, default=0, help="that each run has for itself; 0 leaves it to the machine")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which runs that go on are left out")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the runs")
    parser.add_argument("--notes", default="", help="kept with the figures")
    options = parser.parse_args()
    if options.recipe is None:
        measure_shipped(options)
    else:
        measure_recipe(options)


if __name__ == "__main__":
    main()
