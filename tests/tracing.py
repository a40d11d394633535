"""Which functions each test calls, and how long it takes: who is asked about a mutant."""

import ast
import builtins
import json
import os
from pathlib import Path
from typing import Any


class Trace:
    """How much time of a processor each test takes and which functions it calls; what a fixture of its file calls, all
    its tests call."""

    def __init__(self, state: Path):
        self.state = state
        self.tests: dict[str, tuple[float, set[str]]] = {}
        self.shared = self.now = set[str]()
        vars(builtins)["called"] = lambda name: self.now.add(name)

    def pytest_runtest_logstart(self) -> None:
        self.start, self.now = cpu_seconds(), self.shared

    def pytest_runtest_call(self) -> None:
        self.now = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.tests[report.nodeid] = (cpu_seconds() - self.start, self.now)

    def pytest_sessionfinish(self) -> None:
        tests = {name: (seconds, sorted(calls | self.shared)) for name, (seconds, calls) in self.tests.items()}
        self.state.write_text(json.dumps(tests))


def cpu_seconds() -> float:
    """Of this process and of all it waited for: what else the machine does adds nothing."""
    return sum(os.times()[:4])


def instrumented(source: str, file: str) -> str:
    """The source, in which each function first says its name to whoever has put `called` among the builtins."""
    tree = ast.parse(source)
    scopes = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    for scope, node in [(scope, node) for scope, parent in scopes for node in parent.body]:
        if isinstance(node, ast.FunctionDef):
            call = f'__import__("builtins").__dict__.get("called", len)("{file}:{scope}{node.name}")'
            node.body[ast.get_docstring(node) is not None : 0] = ast.parse(call).body
    return ast.unparse(tree)
