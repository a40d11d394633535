"""Hostile inputs in all formats that are opened, each within 1 GB and 10 s: `make fuzz` runs 100,000 of them.

    .venv/bin/python tests/fuzz.py --inputs 100000 --seed 1 --workers 8

It can be interrupted: the next call with the same seed goes on. An input is known by its format, the seed and its
index; what fails is kept in .fuzz/failures, under that name.
"""

import argparse
import json
import math
import queue
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import fuzz_child
import fuzz_formats

ROOT = Path(__file__).parents[1] / ".fuzz"
TOGETHER = 100  # inputs of a batch


class Batch(NamedTuple):
    format: str
    first: int
    count: int


class Failure(NamedTuple):
    format: str
    seed: int
    index: int
    failed: str


class Result(NamedTuple):
    """What came of a batch: how many inputs were read, those that failed, and the most that one of them took."""

    batch: Batch
    read: int
    failures: list[Failure]
    seconds: float
    megabytes: float


def plan(inputs: int) -> list[Batch]:
    """So many inputs at least, by the formats' weights, in a mixed order. Fewer inputs are the first of more."""
    turns = fuzz_formats.schedule()
    batches = []
    for name in sorted(set(turns)):
        count = math.ceil(inputs * turns.count(name) / len(turns))
        batches += [Batch(name, first, min(TOGETHER, count - first)) for first in range(0, count, TOGETHER)]
    random.Random(0).shuffle(batches)
    return batches


def run(seed: int, batches: Sequence[Batch], workers: int = 1) -> Iterator[Result]:
    """Results in the batches' order, whoever of so many reading processes is the first."""
    with ExitStack() as stack:
        free: queue.SimpleQueue[fuzz_child.Reader] = queue.SimpleQueue()
        for _ in range(workers):
            free.put(stack.enter_context(fuzz_child.Reader()))

        def judge(batch: Batch) -> Result:
            reader = free.get()
            try:
                return judge_batch(reader, seed, batch)
            finally:
                free.put(reader)

        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(judge, batches)


def judge_batch(reader: fuzz_child.Reader, seed: int, batch: Batch) -> Result:
    outcomes = list(reader.outcomes(format=batch.format, seed=seed, first=batch.first, count=batch.count))
    failures = []
    for outcome in outcomes:
        failed = outcome["failed"] or ("it left files: " + " ".join(outcome["strays"]))
        if outcome["failed"] or outcome["strays"]:
            failures.append(Failure(batch.format, seed, outcome["index"], failed))
    read = sum(outcome["said"] is None and outcome["failed"] is None for outcome in outcomes)
    most = (max(outcome.get(what, 0.0) for outcome in outcomes) for what in ("seconds", "megabytes"))
    return Result(batch, read, failures, *most)


def keep(failure: Failure) -> Path:
    """The input itself, in a file that is called after it."""
    path = ROOT / "failures" / f"{failure.format.replace('/', '-').replace(' ', '-')}-{failure.seed}-{failure.index}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fuzz_formats.make_input(failure.format, failure.seed, failure.index))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one format")
    parser.add_argument("--workers", type=int, default=1, help="processes that read at a time")
    options = parser.parse_args()
    progress = ROOT / f"seed-{options.seed}.json"
    ROOT.mkdir(exist_ok=True)
    state = json.loads(progress.read_text()) if progress.is_file() else {"done": [], "failures": []}
    done = {tuple(each) for each in state["done"]}
    batches = [each for each in plan(options.inputs) if options.only in (None, each.format)]
    rest = [each for each in batches if each not in done]
    total, behind = sum(each.count for each in batches), sum(each.count for each in batches if each in done)
    print(f"{total:,} inputs of seed {options.seed}, {behind:,} of them done; Ctrl-C stops, the same command goes on")
    started, since, most = time.monotonic(), 0, [0.0, 0.0]
    try:
        for batch, _, failures, *peaks in run(options.seed, rest, options.workers):
            since += batch.count
            most = [max(a, b) for a, b in zip(most, peaks, strict=True)]
            state["done"].append(batch)
            for failure in failures:
                state["failures"].append(failure)
                print(f"\n{keep(failure)}: {failure.failed}")
            progress.write_text(json.dumps(state))
            rate = since / (time.monotonic() - started)
            left = (total - behind - since) / rate
            said = f"\r{behind + since:,} of {total:,}, {rate:.0f} a second, {left / 60:.0f} min to go, "
            print(said + f"{len(state['failures'])} failed  ", end="", flush=True)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130
    print(f"\n{len(state['failures'])} of {total:,} failed; the most that one took: {most[0]:.1f} s, {most[1]:.0f} MB")
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
