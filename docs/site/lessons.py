"""Lessons and exercises as pages: executed, with what they print and the figures of their experiments."""

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nav import LESSONS, ROOT

from pellucid.lab import EXPERIMENTS, Outcome, draw_panels
from pellucid.lab.exercises import EXERCISES, source
from pellucid.lab.exercises.cells import BEGIN, Cell, notebook, parse_cells, script, with_answers, without_answers
from pellucid.views.figures import save_figure

NAMED = re.compile(r"`(\d\d_\w+)\.py`")
ASKED = re.compile(r'experiment\("(\w+)"\)')


def source_digest(*more: Path) -> str:
    """A name for all that a page's outputs follow from: the package's code, and these files."""
    files = [*sorted((ROOT / "pellucid").rglob("*.py")), *more]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def stage_lessons(site: Path, cache: Path, executed: Sequence[Path]) -> list[str]:
    """Write a page and a notebook for every lesson; executed anew if the package or the lesson has changed."""
    for lesson in LESSONS:
        done = cache / f"{lesson.stem}-{source_digest(lesson)}"
        cells = parse_cells(lesson.read_text(encoding="utf-8"))
        if lesson in executed and not (done / "outputs.json").is_file():
            done.mkdir(parents=True, exist_ok=True)
            (done / "outputs.json").write_text(json.dumps(execute(lesson, done)), encoding="utf-8")
        outputs = [{"printed": "", "figures": []}] * len(cells)
        if lesson in executed:
            outputs = json.loads((done / "outputs.json").read_text(encoding="utf-8"))
        folder = site / "learn"
        folder.mkdir(parents=True, exist_ok=True)
        for figure in done.glob("*.svg"):
            (folder / figure.name).write_bytes(figure.read_bytes())
        (folder / f"{lesson.stem}.md").write_text(lesson_page(lesson.stem, cells, outputs), encoding="utf-8")
        (folder / f"{lesson.stem}.ipynb").write_text(notebook(cells), encoding="utf-8")
        (folder / lesson.name).write_bytes(lesson.read_bytes())
    return [f"learn/{lesson.stem}.md" for lesson in LESSONS]


def execute(lesson: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a lesson cell by cell: of each what it printed, and the figures of the experiments that it ran."""
    namespace: dict[str, Any] = {"__name__": lesson.stem}
    outputs = []
    for i, cell in enumerate(parse_cells(lesson.read_text(encoding="utf-8"))):
        printed, figures = io.StringIO(), []
        if cell.kind == "code":
            before = {id(value) for value in namespace.values()}
            with contextlib.redirect_stdout(printed):
                exec(compile(cell.text, f"{lesson.name}, cell {i}", "exec"), namespace)
            new = [value for value in namespace.values() if isinstance(value, Outcome) and id(value) not in before]
            figures = list(draw_outcomes(new, ASKED.findall(cell.text), folder / f"{lesson.stem}-{i}"))
        outputs.append({"printed": printed.getvalue(), "figures": figures})
    return outputs


def draw_outcomes(outcomes: Sequence[Outcome], names: Sequence[str], stem: Path) -> Iterator[tuple[str, str]]:
    """A figure for each experiment that a cell ran, as its file and what it shows."""
    if len(outcomes) != len(names):
        return  # kept under other names: nothing says which is which
    for name, outcome in zip(names, outcomes, strict=True):
        path = stem.with_name(f"{stem.name}-{name}.svg")
        save_figure(draw_panels(outcome.panels, EXPERIMENTS[name].title), path)
        yield path.name, f"{EXPERIMENTS[name].title}: what the experiment {name} measured"


def lesson_page(stem: str, cells: Sequence[Cell], outputs: Sequence[dict[str, Any]]) -> str:
    """A lesson in Markdown: prose, code, and below it what it printed and drew."""
    parts = []
    for cell, output in zip(cells, outputs, strict=True):
        if cell.kind == "markdown":
            parts.append(NAMED.sub(_link, cell.text))
            continue
        parts.append(fenced(cell.text, "python"))
        if output["printed"].strip():
            parts.append(f'<div class="printed" markdown>\n\n{fenced(output["printed"].rstrip(), "text")}\n\n</div>')
        parts += [f"![{shows}]({name})" for name, shows in output["figures"]]
    download = f"Take it along: [as a notebook]({stem}.ipynb), [as Python]({stem}.py)."
    heading, _, first = parts[0].partition("\n")
    return "\n\n".join([heading, download, first.strip(), *parts[1:]]) + "\n"


def _link(match: re.Match[str]) -> str:
    title = next(lesson for lesson in LESSONS if lesson.stem == match[1]).read_text(encoding="utf-8").splitlines()[1]
    return f"[{title.removeprefix('# # ')}]({match[1]}.md)"


def fenced(text: str, language: str, indent: str = "") -> str:
    """A block of code; longer fences where it has fences itself."""
    fence = "````" if "```" in text else "```"
    return "\n".join(f"{indent}{line}".rstrip() for line in (f"{fence}{language}", *text.splitlines(), fence))


def stage_exercises(site: Path) -> list[str]:
    """Write a page for every exercise, its solution folded away, and the notebook and the script of both."""
    folder = site / "learn" / "exercises"
    (folder / "solutions").mkdir(parents=True, exist_ok=True)
    pages, listed = [], []
    for i, name in enumerate(EXERCISES, 1):
        cells, stem = parse_cells(source(name)), f"{i:02}_{name}"
        for where, chosen in ((folder, without_answers(cells)), (folder / "solutions", with_answers(cells))):
            (where / f"{stem}.ipynb").write_text(notebook(chosen), encoding="utf-8")
            (where / f"{stem}.py").write_text(script(chosen), encoding="utf-8")
        (folder / f"{stem}.md").write_text(exercise_page(stem, cells), encoding="utf-8")
        listed.append(f"{i}. [{cells[0].text.partition(chr(10))[0].removeprefix('# ')}]({stem}.md)")
        pages.append(f"learn/exercises/{stem}.md")
    (folder / "index.md").write_text(EXERCISES_INDEX + "\n".join(listed) + "\n", encoding="utf-8")
    return ["learn/exercises/index.md", *pages]


EXERCISES_INDEX = """# Exercises

Each asks you to predict, then to write a few lines, then lets tests judge them. They know what attention does, not how
you wrote it. The solution is folded away at the end of each page. All of them, as notebooks and as Python files:

```sh
pellucid lab exercises exercises
```

"""


def exercise_page(stem: str, cells: Sequence[Cell]) -> str:
    """An exercise in Markdown: what is to be written stands open, tests, solution and answer are folded."""
    number = int(stem[:2])
    heading, _, first = cells[0].text.partition("\n")
    download = f"Write it in [a notebook]({stem}.ipynb) or in [a Python file]({stem}.py)."
    parts, answers = [f"# {number}. {heading.removeprefix('# ')}", download, first.strip()], []
    for cell in cells[1:]:
        if cell.answer:
            answers.append("\n".join(f"    {line}".rstrip() for line in cell.text.splitlines()))
        elif cell.kind == "markdown":
            parts.append(cell.text)
        elif BEGIN in cell.text:
            (stub,), (solved,) = without_answers([cell]), with_answers([cell])
            parts.append(fenced(stub.text, "python"))
            answers.insert(0, fenced(solved.text, "python", "    "))
        elif "def test_" in cell.text:
            parts.append(f'??? note "The tests"\n\n{fenced(cell.text, "python", "    ")}')
        else:
            parts.append(fenced(cell.text, "python"))
    folded = "\n\n".join(answers)
    return "\n\n".join([*parts, f'??? success "The solution, and what comes out"\n\n{folded}']) + "\n"
