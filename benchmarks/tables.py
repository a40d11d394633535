"""Figures stand once, in results/; the tables of README, docs and the recipes' docstrings are made from them.

    python benchmarks/tables.py            # writes them
    python benchmarks/tables.py --check    # one sentence and exit code 1 if one of them says anything else

In Markdown a region from `<!-- results:KEY -->` to `<!-- end -->` is made. KEY is

    FILE/TABLE               a table of results/FILE.json, and below it when, where and how it was measured
    FILE/TABLE/ROW/COLUMN    one figure, within a line; the row is named by its first column, or `mean`
    FILE/settings/NAME       likewise, of what was set rather than measured
    summary, classifiers …   a view: a table of several files, made by the function of benchmarks/views.py

In a docstring of a recipe it is the paragraph that begins with "Evidence:". docs/scaling.svg is drawn from them, too.
"""

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
REGION = re.compile(r"(<!-- results:(.+?) -->)(.*?)(<!-- end -->)", re.DOTALL)
EVIDENCE = re.compile(r"^    Evidence:.*?(?=\n\n|\n    \"\"\")", re.DOTALL | re.MULTILINE)
FUNCTION = re.compile(r"^def (\w+)\(", re.MULTILINE)
WIDE = 120

Row = dict[str, Any]


class Results:
    """What lies in results/, read when it is first named."""

    def __init__(self, root: Path = ROOT):
        self.folder, self._read = root / "results", {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._read:
            path = self.folder / f"{name}.json"
            if not path.is_file():
                raise ValueError(f"there is no {path.name} in results/")
            self._read[name] = json.loads(path.read_text(encoding="utf-8"))
        return self._read[name]

    def get(self, name: str) -> dict[str, Any] | None:
        """What a file holds, if it is there."""
        return self[name] if (self.folder / f"{name}.json").is_file() else None

    def of(self, name: str) -> dict[str, Any] | None:
        """What was measured under this name, on whichever device; the GPU's if there are two."""
        there = [f"{name}-{device}" for device in ("cuda", "cpu") if (self.folder / f"{name}-{device}.json").is_file()]
        return self[there[0]] if there else None

    def values(self, key: str, **where: Any) -> list[Any]:
        """A column, FILE/TABLE/COLUMN, of all rows or of those that have these values."""
        file, table, column = key.split("/")
        rows = self[file]["tables"][table]["rows"]
        return [row[column] for row in rows if all(row[name] == value for name, value in where.items())]

    def value(self, key: str, **where: Any) -> Any:
        """The one figure of a column under these conditions."""
        (figure,) = self.values(key, **where)
        return figure

    def figure(self, key: str) -> str:
        """One figure in words: FILE/TABLE/ROW/COLUMN, or FILE/settings/NAME."""
        file, table, *rest = key.split("/")
        if table == "settings":
            return show(self[file]["settings"][rest[0]])
        columns, rows = (self[file]["tables"][table][part] for part in ("columns", "rows"))
        row, column = rest
        first = next(iter(columns))
        picked = [r[column] for r in rows if row == "mean" or str(r[first]) == row]
        if not picked:
            raise ValueError(f"results/{file}.json has no row {row!r} in its table {table!r}")
        return show(statistics.mean(picked) if row == "mean" else picked[0], **columns[column])


def show(value: Any, unit: str = "", digits: int = 0, signed: bool = False) -> str:
    """A figure as people read it. A share is given in percent, a list is a mean with its 95 % interval."""
    if value is None:
        return "–"
    if isinstance(value, list):
        mean, low, high = (show(part, unit, digits, signed) for part in value)
        return f"{mean} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"
    if isinstance(value, str):
        return value
    value, unit = (100 * value, "%") if unit == "share" else (value, unit)
    tiny = not unit and 0 < abs(value) < 0.5 * 10**-digits
    text = (f"{value:.1e}" if tiny else f"{value:{'+' if signed else ''},.{digits}f}").replace("-", "−")
    return text + (unit if unit == "×" else f" {unit}" if unit else "")


def markdown(columns: dict[str, Row], rows: list[Row]) -> list[str]:
    """The lines of a table, numbers to the right."""
    numeric = {name: not any(isinstance(row.get(name), str) for row in rows) for name in columns}
    return [
        f"| {' | '.join(columns)} |",
        f"| {' | '.join('---:' if numeric[name] else '---' for name in columns)} |",
        *(f"| {' | '.join(show(row.get(n), **columns[n]) for n in columns)} |" for row in rows),
    ]


def origin(result: dict[str, Any]) -> str:
    """When, where, with what and how something was measured."""
    versions = [f"{name} {version}" for name, version in result["versions"].items() if version]
    commit = f"commit {result['commit']}" if result["commit"] else None
    about = ", ".join(part for part in (result["date"], result["hardware"], *versions, commit) if part)
    return about + (f": `{result['command']}`" if result["command"] else "")


def report(result: dict[str, Any]) -> str:
    """All tables of a file, for the terminal."""
    lines = [f"# {result['name']}", "", origin(result)]
    if result["settings"]:
        lines += ["", ", ".join(f"{name}: {show(value)}" for name, value in result["settings"].items())]
    for table in result["tables"].values():
        lines += ["", f"## {table['title']}", "", *markdown(table["columns"], table["rows"])]
    return "\n".join(lines + (["", result["notes"]] if result["notes"] else []))


def region(key: str, results: Results) -> list[str]:
    """The lines of a block: a view, or a table with its origin."""
    from views import VIEWS

    if key in VIEWS:
        return VIEWS[key](results)
    file, name = key.split("/")
    table = results[file]["tables"][name]
    return [*markdown(table["columns"], table["rows"]), "", f"Measured {origin(results[file])}"]


def made_page(text: str, results: Results) -> str:
    """A page of Markdown with its regions made anew."""

    def fill(match: re.Match[str]) -> str:
        opening, key, body, closing = match.groups()
        if body.startswith("\n"):
            return "\n".join([opening, "", *region(key, results), "", closing])
        return opening + results.figure(key) + closing

    return REGION.sub(fill, text)


def made_recipes(text: str, results: Results) -> str:
    """A module of recipes with the evidence in its docstrings made anew; what results/ lacks stays."""
    from views import RECIPES, evidence

    def fill(match: re.Match[str]) -> str:
        name = FUNCTION.findall(text[: match.start()])[-1]
        if name not in RECIPES:
            return match[0]
        words = f"Evidence: {evidence(name, results)}"
        return textwrap.fill(words, WIDE, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False)

    return EVIDENCE.sub(fill, text)


def made_picture(_: str, results: Results) -> str:
    """The picture of what grows how, drawn anew."""
    from scaling import draw

    return draw(results)


def files(root: Path) -> Iterator[tuple[Path, Callable[[str, Results], str]]]:
    """Every file with figures in it, and how it is made."""
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        yield path, made_page
    yield root / "docs" / "scaling.svg", made_picture
    for path in sorted((root / "pellucid").rglob("*.py")):
        if EVIDENCE.search(path.read_text(encoding="utf-8")):
            yield path, made_recipes


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    check = parser.parse_args(words).check
    results, stale = Results(root), []
    for path, make in files(root):
        old = path.read_text(encoding="utf-8")
        try:
            new = make(old, results)
        except (KeyError, ValueError) as error:
            print(f"{path.relative_to(root)} can't be made: {error}", file=sys.stderr)
            return 1
        if new != old:
            stale.append(str(path.relative_to(root)))
            if not check:
                path.write_text(new, encoding="utf-8")
                print(f"wrote {stale[-1]}")
    if check and stale:
        print(f"{', '.join(stale)}: not what results/ says; run python benchmarks/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
