"""The site: pages have their place and their links, tasks run as they are written, public names have examples."""

import csv
import inspect
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import build
import griffe
import pytest
import yaml
from browser import axe_violations, keep
from browser import chromium as chromium
from browser import serving as serving_folder
from browser import visit as visit
from examples import fence_examples
from lookup import escaped, public_names, source_name
from nav import DO, ROOT, TASKS, placed, sections
from PIL import Image
from staging import MADE, relink

from pellucid.cli import main

DOCS = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONGEST = 85  # lines of a task: two screens
# What opens in the browser: a page of each kind, and those that are alive.
TEN = (
    *("index", "learn/index", "learn/01_attention", "learn/exercises/01_attention", "do/index", "do/attend"),
    *("understand/index", "understand/explanation", "lookup/ledger/index", "lookup/ledger/shapes.columns"),
    "lookup/models",
)
POLICY = (  # what a site as strict as can be would send; the theme has scripts and styles of its own inside the page
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-src 'self'; worker-src 'self'"
)


# Pages.


def test_every_page_has_one_place():
    places = {page: place for page, place in placed().items() if page != "README.md"}
    assert len(set(places.values())) == len(places)
    assert {f"docs/{path.name}" for path in DOCS} <= places.keys()
    assert [section.first for section in sections() if not (ROOT / section.first).is_file()] == []


def test_a_page_that_nobody_named_is_a_task(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "new.md").write_text("# New\n")
    assert placed(tmp_path)["docs/new.md"] == "do/new.md"


def test_links_lead_to_the_same_on_the_site(tmp_path):
    places = placed()
    text = "[a](watch.md#steering), ![b](viewer.png), [c](../LOG.md), [d](https://a.org), [e](../results), `[f](x.md)`"
    moved = relink(text, "docs/explain.md", ROOT, tmp_path, places)
    assert moved == (
        "[a](watch.md#steering), ![b](../files/viewer.png), [c](log.md), [d](https://a.org), [e](results.md), "
        "`[f](x.md)`"
    )
    assert (tmp_path / "files" / "viewer.png").is_file()
    with pytest.raises(ValueError, match=r"links to docs/nowhere\.md, which isn't there"):
        relink("[a](nowhere.md)", "docs/explain.md", ROOT, tmp_path, places)


def test_what_only_the_site_has_is_linked_there(tmp_path):
    cell = "| a command | The command line |"
    assert relink(cell, "docs/lookup.md", ROOT, tmp_path, placed()) == cell
    (tmp_path / "lookup").mkdir()
    (tmp_path / "lookup" / "commands.md").write_text("# The command line\n")
    linked = relink(cell, "docs/lookup.md", ROOT, tmp_path, placed())
    assert linked == "| a command | [The command line](commands.md) |"
    assert [title for title in MADE if f"| {title} |" not in (ROOT / "docs" / "lookup.md").read_text()] == []


def test_marks_of_tables_leave_the_words_apart(tmp_path):
    text = "<!-- results:a/b -->\n\n| 1 |\n\n<!-- end -->\n\nof <!-- results:a/b/c/d -->5<!-- end -->\nimages"
    assert relink(text, "docs/explain.md", ROOT, tmp_path, placed()) == "| 1 |\n\nof 5\nimages"


@pytest.mark.parametrize("path", [*DOCS, ROOT / "README.md", ROOT / "docs" / "site" / "index.md"], ids=lambda p: p.name)
def test_every_picture_says_what_it_shows(path):
    text = path.read_text(encoding="utf-8")
    for says in re.findall(r"!\[([^\]]*)\]", text):
        assert len(says.split()) >= 4, f"{says!r} doesn't tell whoever can't see it"
    assert all("title=" in frame for frame in re.findall(r"<iframe[^>]*>", text))


def test_drawings_are_whole_and_named():
    drawings = sorted((ROOT / "docs").glob("idea-*.svg"))
    assert len(drawings) == 5
    for path in drawings:
        assert ET.parse(path).getroot()[0].text, path.name


def test_policy_files_are_what_they_are_read_as():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (
        f"pellucid {cited['version']}"
        == subprocess.run(
            [sys.executable, "-m", "pellucid", "--version"], capture_output=True, text=True
        ).stdout.strip()
    )
    for path in [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert isinstance(yaml.safe_load(path.read_text()), dict), path
    targets = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for target in re.findall(r"run: make (\w+)", path.read_text()):
            assert re.search(rf"^{target}:", targets, re.MULTILINE), f"{path.name} makes {target}"


# Tasks.


def test_tasks_are_short_and_in_the_list():
    listed = (ROOT / DO.first).read_text()
    for name in TASKS:
        assert f"docs/{name}.md" in DO.pages
        assert f"({name}.md)" in listed
        assert (ROOT / "docs" / f"{name}.md").read_text().count("\n") <= LONGEST, name


@pytest.mark.parametrize("name", TASKS)
def test_a_task_runs_as_it_is_written(name, tmp_path, monkeypatch, capsys):
    """Its blocks in their order: Python in one namespace, commands one by one; a table it shows is a file."""
    monkeypatch.chdir(tmp_path)
    for kind in ("cat", "dog"):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for i in range(12):
            Image.effect_noise((40, 40), 64).convert("RGB").save(tmp_path / "pictures" / kind / f"{i}.png")
    for picture, size in (("photo.jpg", (96, 64)), ("scene.png", (48, 48))):
        Image.effect_noise(size, 64).convert("RGB").save(picture)
    namespace = {}
    for language, block in BLOCK.findall((ROOT / "docs" / f"{name}.md").read_text()):
        if language == "python":
            exec(compile(block, f"{name}.md", "exec"), namespace)
            for line in block.splitlines():
                if match := re.match(r"(\S.*?)\s+#.*?(\((?:\d+,|\d+(?:, \d+)+)\))$", line):
                    assert tuple(eval(match[1], namespace).shape) == eval(match[2]), line
        elif language == "sh":
            for line in block.splitlines():
                run_command(shlex.split(line, comments=True))
        elif block.startswith("file,caption"):
            (tmp_path / "captions.csv").write_text(block)
            assert {row["file"] for row in csv.DictReader(block.splitlines())} <= {"photo.jpg", "scene.png"}
    capsys.readouterr()


def run_command(words):
    if words[0] == "pellucid":
        assert main(words[1:]) == 0, words
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run([*launcher, *words[1:]], check=True, capture_output=True, timeout=240)


# Names.


def test_no_function_is_described_as_the_file_that_is_called_as_it_is():
    """`train` stands in train.py, and its page would be that of the whole file."""
    package = griffe.load("pellucid", search_paths=[str(ROOT)])
    offered = [(module, name, value) for module, there in public_names().items() for name, value in there.items()]

    def files(paths):
        return [path for path in paths if package[path.removeprefix("pellucid.")].is_module]

    assert files(source_name(*each) for each in offered) == []
    assert "pellucid.train" in files(f"{module}.{name}" for module, name, _ in offered)


def test_every_public_name_has_an_example_that_runs():
    """Examples (`>>>`) are run by the doctests; here they are counted."""
    names = {f"{module}.{name}": value for module, there in public_names().items() for name, value in there.items()}
    assert len(names) > 150
    data = {name for name, value in names.items() if not inspect.isclass(value) and not inspect.isroutine(value)}
    without = [name for name, value in names.items() if ">>> " not in (inspect.getdoc(value) or "")]
    assert set(without) <= data


def test_examples_are_set_as_code():
    text = "Adds.\n\n>>> x = 1 + (\n...     1\n... )\n>>> x\n2\n\nThen more.\n"
    assert fence_examples(text) == "Adds.\n\n```pycon\n>>> x = 1 + (\n...     1\n... )\n>>> x\n2\n```\n\nThen more.\n"
    assert escaped("in_proj <b>|*") == r"in\_proj \<b\>\|\*"


# The whole, in a browser.


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site without its API, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    build.build(folder / "html", folder, quick=True)
    return folder / "html"


def test_ten_pages_from_disk(site, visit, tmp_path):
    page = visit((site / "index.html").as_uri(), home=site.as_uri())
    for name in TEN:
        page.goto((site / f"{name}.html").as_uri())
        assert page.locator("h1").first.inner_text().strip()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the window"
        keep(page, f"site-{name.replace('/', '-')}", tmp_path)
    page.get_by_label("Search", exact=True).first.click()
    page.get_by_role("textbox", name="Search").press_sequentially("temperature")
    page.locator(".md-search-result__item").first.wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_whoever_cannot_see_or_point_reads_it_too(site, visit, dark):
    """axe's rules, but for the theme's button beside each block of code, which is a landmark of its own to it."""
    with serving_folder(site, POLICY) as address:
        page, found = visit(address, dark=dark), {}
        for name in TEN:
            page.goto(f"{address}{name}.html", wait_until="networkidle")
            assert page.locator("body").get_attribute("data-md-color-scheme") == ("slate" if dark else "default")
            found[name] = [each for each in axe_violations(page) if "md-code__nav" not in each]
    assert {name: each for name, each in found.items() if each} == {}


def test_from_a_server_a_slider_moves(site, visit):
    with serving_folder(site, POLICY) as address:
        page = visit(address + "lookup/lab.html", width=390, height=844)
        frame = page.frame_locator("iframe.live")
        slider = frame.get_by_role("slider").first
        slider.wait_for()
        before = frame.locator("main").inner_text()
        slider.focus()
        for _ in range(5):
            slider.press("ArrowRight")
        assert frame.locator("main").inner_text() != before
        page.wait_for_load_state("networkidle")  # or what is still asked for fails as the page goes
        page.goto(address + "learn/01_attention.html", wait_until="networkidle")
        assert "mixture" in page.locator(".printed").first.inner_text()
