"""How a mutant is judged: the tests that call what was changed are run until one of them fails.

The mutant is written into a copy of the tree, so that processes which tests start see it too. What changes inside a
function is also put into a process that has imported the room and its tests (`Nest`), in a fork of it: the function
gets the mutant's code and defaults. Where that can't be done (fields, constants) or is to be done again from scratch, a
process is forked that has imported what is heavy and nothing of ours. Which tests call a function is found out
beforehand. A test may take a multiple of the processor's time it takes otherwise, so that a busy machine doesn't kill;
one that waits for ever is asked twice, and one that trains in processes must pass without the mutant.
"""

import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from asking import Nest, Selection, fork_child, in_child, run_pytest
from mutants import ROOT, Mutant
from tracing import Trace, instrumented

# The rooms, and which test files are asked, the nearest first; the examples in the mutated file come before them.
TESTS = {
    room: f"strength_{room} {names}".split()
    for room, names in {
        "ops": "attention rules masks_positions summaries laws decode parity layers captioner",
        "decode": "decode captioner speech",
        "evaluation": "captions evaluate controls speech verbs_classify verbs_caption caption_training",
        "explain": "explain explain_heads steering structure faithfulness trace figures verbs_attend",
        "training": "optim config train caption_training verbs_classify resume distributed",
    }.items()
}
STARTER = "tests/trainings.py:Started.__init__"  # a test that calls it trains in processes, which no trace follows


def left_out(folder: str, names: list[str]) -> set[str]:
    """What a copy of the tree does without; runs/ at its root is what somebody trained, elsewhere it is a room."""
    nothing = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "artefacts")
    return nothing(folder, names) | ({"runs"} if Path(folder) == ROOT else set())


class Bench:
    """A copy of the tree in which mutants live, one at a time; another that is traced, and what was traced."""

    def __init__(self, folder: Path, traces: Path, longest: float, without: Sequence[str] = ()):
        self.tree, self.traced, self.state, self.log = (folder / name for name in ("tree", "traced", "state", "log"))
        for tree in (self.tree, self.traced):
            shutil.copytree(ROOT, tree, ignore=left_out)
        for path in [*(self.traced / "pellucid").rglob("*.py"), self.traced / "tests" / "trainings.py"]:
            path.write_text(instrumented(path.read_text(), path.relative_to(self.traced).as_posix()))
        self.longest, self.path, self.without = longest, traces, without
        rooms = [path for room in TESTS for path in sorted((self.tree / "pellucid" / room).glob("*.py"))]
        self.package = zlib.crc32(b"".join(path.read_bytes() for path in rooms))
        self.traces = json.loads(traces.read_text()) if traces.exists() else {}
        self.nest: Any = None
        self.patient = set[str]()  # tests that wait for processes, for so many seconds: a busy machine fails them

    def trace(self, file: str) -> dict[str, Any]:
        """Seconds and called functions of each test of a file that passes; traced once, unless the file changes."""
        key = f"{file} {zlib.crc32((self.tree / file).read_bytes())} {self.package}"
        if key not in self.traces:
            self.state.write_text("{}")
            in_child(partial(run_pytest, self.traced, Trace(self.state), [file]), self.state, self.log)
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
        asked = (f"tests/test_{name}.py" for name in TESTS[room] if name not in self.without)
        for file in [mutant.file, *asked]:
            for test, (seconds, calls) in sorted(self.trace(file).items(), key=lambda item: item[1][0]):
                default = not mutant.function and "strength" in file  # a dataclass is made without a call of ours
                if default or any(call.startswith(f"{mutant.file}:{mutant.function}") for call in calls):
                    called[test] = seconds
                elif room == "training" and STARTER in calls:
                    unseen[test] = seconds
                if STARTER in calls:
                    self.patient.add(test)
        chosen: dict[str, float] = {}
        for test, seconds in (called | unseen).items():
            if seconds + sum(chosen.values()) < self.longest:
                chosen[test] = seconds
        return chosen

    def judge(self, mutant: Mutant, fresh: bool = False) -> dict[str, Any]:
        """What comes of the tests; a timeout counts if it comes again where twice the time is given."""
        seconds, place, start = self.tests(mutant), self.tree / mutant.file, time.monotonic()
        self.hatch()
        original = place.read_text()
        place.write_text(mutant.source)
        os.utime(place, (2e9 + start, 2e9 + start))  # no compiled file is as young
        status, by = self.ask(mutant, seconds, 1, fresh)
        if status == "timeout":
            status, by = self.ask(mutant, {by: seconds[by]}, 2, fresh)
            if status == "survived":  # a busy machine's: it may not count, nor may the others go unasked
                status, by = self.ask(mutant, seconds, 4, fresh)
        place.write_text(original)
        if status == "killed" and by in self.patient and self.ask(mutant, {by: seconds[by]}, 2, True)[0] != "survived":
            place.write_text(mutant.source)  # it fails without the mutant too: the others' word counts
            status, by = self.ask(
                mutant, {name: s for name, s in seconds.items() if name not in self.patient}, 2, fresh
            )
            place.write_text(original)
        facts = {name: value for name, value in asdict(mutant).items() if name != "source"} | {"id": mutant.id}
        return facts | {
            "status": status,
            "by": by,
            "asked": len(seconds),
            "seconds": round(time.monotonic() - start, 1),
        }

    def ask(self, mutant: Mutant, seconds: dict[str, float], patience: int, fresh: bool) -> tuple[str, str]:
        if not seconds:
            return "survived", ""
        if mutant.function and not fresh:
            self.nest.send((mutant.file, mutant.function, seconds, patience))
            if self.nest.recv() == "done":
                return self.answer()
        for asked in nearest_first(seconds):
            chosen = {name: s for name, s in seconds.items() if name.split("::")[0] in asked}
            self.state.write_text("killed on import")
            selection = Selection(self.state, chosen, patience)
            in_child(partial(run_pytest, self.tree, selection, ["-x", *asked]), self.state, self.log)
            if self.answer()[0] != "survived":
                break
        return self.answer()

    def answer(self) -> tuple[str, str]:
        status, _, by = self.state.read_text().partition(" ")
        return status, by

    def hatch(self) -> None:
        """A nest, once everything is traced."""
        if self.nest is not None:
            return
        self.nest, orders = Pipe()
        files = [f"tests/test_{name}.py" for names in TESTS.values() for name in names]
        asked = list(dict.fromkeys([*files, *(f"pellucid/{room}" for room in TESTS)]))

        def act() -> None:
            self.nest.close()
            run_pytest(self.tree, Nest(self.tree, self.state, orders), asked)

        fork_child(act, log := self.log.with_name("nest"))
        orders.close()
        try:
            self.nest.recv()
        except EOFError:
            raise SystemExit(f"the tests can't be collected:\n{log.read_text()[-2000:]}") from None


def nearest_first(seconds: dict[str, float]) -> Iterator[list[str]]:
    files = list(dict.fromkeys(name.split("::")[0] for name in seconds))
    yield from (asked for asked in (files[:1], files[1:]) if asked)
