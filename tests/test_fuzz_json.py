"""Mutants of every JSON file that the project reads, in a process with a gigabyte: read, or one sentence."""

import random
import re
import subprocess
import sys
from pathlib import Path

import fuzz_json
import pytest


@pytest.mark.slow
def test_mutants_of_every_file_are_read_or_refused_in_a_sentence():
    command = [sys.executable, str(Path(fuzz_json.__file__)), "--count", "2500", "--seconds", "500", "--seed", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert re.search(r"2,500 mutants, 0 went wrong in 0 ways", ran.stdout)


def test_what_is_wrong_is_noticed():
    """Else the mutants would say nothing."""
    rng, values = random.Random(0), {"a": [1, {"b": 2}], "c": "d"}

    def reading(text):
        raise {b"T": TypeError, b"U": UnicodeError, b"V": ValueError}[text](text.decode() * 20)

    target = fuzz_json.Target("any", values, reading)
    assert "TypeError" in (fuzz_json.check(target, b"T") or "")
    assert "UnicodeError" in (fuzz_json.check(target, b"U") or "")
    assert fuzz_json.check(target, b"V") is None
    assert fuzz_json.check(fuzz_json.Target("any", values, lambda text: None), b"") is None
    mutants = {fuzz_json.mutant(rng, target) for _ in range(200)}
    assert len(mutants) > 100
