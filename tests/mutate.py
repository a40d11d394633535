"""Are the tests strong? Change one thing in one line, run the tests that call it: one of them should fail.

    python tests/mutate.py --sample 400                     # drawn evenly over the rooms; goes on where it stopped
    python tests/mutate.py --sample 150 --seed 3 --unlike ONE.jsonl   # none of those that were judged there
    python tests/mutate.py --only pellucid/decode/beam.py   # every mutant of a file
    python tests/mutate.py --again                          # the survivors once more, when tests were added
    python tests/mutate.py --report     # what came of it is kept in results/, and nothing is run

A survivor is a missing test, or mutants.json says why no test can see it (that a tensor's device is left out is seen
nowhere on a CPU, and isn't listed). judging.py says how one is asked for.
"""

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from judging import TESTS, Bench
from mutants import ROOT, Mutant, mutants_of

COUNTED = ("mutants", "killed", "timeouts", "killed_by_new_tests", "equivalent", "elsewhere", "survived", "score")
HEAVY = ("torch", "torch._dynamo", "torch.distributed.fsdp", "numpy", "scipy.optimize", "scipy.stats", "PIL.Image")
HEAVY += ("sklearn.datasets", "matplotlib.pyplot", "einops", "safetensors.torch", "tokenizers", "tyro", "fastapi")
HEAVY += (
    "rich.progress",
    "beartype",
    "jaxtyping",
    "hypothesis",
    "huggingface_hub",
    "transformers",
    "pytest",
    "doctest",
)
History = dict[str, list[dict[str, Any]]]  # by a mutant's id, what came of each run of it


def choose(options: argparse.Namespace, history: History) -> list[Mutant]:
    files = [path for room in options.rooms for path in sorted((ROOT / "pellucid" / room).glob("*.py"))]
    known = {mutant for path in options.unlike for mutant in read_history(path)}
    mutants = [m for path in files for m in mutants_of(path) if options.only in (None, m.file) and m.id not in known]
    if options.again:
        survived = [m for m in mutants if m.id in history and history[m.id][-1]["status"] == "survived"]
        return [m for m in survived if not explain(history[m.id][-1])]
    if options.sample:
        by_room = [[m for m in mutants if m.file.split("/")[1] == room] for room in options.rooms]
        for room, inside in zip(options.rooms, by_room, strict=True):
            random.Random(f"{options.seed} {room}").shuffle(inside)
        each = range(options.sample // len(options.rooms))  # in turns, so that a run that is stopped is even too
        mutants = [inside[i] for i in each for inside in by_room if i < len(inside)]
    return [m for m in mutants if m.id not in history]


def run(mutants: list[Mutant], options: argparse.Namespace, history: History) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.out.with_name("mutants.traces.json"), options.longest, options.without)
        for i, mutant in enumerate(mutants):
            facts = bench.judge(mutant, fresh=options.again)
            history.setdefault(mutant.id, []).append(facts)
            with options.out.open("a") as file:
                file.write(json.dumps(facts, ensure_ascii=False) + "\n")
            print(
                f"{i + 1}/{len(mutants)} {facts['status']} {facts['seconds']} s  {mutant.id}  {facts['by']}", flush=True
            )


@cache
def explanations() -> list[dict[str, str]]:
    """Why no test can see some mutants: by file and what a line becomes, or all of a function's."""
    return json.loads(Path(__file__).with_name("mutants.json").read_text())


def explain(facts: dict[str, Any]) -> str | None:
    """Why no test can see this survivor, if that is known."""
    for entry in (entry for entry in explanations() if entry["file"] == facts["file"]):
        if entry.get("function") == facts["function"] or (entry.get("before"), entry.get("after")) == (
            facts["before"],
            facts["after"],
        ):
            return entry["reason"]
    if facts["kind"] == "keyword" and facts["before"].count("device=") > facts["after"].count("device="):
        return "elsewhere: on a CPU every tensor is where it should be"
    return None


def summarise(history: History, room: str) -> dict[str, Any]:
    """How many mutants there are, how many were killed, and what is said of those that were not."""
    runs = [each for each in history.values() if each[0]["file"].split("/")[1] == room]
    survivors = []
    for last in (each[-1] for each in runs if each[-1]["status"] == "survived"):
        change = {name: last[name] for name in ("file", "line", "before", "after")}
        survivors.append(change | {"reason": explain(last) or "no test sees it"})
    statuses = [each[-1]["status"] for each in runs]
    counts = {"mutants": len(runs), "killed": statuses.count("killed"), "timeouts": statuses.count("timeout")}
    for why in ("equivalent", "elsewhere"):  # it changes no behaviour; it changes some that this machine can't show
        counts[why] = sum(survivor["reason"].startswith(why) for survivor in survivors)
    acting = len(runs) - counts["equivalent"] - counts["elsewhere"]
    counts["survived"] = acting - counts["killed"] - counts["timeouts"]
    counts["killed_by_new_tests"] = sum(
        each[0]["status"] == "survived" and "strength" in each[-1]["by"] for each in runs
    )
    score = round(1 - counts["survived"] / acting, 4) if acting else None
    return counts | {"score": score, "survivors": survivors}


def read_history(path: Path) -> History:
    history: History = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        history.setdefault((facts := json.loads(line))["id"], []).append(facts)
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "mutants.jsonl", help="remove it to begin anew"
    )
    parser.add_argument("--rooms", nargs="+", choices=list(TESTS), default=list(TESTS))
    parser.add_argument("--sample", type=int, help="so many mutants, evenly over the rooms; all of them unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unlike", type=Path, nargs="+", default=[], help="no mutant that was judged in these files")
    parser.add_argument("--only", help="the mutants of one file")
    parser.add_argument("--again", action="store_true", help="those that survived and are not explained, from scratch")
    parser.add_argument("--without", nargs="+", default=[], help="test files that aren't asked, as resume")
    parser.add_argument("--longest", type=float, default=60, help="seconds of tests for one mutant")
    parser.add_argument("--report", action="store_true", help="keep what came of it in results/, and run nothing")
    parser.add_argument("--notes", default="", help="what else there is to say of the report")
    options = parser.parse_args()
    history = read_history(options.out)
    if not options.report:
        run(choose(options, history), options, history)
    rooms = {room: summarise(history, room) for room in TESTS}
    for room, facts in rooms.items():
        print(room, *(f"{name} {value}" for name, value in facts.items() if name != "survivors"), sep="  ")
    if options.report:
        keep_counts(rooms, options.seed, options.notes)


def keep_counts(rooms: dict[str, dict[str, Any]], seed: int, notes: str) -> None:
    """What came of it, as the benchmarks keep theirs."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import torch
    from report import Column, Table, keep

    counts = [{"room": room} | {name: facts[name] for name in COUNTED} for room, facts in rooms.items()]
    unseen = [survivor for facts in rooms.values() for survivor in facts["survivors"]]
    columns = {"room": Column()} | {name: Column() for name in COUNTED[:-1]} | {"score": Column("share", 1)}
    tables = {
        "rooms": Table("mutants of each room: score is the share of those that act and are killed", columns, counts)
    }
    if unseen:
        columns = {name: Column() for name in ("file", "line", "reason")}
        tables["unseen"] = Table("mutants that no test sees, and why", columns, unseen)
    keep(
        "mutation",
        tables,
        torch.device("cpu"),
        seeds=[seed],
        settings={"mutants": sum(row["mutants"] for row in counts)},
        notes=notes,
    )


if __name__ == "__main__":
    main()
