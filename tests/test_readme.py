"""README and the pages under docs say what is so: code runs, commands parse, shapes and links are true."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tyro
from nav import TASKS
from PIL import Image
from strangers import stranger

from pellucid.cli import main
from pellucid.cli.sweep import split_words
from pellucid.cli.verbs import VERBS, ExercisesOptions, LabOptions, TrainOptions
from pellucid.config import override
from pellucid.lab import EXPERIMENTS
from pellucid.recipes import recipe
from pellucid.training.sweep import list_combinations

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
REGION = re.compile(r"<!-- results:.+? -->.*?<!-- end -->", re.DOTALL)


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


WITH_CODE = [name for name, text in PAGES.items() if blocks(text, "python") and name.removesuffix(".md") not in TASKS]
COMMANDS = [
    (name, line.split("#")[0].strip())
    for name, text in PAGES.items()
    for block in blocks(text, "sh")
    for line in block.splitlines()
]


@pytest.fixture
def pictures(tmp_path, monkeypatch, request):
    """Where the pages' pictures lie, and where they may write; and of the page that looks at any model, a model."""
    monkeypatch.chdir(tmp_path)
    if "look.md" in request.node.name:
        request.getfixturevalue("transformers")
        made = stranger("gpt2")
        made.model.save_pretrained("gpt2")
        made.reader.save_pretrained("gpt2")
    for name, size in (("photo.jpg", (96, 64)), ("scene.png", (48, 48))):
        Image.effect_noise(size, 64).convert("RGB").save(name)


@pytest.mark.parametrize("name", WITH_CODE)
@pytest.mark.usefixtures("pictures", "capsys")
def test_the_python_of_a_page_runs_and_shapes_in_its_comments_are_true(name):
    """One block after the other, as a reader would; each line `expression  # … (1, 2, 3)` has that shape."""
    namespace = {}
    for number, block in enumerate(blocks(PAGES[name], "python")):
        exec(compile(block, f"{name}, block {number}", "exec"), namespace)
        for line in block.splitlines():
            if match := re.match(r"(\S.*?)\s+#.*?(\((?:\d+,|\d+(?:, \d+)+)\))$", line):
                assert tuple(eval(match[1], namespace).shape) == eval(match[2]), line


def test_shapes_are_written_down():
    text = "\n".join(PAGES.values())
    assert len(re.findall(r"# .*\(\d+(?:, \d+)*,?\)$", text, flags=re.MULTILINE)) >= 10


def test_readme_is_short_and_shows_code_early():
    assert README.count("\n") < 120
    assert README[: README.index("```")].count("\n") < 20
    assert README[: README.index("```python")].count("\n") < 20


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_commands_of_a_page_can_be_given(name, line):
    check_command(line)


@pytest.mark.parametrize(
    "line",
    [
        "pellucid look photo.jpg",
        "pellucid predict vit-cifar10 photo.jpg --tops 3",
        "pellucid train vit_digits --optim.rate 3",
        "pellucid train vit_letters",
        "pellucid sweep vit_digits --vary optim.rate 3",
        "pellucid lab temperament",
        "make coffee",
    ],
)
def test_other_commands_can_not(line, capsys):
    with pytest.raises((SystemExit, AssertionError, ValueError)):
        check_command(line)


def check_command(line):
    """Its verb and options exist; nothing runs."""
    if line.startswith("make "):
        assert re.search(rf"^{line.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
    elif line.startswith("pip install"):
        extras = re.findall(r"\.\[(\w+)\]", line)
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(extras) <= set(known), line
    elif line.startswith("python "):
        assert (ROOT / line.split()[1]).is_file(), line
    else:
        assert re.match(r"(torchrun \S+ -m )?pellucid ", line), f"{line!r} is no command that can be checked"
        parse(shlex.split(line.partition("pellucid ")[2]))


def parse(words):
    verb, *options = words
    if verb == "train":
        asked, changes = tyro.cli(TrainOptions, args=options, return_unknown_args=True)
        base = recipe(asked.recipe)
        tyro.cli(type(base), default=base, args=changes)
    elif verb in ("sweep", "rate"):
        asked, changes = tyro.cli(VERBS[verb], args=options, return_unknown_args=True)
        base, (vary, rest) = recipe(asked.recipe), split_words(changes)
        tyro.cli(type(base), default=base, args=rest)
        for combination in list_combinations(vary, asked.draws, 0) if verb == "sweep" else ():
            override(base, combination)
    elif words[:2] == ["lab", "exercises"]:
        tyro.cli(ExercisesOptions, args=options[1:])
    elif verb == "lab":
        asked, changes = tyro.cli(LabOptions, args=options, return_unknown_args=True)
        assert not changes, words
        assert asked.name is None or asked.name in EXPERIMENTS, words
    else:
        tyro.extras.subcommand_cli_from_dict(VERBS, args=words)


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if "```console" in text])
def test_what_the_command_prints_is_what_it_prints(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGES[name], "console"):
        command, *printed = block.splitlines()
        assert main(shlex.split(command.removeprefix("$ pellucid "))) == 0
        really = capsys.readouterr().out.splitlines()
        assert len(printed) > 5
        for line in printed:
            assert line == "…" or line in really, line


def test_something_is_printed():
    assert any(blocks(text, "console") for text in PAGES.values())


@pytest.mark.parametrize("name", PAGES)
def test_what_is_linked_is_there(name):
    folder = ROOT if name == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGES[name]):
        assert (folder / target).exists(), target


def test_every_page_is_linked_from_readme_or_from_a_page_that_is():
    seen, todo = set(), {"README.md"}
    while todo:
        seen.add(name := todo.pop())
        todo |= {
            target.rpartition("/")[2] for target in re.findall(r"\]\(([^)#:]+\.md)", PAGES[name])
        } & PAGES.keys() - seen
    assert PAGES.keys() - seen == set()


def test_readme_has_no_figure_of_its_own():
    """What was measured stands in a region that is made from results/, and nowhere else."""
    rest = re.sub(r"```.*?```", "", REGION.sub("", README), flags=re.DOTALL)
    assert "|" not in rest, "a table outside of a region"
    assert not re.findall(r"\d+(?:\.\d+)? ?(?:%|×|ms\b|s\b|MB\b|images/s)", rest)
    assert not re.findall(r"\d ?(?:%|×|ms\b|MB\b|images/s)", "".join(blocks(README, "python") + blocks(README, "sh")))
    assert REGION.search(README)
