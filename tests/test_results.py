"""Figures stand once, in results/: every page and docstring says what is there, and a changed number is noticed."""

import datetime
import json
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest

from pellucid.recipes import RECIPES

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import report
import tables
import views

ROOT = tables.ROOT
FILES = sorted((ROOT / "results").glob("*.json"))


@pytest.fixture
def copy(tmp_path):
    """All that tables are made from and written into."""
    for folder in ("results", "docs", "pellucid"):
        ignored = shutil.ignore_patterns("*.png", "*.jpg", "*.safetensors", "__pycache__", "weights", "viewer")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def change(path, table, column, value):
    result = json.loads(path.read_text())
    result["tables"][table]["rows"][0][column] = value
    path.write_text(report.in_lines(result) + "\n")


def test_nothing_is_stale(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "table", "column", "value", "stale"),
    [
        ("vit_cifar10_fast-cuda", "seeds", "top1", 0.5, ["README.md", "docs/results.md", "recipes/vit.py"]),
        ("captioner_scenes-cpu", "seeds", "pointing", 0.5, ["docs/caption.md", "recipes/captioner.py"]),
        ("faithfulness-cpu", "blur", "deletion", [0.1, 0.0, 0.2], ["docs/explain.md", "docs/results.md"]),
        ("server-cpu", "answers", "p99", 1.0, ["docs/results.md"]),
        ("attention-cuda", "summaries", "time", 99.0, ["docs/results.md", "docs/scaling.svg"]),
    ],
)
def test_a_changed_number_is_noticed_and_brought_everywhere(copy, capsys, file, table, column, value, stale):
    assert tables.main(["--check"], root=copy) == 0
    change(copy / "results" / f"{file}.json", table, column, value)
    before = (copy / "README.md").read_text()
    assert tables.main(["--check"], root=copy) == 1
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    assert all(name in sentence for name in stale)
    assert ("README.md" in sentence) == ("README.md" in stale)
    assert (copy / "README.md").read_text() == before, "a check changes nothing"
    assert tables.main([], root=copy) == 0
    assert tables.main(["--check"], root=copy) == 0
    assert capsys.readouterr().out.count("wrote") >= len(stale)


def test_a_number_changed_by_hand_is_noticed(copy, capsys):
    page = copy / "docs" / "results.md"
    page.write_text(page.read_text().replace("98.06", "98.96"))
    assert tables.main(["--check"], root=copy) == 1
    assert "docs/results.md" in capsys.readouterr().err


def test_a_page_that_names_what_is_not_there_gets_a_sentence(copy, capsys):
    (copy / "docs" / "new.md").write_text("<!-- results:speed-of-light/vacuum -->\n<!-- end -->\n")
    assert tables.main(["--check"], root=copy) == 1
    assert capsys.readouterr().err == "docs/new.md can't be made: there is no speed-of-light.json in results/\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_where_its_numbers_come_from(path):
    result = json.loads(path.read_text())
    assert path.stem == f"{result['name']}-{result['device']}"
    assert result["device"] in ("cpu", "cuda")
    datetime.date.fromisoformat(result["date"])
    assert {"commit", "hardware", "versions", "command", "seeds", "settings", "notes"} <= set(result)
    for table in result["tables"].values():
        assert table["rows"]
        assert all(set(row) == set(table["columns"]) for row in table["rows"])
        assert all(set(column) <= {"unit", "digits", "signed"} for column in table["columns"].values())
    assert path.read_text() == report.in_lines(result) + "\n", "a row is a line"


def test_columns_hold_numbers_not_words():
    """A cell with digits in it is a number or a name: figures are not formatted before they are kept."""
    for path in FILES:
        for table in json.loads(path.read_text())["tables"].values():
            for column, how in table["columns"].items():
                if how.get("unit") or how.get("digits"):
                    assert not any(isinstance(row[column], str) for row in table["rows"]), (path.name, column)


def test_every_recipe_states_its_evidence():
    """What results/ has of it, word by word."""
    assert set(views.RECIPES) <= set(RECIPES)
    for name in views.RECIPES:
        stated = " ".join(RECIPES[name].__doc__.split())
        assert f"Evidence: {views.evidence(name, tables.Results())}" in stated, name


def test_every_figure_in_readme_is_in_results():
    """Read from the page by itself: each number with a point is one of results/, a mean or an end of a column."""
    pool = set()
    for path in FILES:
        result = json.loads(path.read_text())
        pool |= {value for value in result["settings"].values() if isinstance(value, (int, float))}
        for table in result["tables"].values():
            for column in table["columns"]:
                cells = [row[column] for row in table["rows"]]
                numbers = [cell for cell in cells if isinstance(cell, (int, float))]
                pool |= {*numbers, *(part for cell in cells if isinstance(cell, list) for part in cell)}
                pool |= {statistics.mean(numbers)} if numbers else set()
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|")]
    figures = [figure for row in rows for figure in re.findall(r"−?\d[\d,]*\.\d+", row)]
    assert len(figures) > 20
    for figure in figures:
        digits, number = len(figure.partition(".")[2]), float(figure.replace("−", "-").replace(",", ""))
        near = {round(scale * value, digits) for value in pool for scale in (1, 100)}
        assert number in near, figure
    assert 12.34 not in {round(scale * value, 2) for value in pool for scale in (1, 100)}


def test_a_figure_within_a_line_does_not_begin_it():
    """Markdown takes a line that begins with a comment for raw HTML, and the paragraph for ended."""
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"^<!-- results:.+? -->.", path.read_text(), flags=re.MULTILINE), path.name


def test_all_of_results_is_shown_somewhere():
    text = "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    for path in FILES:
        name = json.loads(path.read_text())["name"]
        assert f"results:{path.stem}/" in text or name in views.RECIPES, path.name


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [
        (None, {}, "–"),
        (0.944, {"unit": "share", "digits": 2}, "94.40 %"),
        (1234.5, {"unit": "ms", "digits": 1}, "1,234.5 ms"),
        (1.376, {"unit": "×", "digits": 2}, "1.38×"),
        (-0.1, {"digits": 3, "signed": True}, "−0.100"),
        ([0.762, 0.746, 0.778], {"unit": "share", "digits": 1}, "76.2 % [74.6, 77.8]"),
        (4.2e-6, {}, "4.2e−06"),
        ("rollout", {}, "rollout"),
    ],
)
def test_how_figures_are_shown(value, how, text):
    assert tables.show(value, **how) == text
