"""The command, as a person runs it."""

import re
import subprocess
import sys
import time

import pytest
from PIL import Image

import pellucid
from pellucid.cli import main

SCRIPT = [sys.executable, "-m", "pellucid"]


def run(*words, code=0):
    result = subprocess.run([*SCRIPT, *words], capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    return result


def test_help_is_quick_and_needs_no_torch():
    probe = "import sys, pellucid.cli as c; c.main(['--help']) if 0 else None\n"
    probe += "try:\n    c.main(['--help'])\nexcept SystemExit: pass\n"
    probe += "assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    fastest = min(timed_help() for _ in range(5))
    assert fastest < 0.5


def timed_help():
    started = time.perf_counter()
    run("--help")
    return time.perf_counter() - started


def test_help_shows_an_example_for_every_verb():
    from pellucid.cli.verbs import VERBS

    text = run("--help").stdout
    for verb in VERBS:
        assert f"Example: pellucid {verb}" in text
        assert f"Example: pellucid {verb}" in run(verb, "--help").stdout


def test_version():
    assert run("--version").stdout == f"pellucid {pellucid.__version__}\n" == "pellucid 0.1.0\n"


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


WRONG = {
    ("nonsense",): "Unrecognized options: nonsense; Available subcommands: shapes, demo; run pellucid --help",
    (): "Expected one of {shapes, demo}; run pellucid --help",
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
    ("demo", "--steps", "0"): "--steps is 0; expected one or more",
}


@pytest.mark.parametrize("words", WRONG)
def test_mistakes_get_one_sentence_and_exit_code_2(words, capsys):
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("pellucid: ")
    assert WRONG[words] in said.err
    assert said.err.count("\n") == 1


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
    result = run("demo", "--steps", "3", "--out", str(tmp_path / "made" / "here"))
    assert "exactly right on" in result.stdout
    assert re.search(r"it reads \d{10} and says \d{10}", result.stdout)
    assert result.stderr == ""  # no progress bar where there is no terminal
    with Image.open(tmp_path / "made" / "here" / "reverse.png") as picture:
        assert picture.width > 1000


def test_interruption_is_a_sentence(monkeypatch, capsys, tmp_path):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pellucid.cli.demo.reverse", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "pellucid: interrupted before the end\n"
