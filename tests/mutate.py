"""Are the tests strong? Change one thing in one line, run the tests that call it: one of them should fail.

    python tests/mutate.py --sample 400                     # drawn evenly over the rooms; goes on where it stopped
    python tests/mutate.py --only pellucid/decode/beam.py   # every mutant of a file
    python tests/mutate.py --again                          # the survivors once more, when tests were added
    python tests/mutate.py --report     # what came of it is kept in results/, and nothing is run

A mutant is written into a copy of the tree, so that processes which tests start see it too. For each, a process is
forked that has imported what is heavy and nothing of ours. Which tests call a function is found out beforehand.
A survivor is a missing test, or mutants.json says why no test can see it (that a tensor's device is left out is seen
nowhere on a CPU, and isn't listed).
"""

import argparse
import ast
import builtins
import faulthandler
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from mutants import ROOT, Mutant, mutants_of

# The rooms, and which test files are asked, the nearest first; the examples in the mutated file come before them.
TESTS = {
    room: f"strength_{room} {names}".split()
    for room, names in {
        "ops": "attention masks_positions summaries laws decode parity layers captioner",
        "decode": "decode captioner speech",
        "evaluation": "captions evaluate controls speech verbs_classify verbs_caption caption_training",
        "explain": "explain explain_heads faithfulness trace figures verbs_attend",
        "training": "optim config train caption_training verbs_classify resume distributed",
    }.items()
}
STARTER = "tests/trainings.py:Started.__init__"  # a test that calls it trains in processes, which no trace follows
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


class Selection:
    """Runs the chosen tests in their order; what is running, what failed or that nothing did is left in a file."""

    def __init__(self, state: Path, seconds: dict[str, float]):
        self.state, self.seconds = state, seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        order = {name: place for place, name in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.state.write_text(f"timeout {nodeid}")
        faulthandler.dump_traceback_later(max(20, 5 * self.seconds[nodeid]), exit=True, file=sys.__stderr__)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.state.write_text(f"killed {report.nodeid}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            self.state.write_text("survived")


class Trace:
    """How long each test takes and which functions it calls; what a fixture of its file calls, all its tests call."""

    def __init__(self, state: Path):
        self.state = state
        self.tests: dict[str, tuple[float, set[str]]] = {}
        self.shared = self.now = set[str]()
        vars(builtins)["called"] = lambda name: self.now.add(name)

    def pytest_runtest_logstart(self) -> None:
        self.start, self.now = time.monotonic(), self.shared

    def pytest_runtest_call(self) -> None:
        self.now = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.tests[report.nodeid] = (time.monotonic() - self.start, self.now)

    def pytest_sessionfinish(self) -> None:
        tests = {name: (seconds, sorted(calls | self.shared)) for name, (seconds, calls) in self.tests.items()}
        self.state.write_text(json.dumps(tests))


def instrumented(source: str, file: str) -> str:
    """The source, in which each function first says its name to whoever has put `called` among the builtins."""
    tree = ast.parse(source)
    scopes = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    for scope, node in [(scope, node) for scope, parent in scopes for node in parent.body]:
        if isinstance(node, ast.FunctionDef):
            call = f'__import__("builtins").__dict__.get("called", len)("{file}:{scope}{node.name}")'
            node.body[ast.get_docstring(node) is not None : 0] = ast.parse(call).body
    return ast.unparse(tree)


def left_out(folder: str, names: list[str]) -> set[str]:
    """What a copy of the tree does without; runs/ at its root is what somebody trained, elsewhere it is a room."""
    nothing = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "artefacts")
    return nothing(folder, names) | ({"runs"} if Path(folder) == ROOT else set())


def run_pytest(tree: Path, plugin: Any, asked: list[str], log: Path, limit: float) -> None:
    """In a forked child that sees only the copy of the tree, and that is ended with all it started."""
    if not (child := os.fork()):
        try:
            os.setsid()
            os.dup2(output := os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_DATA, (2**33, 2**33))
            os.chdir(tree)
            os.environ["PYTHONPATH"] = str(tree)
            sys.path[:] = [str(tree), *(path for path in sys.path if path not in (str(ROOT), str(ROOT / "tests")))]
            words = ["-q", "-p", "jaxtyping._pytest_plugin", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
            words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # its plugins are imported before it
            sys.modules["pytest"].main([*words, *asked], plugins=[plugin])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    end = time.monotonic() + limit
    while time.monotonic() < end and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.02)
    with suppress(ProcessLookupError, ChildProcessError):
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Bench:
    """A copy of the tree in which mutants live, one at a time; another that is traced, and what was traced."""

    def __init__(self, folder: Path, traces: Path, longest: float):
        self.tree, self.traced, self.state, self.log = (folder / name for name in ("tree", "traced", "state", "log"))
        for tree in (self.tree, self.traced):
            shutil.copytree(ROOT, tree, ignore=left_out)
        for path in [*(self.traced / "pellucid").rglob("*.py"), self.traced / "tests" / "trainings.py"]:
            path.write_text(instrumented(path.read_text(), path.relative_to(self.traced).as_posix()))
        self.longest, self.path = longest, traces
        self.traces = json.loads(traces.read_text()) if traces.exists() else {}

    def trace(self, file: str) -> dict[str, Any]:
        """Seconds and called functions of each test of a file that passes; traced once, unless the file changes."""
        key = f"{file} {zlib.crc32((self.tree / file).read_bytes())}"
        if key not in self.traces:
            self.state.write_text("{}")
            run_pytest(self.traced, Trace(self.state), [file], self.log, limit=900)
            self.traces[key] = json.loads(self.state.read_text())
            if file.startswith("tests/") and not self.traces[key]:  # else every mutant would survive them
                raise SystemExit(f"no test of {file} passes in a copy of the tree:\n{self.log.read_text()[-2000:]}")
            self.path.write_text(json.dumps(self.traces))
        return self.traces[key]

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """The tests that call the mutated function, and those that train in processes, in the order of asking."""
        room = mutant.file.split("/")[1]
        called: dict[str, float] = {}
        unseen: dict[str, float] = {}
        for file in [mutant.file, *(f"tests/test_{name}.py" for name in TESTS[room])]:
            for test, (seconds, calls) in sorted(self.trace(file).items(), key=lambda item: item[1][0]):
                default = not mutant.function and "strength" in file  # a dataclass is made without a call of ours
                if default or any(call.startswith(f"{mutant.file}:{mutant.function}") for call in calls):
                    called[test] = seconds
                elif room == "training" and STARTER in calls:
                    unseen[test] = seconds
        chosen: dict[str, float] = {}
        for test, seconds in (called | unseen).items():
            if seconds + sum(chosen.values()) < self.longest:
                chosen[test] = seconds
        return chosen

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """Ask the nearest file, and the others if its tests pass."""
        seconds, place, start = self.tests(mutant), self.tree / mutant.file, time.monotonic()
        files = list(dict.fromkeys(name.split("::")[0] for name in seconds))
        original, status, by = place.read_text(), "survived", ""
        place.write_text(mutant.source)
        os.utime(place, (2e9 + start, 2e9 + start))  # no compiled file is as young
        for asked in (files[:1], files[1:]):
            if asked and status == "survived":
                self.state.write_text("killed on import")
                chosen = {name: s for name, s in seconds.items() if name.split("::")[0] in asked}
                run_pytest(
                    self.tree, Selection(self.state, chosen), ["-x", *asked], self.log, 60 + 5 * sum(chosen.values())
                )
                status, _, by = self.state.read_text().partition(" ")
        place.write_text(original)
        facts = {name: value for name, value in asdict(mutant).items() if name != "source"} | {"id": mutant.id}
        return facts | {
            "status": status,
            "by": by,
            "asked": len(seconds),
            "seconds": round(time.monotonic() - start, 1),
        }


def choose(options: argparse.Namespace, history: History) -> list[Mutant]:
    files = [path for room in options.rooms for path in sorted((ROOT / "pellucid" / room).glob("*.py"))]
    mutants = [m for path in files for m in mutants_of(path) if options.only in (None, m.file)]
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
        bench = Bench(Path(folder), options.out.with_suffix(".traces.json"), options.longest)
        for i, mutant in enumerate(mutants):
            facts = bench.judge(mutant)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "mutants.jsonl", help="remove it to begin anew"
    )
    parser.add_argument("--rooms", nargs="+", choices=list(TESTS), default=list(TESTS))
    parser.add_argument("--sample", type=int, help="so many mutants, evenly over the rooms; all of them unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the mutants of one file")
    parser.add_argument("--again", action="store_true", help="those that survived and are not explained")
    parser.add_argument("--longest", type=float, default=60, help="seconds of tests for one mutant")
    parser.add_argument("--report", action="store_true", help="keep what came of it in results/, and run nothing")
    options = parser.parse_args()
    history: History = {}
    for line in options.out.read_text().splitlines() if options.out.exists() else ():
        history.setdefault((facts := json.loads(line))["id"], []).append(facts)
    if not options.report:
        run(choose(options, history), options, history)
    rooms = {room: summarise(history, room) for room in TESTS}
    for room, facts in rooms.items():
        print(room, *(f"{name} {value}" for name, value in facts.items() if name != "survivors"), sep="  ")
    if options.report:
        keep_counts(rooms, options.seed)


def keep_counts(rooms: dict[str, dict[str, Any]], seed: int) -> None:
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
    )


if __name__ == "__main__":
    main()
