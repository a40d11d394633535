"""The teaching documents run, and what they teach is there: every sentence that courses get wrong has its place."""

import itertools
import re
import runpy
from pathlib import Path

import pytest

from pellucid.lab import EXPERIMENTS
from pellucid.lab.exercises import EXERCISES
from pellucid.lab.exercises.cells import parse_cells

DOCS = sorted((Path(__file__).parent.parent / "docs").glob("[0-9][0-9]_*.py"))
WRONG_IN_COURSES = (
    "shapes.columns",
    "shapes.single_head",
    "packed.row",
    "built.equal_weights",
    "convolution.band",
    "norms.layer_norm",
    "itself.word",
    "masks.vit",
    "testing.reversed",
    "testing.decoder",
    "choices.hard",
    "choices.soft",
    "sequential.convolution",
    "sizes.cnn",
    "rotation.crops",
)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_documents_run(path, capsys):
    runpy.run_path(str(path))
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_documents_explain_every_step(path):
    """Prose before all code, and a way on at the end."""
    cells = parse_cells(path.read_text())
    kinds = [cell.kind for cell in cells]
    assert kinds[0] == kinds[-1] == "markdown"
    assert all("code" not in pair or "markdown" in pair for pair in itertools.pairwise(kinds))
    number = int(path.stem[:2])
    assert cells[0].text.startswith(f"# {number}. ")
    if path != DOCS[-1]:
        assert f"`{DOCS[number].name}`" in cells[-1].text
    code = "\n".join(cell.text for cell in cells if cell.kind == "code")
    assert code.count("assert ") >= 5, "numbers that are talked about are held"


def test_they_are_numbered_from_one():
    assert [int(path.stem[:2]) for path in DOCS] == list(range(1, 12))


def test_every_experiment_stands_in_one():
    text = "\n".join(path.read_text() for path in DOCS)
    assert set(re.findall(r'experiment\("(\w+)"\)', text)) == set(EXPERIMENTS)


def test_every_wrong_claim_is_taught():
    code = "\n".join(cell.text for path in DOCS for cell in parse_cells(path.read_text()) if cell.kind == "code")
    for claim in WRONG_IN_COURSES:
        assert f'"{claim}"' in code


def test_what_they_name_is_there():
    """Experiments and exercises that the text sends readers to."""
    text = "\n".join(path.read_text() for path in DOCS)
    named = {word.split("`")[0].split()[0] for word in text.split("`pellucid lab ")[1:]}
    assert named - {"exercises"} <= set(EXPERIMENTS)
    assert "exercises" in named
    numbers = [
        number for listed in re.findall(r"[Ee]xercises? (\d+(?:(?:, | and )\d+)*)", text) for number in listed.split()
    ]
    assert {int(number.rstrip(",")) for number in numbers if number != "and"} == set(range(1, len(EXERCISES) + 1))
