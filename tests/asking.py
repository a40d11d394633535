"""Tests that are asked about a mutant, in processes that are forked for it and ended with all they started."""

import ast
import faulthandler
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mutants import ROOT

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
            in_child(
                partial(self.judge, bodies, *changed, chosen, Selection(self.state, seconds, patience)), self.state
            )
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


def find_arguments(tree: ast.AST, name: str) -> ast.arguments:
    """Of the one function, or Class.method, that is called so."""
    scope, _, rest = name.partition(".")
    for node in ast.iter_child_nodes(tree):
        if getattr(node, "name", None) == scope:
            return find_arguments(node, rest) if rest else node.args  # pyright: ignore[reportAttributeAccessIssue]
    raise LookupError(name)


def in_child(act: Callable[[], object], state: Path, log: Path | None = None) -> None:
    """Act in a fork, wait for it, and end all it started; its own limits are whoever acts'. A test that ended the whole
    process, but by its limit, has failed."""
    child, status = fork_child(act, log), 0
    with suppress(ChildProcessError):
        _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGPROF:
        state.write_text(state.read_text().replace("timeout", "killed", 1))


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


def run_pytest(tree: Path, plugin: Any, asked: list[str]) -> None:
    """In a process that sees only the copy of the tree."""
    resource.setrlimit(resource.RLIMIT_DATA, (2**33, 2**33))
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in (str(ROOT), str(ROOT / "tests")))]
    words = ["-q", "-p", "jaxtyping._pytest_plugin", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # its plugins are imported before it
    sys.modules["pytest"].main([*words, *asked], plugins=[plugin])
