"""Pictures of one's own at the command line: what once gave a wrong or misleading answer. Only words that the command
line takes are used, so that the tests can be run against an earlier commit: they fail on b4f5393."""

import contextlib
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from pellucid.cli import main

SMALL = "--model.depth 1 --model.width 16 --model.heads 2 --model.patch 4 4 --data.size 8 8 --batch 8 --device cpu"
SMALL += " --duration 2~steps --data.held-out 5"
HELD_OUT = 5


def small() -> list[str]:
    return [word.replace("~", " ") for word in SMALL.split()]


def write_pictures(root: Path, count: int = 20) -> Path:
    noise = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(noise.integers(0, 256, (9, 8, 3), dtype=np.uint8)).save(root / name / f"{i:02}.png")
    return root


def say(capsys, *words, code: int = 0):
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of 40 pictures in two classes, and a run on it."""
    place = tmp_path_factory.mktemp("made")
    with contextlib.chdir(place):
        write_pictures(Path("ext"))
        assert main(["train", "vit_digits", *small(), "--data.name", "folder:ext", "--out", "run"]) == 0
    return place


@pytest.fixture
def trained(made, tmp_path, monkeypatch):
    """The same, to be changed."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_of_a_folder_of_classes_is_evaluated(trained, capsys):
    shutil.copytree("ext", "other")
    for path in Path("other").rglob("*.png"):  # others: larger by some bytes
        path.write_bytes(path.read_bytes() + b"more")
    whole = json.loads(say(capsys, "evaluate", "run", "--data", "folder:other", "--split", "all", "--json").out)
    assert whole["images"] == 40
    said = say(capsys, "evaluate", "run", "--data", "folder:other")
    assert "the split 'all' is all of them" in " ".join((said.out + said.err).split())


@pytest.mark.parametrize("spelling", ["folder:./ext", "folder:{here}/ext", "folder:ext/", "folder:../{name}/ext"])
def test_a_path_spelt_otherwise_gives_the_same_split(trained, capsys, spelling):
    where = spelling.format(here=trained, name=trained.name)
    words = ("--split", "validation", "--json")
    plain = json.loads(say(capsys, "evaluate", "run", "--data", "folder:ext", *words).out)
    other = json.loads(say(capsys, "evaluate", "run", "--data", where, *words).out)
    assert plain["images"] == HELD_OUT
    assert {**other, "data": "", "images_per_second": 0} == {**plain, "data": "", "images_per_second": 0}


def test_classes_that_the_model_does_not_know_are_an_error(trained, capsys):
    shutil.copytree("ext", "birds")
    Path("birds/cat").rename("birds/wren")
    Path("birds/dog").rename("birds/robin")
    said = say(capsys, "evaluate", "run", "--data", "folder:birds", code=2)
    assert "'wren'" in said.err
    assert said.out == ""


def test_unreadable_images_can_be_tolerated_and_inspecting_says_what_training_will(trained, capsys):
    for i in range(2):
        Path(f"ext/cat/{i:02}.png").write_bytes(b"nothing")
    words = ["train", "vit_digits", *small(), "--data.name", "folder:ext"]
    assert "2 of 40 images can't be read" in say(capsys, *words, "--out", "one", code=2).err
    assert "training and evaluating refuse that" in " ".join(say(capsys, "data", "inspect", "folder:ext").out.split())
    say(capsys, *words, "--out", "two", "--data.tolerated", 0.05)


def test_what_could_be_trained_on_can_be_evaluated_split_by_split(trained, capsys):
    """One of 120 is less than a hundredth, and more than a hundredth of the ten images that validate."""
    shutil.rmtree("ext")
    write_pictures(Path("ext"), 60)
    words = ["train", "vit_digits", *small(), "--data.name", "folder:ext"]
    say(capsys, *words, "--out", "first")
    (name, *_) = json.loads(Path("first/held_out.json").read_text())["validation"]
    Path("ext", name).write_bytes(b"nothing")
    say(capsys, *words, "--out", "again")
    for model in ("first", "again"):
        words = ("evaluate", model, "--data", "folder:ext", "--split", "validation")
        assert json.loads(say(capsys, *words, "--json").out)["images"] == HELD_OUT - 1
    for i in range(3):
        Path(f"ext/cat/{i:02}.png").write_bytes(b"nothing")
    assert (
        "of 120 images can't be read"
        in say(capsys, "evaluate", "again", "--data", "folder:ext", "--split", "all", code=2).err
    )


def test_a_picture_without_a_label_is_told_of_the_ways_out(trained, capsys):
    Path("table.csv").write_text("file,label\next/cat/00.png,cat\next/dog/00.png,\n")
    words = ["train", "vit_digits", *small(), "--data.name", "csv:table.csv", "--out", "other"]
    assert "none or several of the classes may be true of a picture, give --data.several" in " ".join(
        say(capsys, *words, code=2).err.split()
    )


def test_what_is_wrong_with_a_run_is_told_before_pictures_are_read(trained, capsys):
    """The pictures are unreadable now: whoever reads them first complains of them."""
    for path in Path("ext").rglob("*.png"):
        path.write_bytes(b"nothing")
    Path("taken").write_text("a file, no folder")
    words = ["train", "vit_digits", *small(), "--data.name", "folder:ext"]
    said = say(capsys, *words, "--out", "taken/run", code=2).err
    assert "taken" in said
    assert "can't be read" not in said
    said = say(capsys, *words, "--out", "run", code=2).err
    assert "run already holds a run; go on with it by --resume run" in said
    assert "can't be read" not in said
    for path in Path("run").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    said = say(capsys, "train", "vit_digits", "--resume", "run", code=2).err
    assert "safetensors" in said
    assert ".png" not in said


def test_evaluating_one_split_reads_no_other(trained, capsys):
    kept = json.loads(Path("run/held_out.json").read_text()) if Path("run/held_out.json").is_file() else {}
    wanted = set(kept.get("validation", ()))
    for path in Path("ext").rglob("*.png"):
        if path.relative_to("ext").as_posix() not in wanted:
            path.write_bytes(b"nothing")
    answer = say(capsys, "evaluate", "run", "--data", "folder:ext", "--split", "validation", "--json").out
    assert json.loads(answer)["images"] == HELD_OUT


TABLES = {
    "file and caption": ("captions.csv", "file,caption\n{0},a cat sits\n{0},a cat sits\n{1},a dog runs\n"),
    "image_path": ("captions.csv", "image_path,caption\n{0},a cat sits\n{0},a cat sits\n{1},a dog runs\n"),
    "a TSV with name": ("captions.tsv", "name\tcaption\n{0}\ta cat sits\n{0}\ta cat sits\n{1}\ta dog runs\n"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_captions_are_read_by_their_columns_and_what_is_said_twice_is_told(kind, tmp_path, capsys):
    write_pictures(tmp_path, count=1)
    name, text = TABLES[kind]
    (tmp_path / name).write_text(text.format("cat/00.png", "dog/00.png"))
    said = " ".join(say(capsys, "data", "inspect", tmp_path / name).out.split())
    assert "2 images" in said
    assert "repeated: 1 captions" in said


def test_mean_and_deviation_are_given_when_weights_are_converted(trained, capsys):
    (weights,) = Path("run").rglob("best.safetensors")
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(weights).items()}
    plain = json.loads(Path("run/config.json").read_text())["model"] | {"mean": None, "std": None}
    Path("mine").mkdir()
    save_file(tensors, "mine/model.safetensors")
    Path("mine/config.json").write_text(json.dumps({"model": "ViT"} | plain))
    say(capsys, "convert", "mine", "theirs", "--mean", 0.5, "--std", 0.25)
    assert json.loads(Path("theirs/config.json").read_text())["mean"] == [0.5] * 3
    assert "cat" in say(capsys, "predict", "theirs", "ext/cat/00.png", "--json").out


def test_a_folder_is_predicted(trained, capsys):
    answers = json.loads(say(capsys, "predict", "run", "ext/cat", "--json").out)
    assert len(answers) == 20


def test_names_in_chinese_are_drawn_without_a_word_about_fonts(trained, capsys, recwarn):
    Path("ext/cat").rename("ext/猫")
    words = ["--data.name", "folder:ext", "--out", "cjk"]
    say(capsys, "train", "vit_digits", *small(), *words)
    say(capsys, "evaluate", "cjk", "--data", "folder:ext", "--confusion", "confusion.png")
    said = [str(warning.message) for warning in recwarn] + capsys.readouterr().err.splitlines()
    assert not [line for line in said if "Glyph" in line or ("font" in line and ".py" in line)]
    assert Path("confusion.png").is_file()


def test_a_word_of_a_caption_is_the_official_tokenizers():
    captions = importlib.util.find_spec("pellucid.evaluation") or importlib.util.find_spec("pellucid.evaluate")
    assert captions is not None
    score = importlib.import_module(f"{captions.name}.captions").score
    differs = score({"a": "ready to bat., he stands"}, {"a": ["ready to bat he stands"]})  # its word is "bat."
    assert differs["bleu1"] == pytest.approx(4 / 5)


def test_one_class_is_nothing_to_learn_and_joined_names_are_told(made, tmp_path, monkeypatch, capsys):
    """A folder above or below the one that was meant; several classes of a picture taken for one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "ext" / "cat", "above/pictures")
    words = ["train", "vit_digits", *small()]
    assert "one class only, 'pictures'" in say(capsys, *words, "--data.name", "folder:above", code=2).err
    rows = [
        f"{made}/ext/{name}/{i:02}.png,{name}|{'night' if i % 2 else 'day'}"
        for name in ("cat", "dog")
        for i in range(20)
    ]
    Path("labels.csv").write_text("\n".join(["image,labels", *rows]) + "\n")
    said = say(capsys, *words, "--data.name", "csv:labels.csv", "--out", "joined").out
    assert "names such as 'cat|day' count as one class" in said
    assert "--data.several" in said
    said = say(capsys, *words, "--data.name", "csv:labels.csv", "--data.several", "--out", "several").out
    assert "count as one class" not in said


def test_folds_need_no_word_about_what_the_recipe_holds_out(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(made)
    words = [word for word in small() if word != "--data.held-out"]
    words.remove("5")
    folds = ("--data.name", "folder:ext", "--data.folds", 4, "--data.fold", 2)
    said = say(capsys, "train", "vit_digits", *words, *folds, "--out", tmp_path / "fold").out
    assert "27 to train, 9 to choose the best weights, 4 to test" in said
