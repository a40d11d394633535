"""The command, as a person runs it."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image

import pellucid
from pellucid.cli import main

SCRIPT = [sys.executable, "-m", "pellucid"]


def run(*words, code=0):
    result = subprocess.run([*SCRIPT, *words], capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    return result


HELP = ([], ["train"], ["data"], ["data", "look"], ["demo"])


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_quick_and_needs_no_torch(words):
    probe = "import sys, pellucid.cli as c\n"
    probe += f"try:\n    c.main([*{words}, '--help'])\nexcept SystemExit: pass\n"
    probe += "assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    assert min(timed_help(*words) for _ in range(5)) < 0.5


def timed_help(*words):
    """Seconds of the processor's time: what else runs on a machine doesn't count."""
    before = os.times()
    run(*words, "--help")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_shows_an_example_for_every_verb():
    from pellucid.cli.verbs import VERBS

    text = run("--help").stdout
    for verb in VERBS:
        assert f"Example: pellucid {verb}" in text
        assert f"Example: pellucid {verb}" in run(verb, "--help").stdout
    for verb in ("fetch", "look", "inspect"):
        assert f"Example: pellucid data {verb}" in run("data", verb, "--help").stdout


def test_the_verbs():
    from pellucid.cli.verbs import VERBS

    verbs = (
        "shapes recipes train sweep rate evaluate predict caption translate attend curves convert data serve lab demo"
    )
    assert " ".join(VERBS) == verbs


def test_the_help_of_a_recipe_lists_its_fields():
    said = run("train", "vit_digits", "--help").stdout
    for field in ("--optim.lr", "--model.width", "--duration", "--data.name"):
        assert field in said
    assert "1,300 images" in said
    assert ">>>" not in said


def test_recipes_are_listed_with_what_they_state(capsys):
    from pellucid.recipes import RECIPES

    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert f"{name}\n  {recipe.__doc__.splitlines()[0]}" in text


def test_version():
    assert run("--version").stdout == f"pellucid {pellucid.__version__}\n" == "pellucid 0.2.0\n"


def shape_of(text, name):
    line = next(line for line in text.splitlines() if re.match(rf"{re.escape(name)}\s\s", line))
    return line[line.index("[") :]


def test_shapes_in_rows(capsys):
    assert main(["shapes", "--tokens", "5", "--width", "768", "--heads", "12"]) == 0
    text = capsys.readouterr().out
    assert shape_of(text, "tokens") == shape_of(text, "output") == "[1, 5, 768]"
    assert shape_of(text, "queries per head") == shape_of(text, "mixed heads") == "[1, 5, 12, 64]"
    assert shape_of(text, "attention") == "[1, 12, 5, 5]"
    assert "mask" not in text


def test_shapes_in_columns(capsys):
    assert main(["shapes", "--tokens", "6", "--width", "768", "--heads", "12", "--columns", "--causal"]) == 0
    text = capsys.readouterr().out
    assert shape_of(text, "tokens") == shape_of(text, "queries") == shape_of(text, "output") == "[768, 6]"
    assert shape_of(text, "attention") == "[12, 6, 6]"
    assert shape_of(text, "mask") == "[6, 6]"
    assert "Q = W^Q·X" in text


def test_shapes_of_a_single_head(capsys):
    words = ["shapes", "--width", "256", "--heads", "1", "--key-width", "64", "--value-width", "256"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert shape_of(text, "W_q") == shape_of(text, "W_k") == "[256, 64]"
    assert shape_of(text, "W_v") == "[256, 256]"


@pytest.mark.parametrize("words", [["--causal"], ["--causal", "--columns"], ["--tokens", "40"]])
def test_shapes_draws_a_picture(words, tmp_path, capsys):
    path = tmp_path / "attention.png"
    assert main(["shapes", *words, "--figure", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    with Image.open(path) as picture:
        colours = picture.convert("RGB").getcolors(1 << 24)
        assert colours is not None
        assert len(colours) > 50


def test_a_vector_picture_holds_its_numbers(tmp_path):
    path = tmp_path / "attention.svg"
    assert main(["shapes", "--causal", "--figure", str(path)]) == 0
    assert "<svg" in path.read_text()


VERBS = (
    "shapes, recipes, train, sweep, rate, evaluate, predict, caption, translate, attend, curves, convert, data, "
    "serve, lab, demo"
)
WRONG = {
    ("nonsense",): f"Unrecognized options: nonsense; Available subcommands: {VERBS}; run pellucid --help",
    (): f"Expected one of {{{VERBS}}}; run pellucid --help",
    ("shapes", "--tokens", "many"): "Error parsing --tokens: invalid literal",
    ("shapes", "--colour", "red"): "Unrecognized options: --colour",
    ("shapes", "--tokens", "0"): "--tokens is 0; expected one or more",
    ("shapes", "--heads", "7"): "width 768 can't be split into 7 heads; expected a multiple of 7",
    ("shapes", "--head", "12"): "--head is 12; expected 0…11",
    ("shapes", "--figure", "picture.gif"): "a picture is .png, .svg, .pdf; got 'picture.gif'",
    ("shapes", "--figure", "nowhere/picture.png"): "the folder 'nowhere' doesn't exist; make it first",
    ("shapes", "--key-width", "-3"): "key_width is -3; expected one or more",
    ("shapes", "--tokens", "2000", "--figure", "a.png"): "a figure shows at most 1024 tokens; got --tokens 2000",
    ("shapes", "--width", "1000000000", "--heads", "1"): "not enough memory for this; ask for less",
    ("recipes", "all"): "Unrecognized options: all",
    ("train",): "Missing from pellucid train: RECIPE Name of a recipe",
    ("train", "vit_nothing"): "there is no recipe 'vit_nothing'; expected one of vit_digits, ",
    ("train", "vit_digits", "--duration", "soon"): "duration is 'soon'; expected a number and a unit, as '400 steps'",
    ("train", "vit_digits", "--optim.speed", "3"): "Unrecognized options: --optim.speed, 3; run pellucid train vit_dig",
    (
        "train",
        "vit_digits",
        "--optim.lr",
        "fast",
    ): "Error parsing --optim.lr: could not convert string to float: 'fast'",
    ("train", "vit_digits", "--optim.lr", "-1"): "optim.lr is -1.0; expected zero or more",
    ("train", "vit_digits", "--batch", "0"): "batch is 0 and accumulate 1; expected one or more",
    ("train", "vit_digits", "--data.name", "digit"): "no data is called 'digit'; expected one of digits, cifar10, ",
    ("train", "vit_digits", "--data.name", "folder:nowhere"): "the folder 'nowhere' doesn't exist; expected a folder",
    ("train", "vit_digits", "--resume", "nowhere"): "nowhere holds no run: there is no config.json in it",
    ("train", "vit_digits", "--resume", "a", "--batch", "3"): "--resume goes on with a run as it is; leave out",
    ("evaluate",): "Missing from pellucid evaluate: MODEL A run's folder",
    ("evaluate", "nothing"): "Missing from pellucid evaluate: --data STR",
    ("evaluate", "nothing", "--data", "digits"): "no model 'nothing': as a path it is not there, and the shipped",
    ("evaluate", "nothing", "--data", "digits", "--batch", "0"): "--batch is 0; expected one or more",
    ("predict", "nothing"): "no pictures are given; name one or more files",
    ("predict", "nothing", "a.png"): "no model 'nothing': as a path it is not there",
    ("predict", "nothing", "a.png", "--top", "0"): "--top is 0; expected one or more",
    ("curves",): "0 runs are given; one picture shows 1…",
    ("curves", "nowhere"): "nowhere has no steps in log.jsonl; expected the folder of a run that has begun",
    ("curves", "nowhere", "--epochs", "0"): "--epochs is 0; expected one or more each",
    ("convert", "nowhere"): "Missing from pellucid convert: FOLDER Folder to write.",
    ("convert", "nowhere", "out"): "nowhere doesn't exist; expected a folder with config.json and model.safetensors",
    ("convert", "a", "b", "--layout", "jax"): "invalid choice 'jax' for argument '--layout'",
    ("data",): "Expected one of {fetch, look, inspect}",
    ("data", "paint"): "Unrecognized options: paint; Available subcommands: fetch, look, inspect",
    ("data", "look", "cifra10"): "no data is called 'cifra10'; expected one of digits, cifar10, cifar100, mnist, fash",
    ("data", "look", "cifra100"): "did you mean 'cifar100'?",
    ("data", "look", "digits", "--count", "0"): "--count is 0; expected 1…64",
    ("data", "fetch", "imagenet"): "'imagenet' can't be fetched; expected one of digits, cifar10",
    (
        "data",
        "fetch",
        "cifar10",
        "--path",
        "nowhere",
    ): "nowhere doesn't exist; give the folder or the archive of cifar10",
    ("data", "inspect", "nowhere"): "'nowhere' doesn't exist; give a folder of images",
    ("demo", "--steps", "0"): "--steps is 0; expected one or more",
    ("demo", "--epochs", "0"): "--epochs is 0; expected one or more",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_mistakes_get_one_sentence_and_exit_code_2(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("pellucid: ")
    assert WRONG[words] in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_seen_from_outside():
    result = run("shapes", "--heads", "7", code=2)
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_where_the_folder_should_be(tmp_path, capsys):
    blocked = tmp_path / "taken"
    blocked.write_text("mine")
    assert main(["demo", "--out", str(blocked)]) == 2
    assert "File exists" in capsys.readouterr().err
    assert blocked.read_text() == "mine"


def test_demo_trains_and_draws(tmp_path):
    out = tmp_path / "made" / "here"
    (out / "vit_digits").mkdir(parents=True)  # what an earlier demo left is left alone
    result = run("demo", "--steps", "3", "--epochs", "1", "--scenes", "2", "--no-lab", "--out", str(out))
    assert "exactly right on" in result.stdout
    assert re.search(r"it reads \d{10} and says \d{10}", result.stdout)
    assert re.search(r"reads \d+\.\d\d% of 360 test images right, after \d+\.\d s of training", result.stdout)
    assert re.search(r"exactly right for \d+\.\d\d% of \d+ test scenes, and for", result.stdout)
    assert re.search(r"looks at that object \d+\.\d% of the time \(chance: \d+\.\d%", result.stdout)
    assert result.stderr == ""  # no progress bar where there is no terminal
    assert not list((out / "vit_digits").iterdir())
    drawn = ("reverse.png", "vit_digits-2/curves.png", "scene-words.png", "photograph-words.png", "alignment.png")
    for picture in drawn:
        with Image.open(out / picture) as image:
            assert image.width > 500
    page = out / "index.html"
    report = page.read_text(encoding="utf-8")
    assert report.count("<h2>") == 6
    assert report.count('<script type="application/x-pellucid">') == 5
    assert "Where it looked as it said" in report
    for line in ("exactly right on", "test images right, after"):
        assert next(said for said in result.stdout.splitlines() if line in said) in report
    *_, serve, last = result.stdout.splitlines()
    assert re.search(rf"serve --runs {re.escape(str(out))}$", serve)
    assert last.endswith(f": {page.as_uri()}")
    for picture in ("reverse.png", "curves.png", "scene-words.png", "photograph-words.png", "ship.png"):
        assert len(re.findall(rf"[ /]{picture}\b", result.stdout)) == (2 if picture == "curves.png" else 1), picture


def test_demo_shows_its_drawings_to_the_shipped_model(monkeypatch, capsys, tmp_path):
    from pellucid.cli.demo import SHOWN, Story, recognises
    from pellucid.cli.verbs import DemoOptions
    from pellucid.models import ViT, ViTConfig

    config = ViTConfig(width=8, depth=1, heads=1, labels=tuple("abcdefghij"), mean=(0.5,) * 3, std=(0.3,) * 3)
    ViT(config).save_pretrained(tmp_path / "weights" / "vit-cifar10")
    monkeypatch.setattr("pellucid.ready.loading.SHIPPED", tmp_path / "weights")
    story = Story()
    recognises(DemoOptions(out=tmp_path), story)
    lines = capsys.readouterr().out.splitlines()[-2:]
    for name, line in zip(SHOWN, lines, strict=True):
        assert re.fullmatch(rf"{tmp_path / name}(  [a-j] \d+\.\d %){{3}}", line)
    told = [part for part in story.sections[0].parts if isinstance(part, str)]
    for name, line in zip(SHOWN, told, strict=True):
        assert re.fullmatch(rf"{name} is [a-j] to it, with \d+\.\d%\.", line)
    assert [seen.answers[0][0] for seen in story.traces] == [line.split()[2] for line in told]


def test_demo_judges_what_is_said(monkeypatch, capsys, tmp_path):
    """What courses teach and isn't so is told with its counter-example; a claim that falls is the exit code."""
    from pellucid.cli.demo import Story, judges
    from pellucid.cli.verbs import DemoOptions
    from pellucid.lab import experiment

    packed = experiment("packed")
    result = packed()
    monkeypatch.setattr("pellucid.cli.demo.run_everything", lambda: [(packed, result)])
    story = Story()
    assert judges(DemoOptions(out=tmp_path), story) == 0
    heard = [claim for claim in result.claims if claim.heard]
    assert heard
    told = story.sections[0].parts
    for claim, sentence in zip(heard, told, strict=False):
        assert sentence == f"“{claim.statement}” False. {claim.counter_example}"
    assert re.fullmatch(rf"{len(result.claims)} claims: .*; with sliders: {tmp_path / 'lab.html'}", told[-1])
    assert packed.title in (tmp_path / "lab.html").read_text(encoding="utf-8")
    fallen = replace(result, claims=(replace(heard[0], verdict="true"),))
    monkeypatch.setattr("pellucid.cli.demo.run_everything", lambda: [(packed, fallen)])
    assert judges(DemoOptions(out=tmp_path), Story()) == 1
    assert "1 of 1 claims don't stand" in capsys.readouterr().err


def test_the_log_of_a_fetch_is_told_on_a_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    monkeypatch.setattr("pellucid.data.named._ways", lambda known: [("the moon", refuse)])
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda there=terminal: there)
        assert main(["data", "fetch", "cifar10"]) == 2
        told = capsys.readouterr().err.splitlines()
        assert "cifar10 was not found" in told[-1]
        assert told[:-1] == ["pellucid: cifar10: trying the moon", "pellucid: cifar10: no answer"][: 2 * terminal]


def refuse(folder):
    raise ValueError("no answer")


def test_interruption_is_a_sentence(monkeypatch, capsys, tmp_path):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pellucid.cli.demo.reverse", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "pellucid: interrupted before the end\n"
