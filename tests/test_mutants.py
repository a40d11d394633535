"""What is said of mutants that no test can see is said of mutants that there are."""

import json
from pathlib import Path

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
