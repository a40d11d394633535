"""Kill runs at random moments, and see whether they end as if nothing had happened, to the last bit.

    python benchmarks/kills.py               # a hundred kills: both tasks, both stages, one and two processes
    python benchmarks/kills.py --kills 400   # goes on from the hundred: what was done is kept in --folder
    python benchmarks/kills.py --workers 8   # so many runs at a time
    python benchmarks/kills.py --seconds 600 # begins no run after ten minutes; a table of what was done

Each run is killed five times (SIGKILL; of two processes one, then the other), begun again, and compared at its end
with the same run that nobody killed: weights, averages, optimizers' memory, the best weights, and the log.
"""

import argparse
import json
import math
import multiprocessing
import random
import shlex
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from report import Column, Table, keep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from trainings import TINY, WILD, Started, assert_same_run, free_port, words_for  # pyright: ignore[reportMissingImports]

EACH = 5  # kills of one run
CAPTIONER = shlex.split(
    "--model.encoder.width 16 --model.encoder.depth 1 --model.encoder.heads 2 --model.layers 1 --model.heads 2 "
    "--model.dropout 0.1 --data.size 36 36 --data.scenes.train 64 --data.scenes.validation 4 --data.scenes.test 4 "
    "--batch 8 --optim.ema 0.9 --critical.batch 4 --critical.samples 2"
)
CAPTIONER += ["--duration", "16 steps", "--evaluate-every", "8 steps", "--checkpoint-every", "2 steps"]
CAPTIONER += ["--critical.duration", "12 steps", "--critical.evaluate-every", "6 steps"]
CLASSIFIER = [*TINY, *WILD, "--duration", "40 steps", "--checkpoint-every", "2 steps", "--keep-every", "15 steps"]
KINDS: dict[str, tuple[str, list[str], int]] = {
    "classifier": ("vit_digits", CLASSIFIER, 1),
    "captioner, both stages": ("captioner_scenes", CAPTIONER, 1),
    "classifier, two processes (DDP)": ("vit_digits", CLASSIFIER, 2),
    "captioner, both stages, two processes (DDP)": ("captioner_scenes", CAPTIONER, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="runs that are killed at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other run begins")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pellucid-kills")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    done_file = options.folder / f"done-{options.seed}.jsonl"
    done = [json.loads(line) for line in done_file.read_text().splitlines()] if done_file.exists() else []
    wanted = -(-options.kills // EACH)
    behind = {row["number"] for row in done}
    rest = [number for number in range(wanted) if number not in behind]
    for kind in KINDS:
        print(f"{kind}: {whole_run(kind, options.folder)[1]:.0f} s if nobody kills it", flush=True)
    begun, first = time.monotonic(), len(done)
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        rows = {pool.submit(kill_and_compare, number, options.folder, options.seed) for number in rest}
        for future in as_completed(rows):
            if future.cancelled():
                continue
            done.append(future.result())
            with done_file.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            pace = (time.monotonic() - begun) / (len(done) - first)
            kills, same = sum(each["kills"] for each in done), sum(each["same"] for each in done)
            left = pace * (wanted - len(done))
            print(
                f"{kills} kills, {same} of {len(done)} runs ended the same; {pace:.0f} s a run, {left:.0f} s left",
                flush=True,
            )
            if time.monotonic() - begun > options.seconds:
                for each in rows:
                    each.cancel()
    rows = [sum_up(kind, [row for row in done if row["kind"] == kind]) for kind in KINDS]
    columns = {"run": Column(), "kills": Column(), "in_first_stage": Column(), "in_second_stage": Column()}
    columns |= {"runs": Column(), "ended_the_same": Column()}
    title = "runs killed at random moments, and how many of them ended the same to the last bit"
    settings = {"kills of a run": EACH, "kills": sum(row["kills"] for row in rows)}
    keep("kills", {"kills": Table(title, columns, rows)}, torch.device("cpu"), seeds=[options.seed], settings=settings)


def kill_and_compare(number: int, folder: Path, seed: int) -> dict:
    kind, generator = list(KINDS)[number % len(KINDS)], random.Random(f"{seed} {number}")
    whole, seconds = whole_run(kind, folder)
    path = folder / f"run-{number}"
    shutil.rmtree(path, ignore_errors=True)
    stages = [0, 0]
    while sum(stages) < EACH:
        processes = start(kind, path)
        end = time.monotonic() + generator.uniform(0, seconds)
        while time.monotonic() < end and any(each.process.is_alive() for each in processes):
            time.sleep(0.001)
        alive = [each for each in processes if each.process.is_alive()]
        generator.shuffle(alive)
        for each in alive:
            each.process.kill()
            time.sleep(generator.choice((0, 0.02)))
        for each in processes:
            each.process.join()
        if not alive:  # it had ended before
            shutil.rmtree(path)
            continue
        stages[(path / "critical" / "config.json").exists()] += 1
    for each in start(kind, path):
        code, said = each.ended(300)
        assert code == 0, said
    try:
        assert_same_run(path, whole)
        if (whole / "critical").exists():
            assert_same_run(path / "critical", whole / "critical")
        same = True
        shutil.rmtree(path)
    except AssertionError as error:
        print(f"{path} differs from {whole}: {error}", flush=True)
        same = False
    for said in folder.glob(f"run-{number}.*.txt"):
        said.unlink()
    return {"number": number, "kind": kind, "kills": sum(stages), "stages": stages, "same": same}


def whole_run(kind: str, folder: Path) -> tuple[Path, float]:
    """The run that nobody kills, and how many seconds it takes."""
    name = kind.replace(" ", "-").replace(",", "")
    path, clock = folder / name, folder / f"{name}.seconds"
    if not clock.exists():
        shutil.rmtree(path, ignore_errors=True)
        begun = time.monotonic()
        for each in start(kind, path):
            code, said = each.ended(300)
            assert code == 0, said
        clock.write_text(str(time.monotonic() - begun))
    return path, float(clock.read_text())


def start(kind: str, path: Path) -> list[Started]:
    recipe, options, count = KINDS[kind]
    words, port = words_for(path, *options), free_port()
    ranks = [(rank, count, port) if count > 1 else None for rank in range(count)]
    return [Started(path, *words, recipe=recipe, ranks=each) for each in ranks]


def sum_up(kind: str, rows: list[dict]) -> dict:
    first, second = (sum(row["stages"][i] for row in rows) for i in (0, 1))
    kills = {"kills": first + second, "in_first_stage": first, "in_second_stage": second}
    return {"run": kind} | kills | {"runs": len(rows), "ended_the_same": sum(row["same"] for row in rows)}


if __name__ == "__main__":
    main()
