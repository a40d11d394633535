"""What ARCHITECTURE.md and STYLE promise of the code: walks that can be walked, short functions, one class a name."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pellucid"
PLAN = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
WALKS = re.findall(r"^\d\. \*\*([^*]+)\*\*, `(.*?)(?=^\d\. \*\*|^## |\Z)", PLAN.split("## Four walks")[1], re.M | re.S)[
    :4
]
LONGEST = 60  # lines of a function
# Two things that are rightly called the same: what learners write, and what the API calls what the library has.
APART = ("lab/exercises/", "serve/schemas.py")


@functools.cache
def modules() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def test_no_function_is_longer_than_a_screen():
    long = []
    for folder in ("pellucid", "benchmarks", "docs", "release"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    long += [f"{path.relative_to(ROOT)}: {node.name}, {lines}"] if lines > LONGEST else []
    assert long == []


def test_a_class_has_a_name_of_its_own():
    """Classes, and types that are given a name: `Step` can't be a step of training here and a call there."""
    homes = defaultdict(set)
    for path, module in modules().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                homes[node.targets[0].id].add(path)
    named = {name: paths for name, paths in homes.items() if re.fullmatch(r"(?:[A-Z]+[a-z]\w*)", name)}
    assert len(named) > 300
    apart = {name: {path for path in paths if not path.startswith(APART)} for name, paths in named.items()}
    assert {name: paths for name, paths in apart.items() if len(paths) > 1} == {}


@functools.cache
def imports_of(path: str) -> set[str]:
    """The files of the package that a file imports, and those that a room that it imports does."""
    found = set()
    for node in ast.walk(modules()[path]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pellucid"):
            for alias in node.names:
                found |= homes_of(node.module or "", alias.name)
    rooms = {each for each in found - {path} if each.endswith("__init__.py")}
    return found.union(*(imports_of(room) for room in rooms)) - {path}


def homes_of(module: str, name: str) -> set[str]:
    """The file in which a name that is imported from a module is written."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    if (file := place.with_suffix(".py")).is_file():
        return {file.relative_to(PACKAGE).as_posix()}
    if (place / name).is_dir():
        return {f"{(place / name).relative_to(PACKAGE).as_posix()}/__init__.py"}
    if (file := place / f"{name}.py").is_file():
        return {file.relative_to(PACKAGE).as_posix()}
    room = place / "__init__.py"
    found = {room.relative_to(PACKAGE).as_posix()}
    for node in ast.walk(modules()[room.relative_to(PACKAGE).as_posix()]):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            found |= homes_of(node.module or "", name)
    return found


def test_there_are_four_walks():
    assert [name for name, _ in WALKS] == [
        "Train digits", "Caption a picture", "Attend to a report", "A claim to its line in the ledger",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), WALKS, ids=[name for name, _ in WALKS])
def test_a_walk_leads_from_file_to_file(name, text):
    """Each stands there once, and one that the reader has met imports it, or names it."""
    files = re.findall(r"`([\w/]+\.(?:py|js))`", text)
    assert len(files) == len(set(files)) >= 6
    assert [file for file in files if not (PACKAGE / file).is_file()] == []
    for i, file in enumerate(files[1:], 1):
        met = files[:i]
        imported = any(file in imports_of(each) for each in met)
        named = any(re.search(rf"[\"']{Path(file).stem}\b", (PACKAGE / each).read_text()) for each in met)
        assert imported or named, f"{name}: nobody before {file} leads there"


def test_every_room_is_in_the_plan():
    table = PLAN.split("## Rooms")[1].split("## Four walks")[0]
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    single = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert {name for name in rooms | single if f"`{name}`" not in table} == set()
    for room, inside in re.findall(r"^\| `(\w+)/` \| (.*?) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`(?!/)", inside):
            assert (PACKAGE / room / f"{name}.py").is_file() or (PACKAGE / room / name).is_dir() or ends(room, name), (
                f"ARCHITECTURE.md names {name} in {room}/"
            )


def ends(room: str, name: str) -> bool:
    """A name in the table that is no file: of something in one."""
    return any(re.search(rf"\b{name}\b", path.read_text()) for path in (PACKAGE / room).glob("*.py"))
