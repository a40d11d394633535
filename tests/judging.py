"""How a mutant is judged: the tests that call what was changed are run until one of them fails.

The mutant is written into a copy of the tree, so that processes which tests start see it too. What changes inside a
function is also put into a process that has imported the room and its tests (`Nest`), in a fork of it: the function
gets the mutant's code. Where that can't be done (defaults, fields, constants) or is to be done again from scratch, a
process is forked that has imported what is heavy and nothing of ours. Which tests call a function is found out
beforehand. A test may take a multiple of the processor's time it takes otherwise, so that a busy machine doesn't kill;
one that waits for ever is asked twice.
"""

import ast
import faulthandler
import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

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
CPU, WALL = (20, 5), (90, 20)  # a test's limits: at least so many seconds, and so many times what it takes


class Selection:
    """Runs the chosen tests in their order; what is running, what failed or that nothing did is left in a file."""

    def __init__(self, state: Path, seconds: dict[str, float], patience: int = 1):
        self.state, self.seconds, self.patience = state, seconds, patience
        self.failed = False

    def pytest_sessionstart(self) -> None:
        self.limit(60, 600)  # for what is imported

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        order = {name: place for place, name in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.state.write_text(f"timeout {nodeid}")
        self.limit(*(self.patience * max(least, times * self.seconds[nodeid]) for least, times in (CPU, WALL)))

    def limit(self, cpu: float, wall: float) -> None:
        """After so many seconds the process ends."""
        signal.setitimer(signal.ITIMER_PROF, cpu)
        faulthandler.dump_traceback_later(wall, exit=True, file=sys.__stderr__)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = True
            self.state.write_text(f"killed {report.nodeid}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            self.state.write_text("survived")


class Nest:
    """All tests of all rooms, collected; for each mutant that it is told of a fork runs some of them."""

    def __init__(self, tree: Path, state: Path, orders: Any):
        self.tree, self.state, self.orders = tree, state, orders

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions: dict[tuple[str, str], list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename.startswith(str(self.tree / "pellucid")):
                functions.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
        gc.collect()
        gc.freeze()
        self.orders.send("ready")
        while order := self.orders.recv():
            file, function, seconds, patience = order
            place = str(self.tree / file)
            tree = ast.parse((self.tree / file).read_text())
            codes = find_codes(compile(tree, place, "exec", dont_inherit=True), function)
            bodies = functions.get((place, function), ())
            free = [code.co_freevars for code in codes]
            if free != list({each.__code__.co_freevars for each in bodies}) or any(
                name not in items for name in seconds
            ):
                self.orders.send("not here")
                continue
            changed = codes[0], find_arguments(tree, function)
            self.state.write_text("killed at once")
            chosen = [items[name] for name in seconds]
            in_child(partial(self.judge, bodies, *changed, chosen, Selection(self.state, seconds, patience)))
            self.orders.send("done")
        return True

    def judge(
        self,
        bodies: list[FunctionType],
        code: CodeType,
        arguments: ast.arguments,
        items: list[Any],
        selection: Selection,
    ) -> None:
        for body in bodies:
            body.__code__ = code
            values = {
                d: eval(ast.unparse(d), body.__globals__) for d in (*arguments.defaults, *arguments.kw_defaults) if d
            }
            body.__defaults__ = tuple(values[d] for d in arguments.defaults) or None
            pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            body.__kwdefaults__ = {argument.arg: values[d] for argument, d in pairs if d} or None
        items[0].config.pluginmanager.register(selection)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if selection.failed:
                return
        selection.pytest_sessionfinish(0)


def find_codes(code: CodeType, name: str) -> list[CodeType]:
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    deeper = [each for const in inside if name.startswith(f"{const.co_qualname}.") for each in find_codes(const, name)]
    return [const for const in inside if const.co_qualname == name] + deeper


def left_out(folder: str, names: list[str]) -> set[str]:
    """What a copy of the tree does without; runs/ at its root is what somebody trained, elsewhere it is a room."""
    nothing = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "artefacts")
    return nothing(folder, names) | ({"runs"} if Path(folder) == ROOT else set())


def in_child(act: Callable[[], object], log: Path | None = None) -> None:
    """Act in a fork, wait for it, and end all it started; its own limits are whoever acts'."""
    end_child(fork_child(act, log))


def fork_child(act: Callable[[], object], log: Path | None = None) -> int:
    if not (child := os.fork()):
        try:
            os.setsid()
            if log:
                os.dup2(output := os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
                os.dup2(output, 2)
            act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    return child


def end_child(child: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def run_pytest(tree: Path, plugin: Any, asked: list[str]) -> None:
    """In a process that sees only the copy of the tree."""
    resource.setrlimit(resource.RLIMIT_DATA, (2**33, 2**33))
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in (str(ROOT), str(ROOT / "tests")))]
    words = ["-q", "-p", "jaxtyping._pytest_plugin", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # its plugins are imported before it
    sys.modules["pytest"].main([*words, *asked], plugins=[plugin])


def find_arguments(tree: ast.AST, name: str) -> ast.arguments:
    """Of the one function, or Class.method, that is called so."""
    scope, _, rest = name.partition(".")
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "name", None) == scope:
            return find_arguments(node, rest) if rest else node.args  # pyright: ignore[reportAttributeAccessIssue]
    raise LookupError(name)


class Bench:
    """A copy of the tree in which mutants live, one at a time; another that is traced, and what was traced."""

    def __init__(self, folder: Path, traces: Path, longest: float):
        self.tree, self.traced, self.state, self.log = (folder / name for name in ("tree", "traced", "state", "log"))
        for tree in (self.tree, self.traced):
            shutil.copytree(ROOT, tree, ignore=left_out)
        for path in [*(self.traced / "pellucid").rglob("*.py"), self.traced / "tests" / "trainings.py"]:
            path.write_text(instrumented(path.read_text(), path.relative_to(self.traced).as_posix()))
        self.longest, self.path = longest, traces
        rooms = [path for room in TESTS for path in sorted((self.tree / "pellucid" / room).glob("*.py"))]
        self.package = zlib.crc32(b"".join(path.read_bytes() for path in rooms))
        self.traces = json.loads(traces.read_text()) if traces.exists() else {}
        self.nest: Any = None

    def trace(self, file: str) -> dict[str, Any]:
        """Seconds and called functions of each test of a file that passes; traced once, unless the file changes."""
        key = f"{file} {zlib.crc32((self.tree / file).read_bytes())} {self.package}"
        if key not in self.traces:
            self.state.write_text("{}")
            in_child(partial(run_pytest, self.traced, Trace(self.state), [file]), self.log)
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
            in_child(partial(run_pytest, self.tree, selection, ["-x", *asked]), self.log)
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
