"""A file of cells (`# %%`), and what it becomes: a script or a notebook, with the answers or without.

The source of an exercise is its solution. What the learner is to write stands between two marks, and a cell of prose
that speaks of the answer is marked in its first line:

    # %% [markdown] answer

So the exercise is the source with something left out, and the two can't drift apart.
"""

import json
import re
from typing import Literal, NamedTuple

BEGIN, END = "# solution", "# end of solution"
HEADER = re.compile(r"# %%(?P<prose> \[markdown\](?P<answer> answer)?)?")
DEFINED = re.compile(r"def (\w+)\(")


class Cell(NamedTuple):
    """Prose or code, and whether it is for those who have solved the exercise."""

    kind: Literal["markdown", "code"]
    text: str
    answer: bool = False


def parse_cells(source: str) -> list[Cell]:
    """The cells of a file.

    >>> parse_cells("# %% [markdown]\\n# Add *one*.\\n\\n# %%\\nx = 1\\n")
    [Cell(kind='markdown', text='Add *one*.', answer=False), Cell(kind='code', text='x = 1', answer=False)]
    """
    parts: list[tuple[re.Match[str], list[str]]] = []
    for line in source.splitlines():
        if header := HEADER.fullmatch(line):
            parts.append((header, []))
        elif parts:
            parts[-1][1].append(line)
        elif line:
            raise ValueError(f"the file begins with {line!r}; expected a cell, '# %%' or '# %% [markdown]'")
    cells = []
    for header, lines in parts:
        prose = header["prose"] is not None
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines) if prose else "\n".join(lines)
        cells.append(Cell("markdown" if prose else "code", text.strip("\n"), header["answer"] is not None))
    return cells


def without_answers(cells: list[Cell]) -> list[Cell]:
    """What the learner gets: in place of each solution a sentence that says whose turn it is."""
    return [cell._replace(text=_opened(cell.text)) for cell in cells if not cell.answer]


def with_answers(cells: list[Cell]) -> list[Cell]:
    """The solution, without its marks."""
    lines = [[line for line in cell.text.splitlines() if line.strip() not in (BEGIN, END)] for cell in cells]
    return [Cell(cell.kind, "\n".join(kept)) for cell, kept in zip(cells, lines, strict=True)]


def _opened(code: str) -> str:
    """The code with each marked region replaced.

    >>> print(_opened("def one():\\n    # solution\\n    return 1\\n    # end of solution"))
    def one():
        raise NotImplementedError("one is yours to write: fill it in, then run the tests again")
    """
    kept, name, hidden = [], "", False
    for line in code.splitlines():
        name = match[1] if (match := DEFINED.match(line)) else name
        if line.strip() == BEGIN:
            hidden = True
            sentence = f"{name} is yours to write: fill it in, then run the tests again"
            kept.append(f'{line.partition("#")[0]}raise NotImplementedError("{sentence}")')
        elif line.strip() == END:
            hidden = False
        elif not hidden:
            kept.append(line)
    return "\n".join(kept)


def script(cells: list[Cell]) -> str:
    """The cells as Python that editors show as a notebook."""
    parts = []
    for cell in cells:
        if cell.kind == "markdown":
            parts.append("\n".join(["# %% [markdown]", *(f"# {line}".rstrip() for line in cell.text.splitlines())]))
        else:
            parts.append(f"# %%\n{cell.text}")
    return "\n\n".join(parts) + "\n"


def notebook(cells: list[Cell]) -> str:
    """The cells as a notebook (nbformat 4.5), always in the same bytes."""
    entries = []
    for i, cell in enumerate(cells):
        lines = cell.text.splitlines(keepends=True)
        entry = {"cell_type": cell.kind, "id": f"cell-{i}", "metadata": {}, "source": lines}
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": []}
        entries.append(entry)
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    data = {"cells": entries, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
