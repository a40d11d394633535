"""What is said of mutants that no test can see is said of mutants that there are."""

import ast
import json
import signal
from pathlib import Path

from asking import find_arguments, find_codes, in_child
from mutants import ROOT, mutants_of

REASONS = json.loads(Path(__file__).with_name("mutants.json").read_text())


def test_every_reason_is_of_a_mutant_that_there_is():
    """A line that was changed since has to be looked at again."""
    made = {name: mutants_of(ROOT / name) for name in {entry["file"] for entry in REASONS}}
    changes = {name: {(m.before, m.after) for m in mutants} for name, mutants in made.items()}
    functions = {name: {m.function for m in mutants} for name, mutants in made.items()}
    stale = [
        entry
        for entry in REASONS
        if entry.get("function") not in functions[entry["file"]]
        and (entry.get("before"), entry.get("after")) not in changes[entry["file"]]
    ]
    assert stale == []


def test_every_reason_is_one_of_two_and_is_told_once():
    assert {entry["reason"].partition(":")[0] for entry in REASONS} == {"equivalent", "elsewhere"}
    keys = [(entry["file"], entry.get("function"), entry.get("before"), entry.get("after")) for entry in REASONS]
    assert len(set(keys)) == len(keys)


def test_the_code_and_the_arguments_of_a_mutant_are_found_by_its_functions_name():
    source = "def f(a, b=1):\n    return a\nclass C:\n    def f(self, *, c=2):\n        return lambda: c\n"
    tree = ast.parse(source)
    code = compile(tree, "x", "exec")
    for name, known in (("f", ["a", "b"]), ("C.f", ["self", "c"])):
        (found,) = find_codes(code, name)
        assert {*found.co_varnames, *found.co_cellvars} == set(known)
        arguments = find_arguments(tree, name)
        assert [each.arg for each in (*arguments.args, *arguments.kwonlyargs)] == known
    assert find_codes(code, "g") == find_codes(code, "C.g") == []
    twice = compile(source + source, "x", "exec")
    assert len(find_codes(twice, "f")) == 2  # which is meant can't be told: such a mutant gets a process of its own


def test_a_test_that_ends_its_process_has_failed_and_one_that_its_limit_ends_is_late(tmp_path):
    state = tmp_path / "state"
    for act, status in (
        (lambda: signal.raise_signal(signal.SIGTERM), "killed x"),
        (lambda: signal.raise_signal(signal.SIGPROF), "timeout x"),
        (lambda: state.write_text("survived"), "survived"),
    ):
        state.write_text("timeout x")
        in_child(act, state)
        assert state.read_text() == status
