"""Which images train, choose and test: a run knows its own again, whatever their folder is called."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pellucid
from pellucid.cli import main
from pellucid.data.division import divide, draw_held_out, hash_split
from pellucid.data.listings import list_folder
from pellucid.data.sources import DataConfig, load_images, load_split
from pellucid.runs import RunFolder

SMALL = {"duration": "2 steps", "batch": 8, "device": "cpu", "evaluate_every": "2 steps"}
SMALL |= {"model": {"depth": 1, "width": 16, "heads": 2, "patch": [4, 4]}, "data.size": [8, 8]}


def write_pictures(root: Path, count: int = 20, seed: int = 0) -> Path:
    """Two classes; every picture has other bytes, and another size in bytes with another seed."""
    noise = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = noise.integers(0, 256, (8 + seed, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:02}.png")
    return root


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A run on a folder that holds classes only, and the sets that it was trained and chosen with."""
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "ext")
    changes = SMALL | {"data.name": "folder:ext", "data.held_out": 6}
    result = pellucid.train("vit_digits", out="run", progress=False, **changes)
    return result.model, load_images(DataConfig("folder:ext", size=(8, 8), held_out=6))


def pixels_of(images) -> set[bytes]:
    return {images.read(torch.tensor([i])).numpy().tobytes() for i in range(len(images))}


def spellings(tmp_path: Path) -> dict[str, str]:
    shutil.copytree(tmp_path / "ext", tmp_path / "moved" / "elsewhere")
    os.symlink(tmp_path / "ext", tmp_path / "link")
    return {
        "as it was": "folder:ext",
        "with a dot": "folder:./ext",
        "absolute": f"folder:{tmp_path / 'ext'}",
        "with a slash": "folder:ext/",
        "by a way round": "folder:moved/../ext",
        "through a link": "folder:link",
        "copied": "folder:moved/elsewhere",
    }


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_follows_the_images_and_not_the_spelling(trained, tmp_path, split):
    model, splits = trained
    expected = pixels_of(getattr(splits, split))
    assert len(expected) == {"validation": 6, "test": 4}[split]
    config = {"size": (8, 8)}
    for how, name in spellings(tmp_path).items():
        assert pixels_of(load_split(DataConfig(name, **config), split, model.held_out)) == expected, how
        assert model.evaluate(name, split).figures["images"] == len(expected), how
    without = pixels_of(load_split(DataConfig("folder:./ext", **config), "validation"))
    assert without & pixels_of(splits.train)  # without the run's list, most of these had been trained on


def test_a_run_that_is_loaded_again_or_goes_on_has_the_same_split(trained, tmp_path):
    model, splits = trained
    kept = json.loads((tmp_path / "run" / "held_out.json").read_text())
    assert {split: len(names) for split, names in kept.items()} == {"test": 4, "validation": 6}
    assert pellucid.load("run").held_out == kept == model.held_out
    (tmp_path / "ext" / "cat" / "99.png").write_bytes((tmp_path / "ext" / "cat" / "00.png").read_bytes())
    again = load_images(DataConfig("folder:ext", size=(8, 8), held_out=6), kept)
    assert pixels_of(again.validation) == pixels_of(splits.validation)
    assert pixels_of(again.test) == pixels_of(splits.test)
    assert len(again.train) == len(splits.train) + 1  # what was added is trained on


def test_other_images_of_the_same_names_are_not_the_runs_own(trained, tmp_path, caplog):
    model, _ = trained
    write_pictures(tmp_path / "others", seed=1)
    other = load_split(DataConfig("folder:others", size=(8, 8)), "validation", model.held_out)
    assert pixels_of(other) == pixels_of(load_split(DataConfig("folder:others", size=(8, 8)), "validation"))
    assert "folder:others has no splits of its own: these 4 of its 40 images" in caplog.text
    caplog.clear()
    assert model.evaluate("folder:others", "all").figures["images"] == 40
    assert not caplog.records


def test_whoever_evaluates_on_what_was_trained_on_hears_of_it(trained, caplog):
    model, _ = trained
    assert model.evaluate("folder:./ext", "all").figures["images"] == 40
    assert "the run was trained on 30 of these 40 images of folder:./ext" in caplog.text


def test_images_that_are_gone_are_counted(trained, tmp_path, caplog):
    model, _ = trained
    name = next(iter(model.held_out["validation"]))
    (tmp_path / "ext" / name).unlink()
    assert len(load_split(DataConfig("folder:ext", size=(8, 8)), "validation", model.held_out)) == 5
    assert "1 of the 10 images that the run held out are gone or were changed" in caplog.text


def test_a_source_with_splits_keeps_them_whatever_is_held_out(tmp_path):
    for split in ("train", "val", "test"):
        write_pictures(tmp_path / split, count=6, seed=len(split))
    listing = list_folder(tmp_path)
    own = divide(listing)
    assert own.origin == "source"
    assert own.held_out(counted=False) == {}
    held = divide(listing, held_out=3)
    kept = held.held_out(counted=True)
    assert {split: len(names) for split, names in kept.items()} == {"validation": 3}
    again = divide(listing, held_out=3, kept=kept)
    assert again.origin == "run"
    assert again.splits == held.splits  # its own validation images stay aside
    assert len(again.splits["train"]) == 9
    assert len(again.splits["test"]) == 12


def test_nothing_but_the_split_that_is_wanted_is_decoded(tmp_path, monkeypatch):
    write_pictures(tmp_path / "ext")
    seen = []
    decode = pellucid.data.lazy.ImageFile.decode
    monkeypatch.setattr(
        pellucid.data.lazy.ImageFile, "decode", lambda item, *how: (seen.append(item.name), decode(item, *how))[1]
    )
    chosen = load_split(DataConfig(f"folder:{tmp_path / 'ext'}", size=(8, 8)), "test")
    assert len(seen) == len(chosen) == 4


def test_held_out_places_are_a_permutation_that_never_changes():
    rest, chosen = draw_held_out(10, 3)
    assert sorted([*rest.tolist(), *chosen.tolist()]) == list(range(10))
    assert chosen.tolist() == sorted(torch.randperm(10, generator=torch.Generator().manual_seed(0))[:3].tolist())
    with pytest.raises(ValueError, match="held_out is 10; expected fewer than the 10 training images"):
        draw_held_out(10, 10)


def test_a_hash_of_names_does_not_ask_for_the_order(tmp_path):
    entries = list_folder(write_pictures(tmp_path / "a")).splits["train"]
    forward, backward = (hash_split(each, ("test",)) for each in (entries, entries[::-1]))
    assert {split: set(each) for split, each in forward.items()} == {
        split: set(each) for split, each in backward.items()
    }


# What the command line makes of it


def run(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


def test_other_names_of_classes_need_a_word(trained, tmp_path, capsys):
    (tmp_path / "animals").mkdir()
    for name, other in (("cat", "Katze"), ("dog", "Hund")):
        shutil.copytree(tmp_path / "ext" / name, tmp_path / "animals" / other)
    words = ("evaluate", "run", "--data", "folder:animals", "--split", "all", "--json")
    said = run(capsys, *words, code=2)
    assert "the model doesn't know 'Hund', 'Katze' of the data's 2 classes; it knows 'cat', 'dog'" in said.err
    assert "--classes" in said.err
    assert said.out == ""
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"Katze": "cat", "Hund": "dog"}))
    translated = json.loads(run(capsys, *words, "--classes", names).out)
    plain = json.loads(run(capsys, "evaluate", "run", "--data", "folder:ext", "--split", "all", "--json").out)
    assert translated["top1"] == plain["top1"]
    assert translated["per_class"] == plain["per_class"]
    for text, why in (
        ('{"Katze": "dog", "Hund": "bird"}', "classes means 'bird', which the model doesn't know; it knows"),
        (
            '{"Katze": "cat", "Fisch": "dog"}',
            "classes names 'Fisch', which the data doesn't have; it has 'Hund', 'Katze'",
        ),
        ("[1]", "holds no names of classes; expected an object"),
        ("{", "is not JSON"),
    ):
        names.write_text(text)
        assert why.replace("it knows", "") in run(capsys, *words, "--classes", names, code=2).err


def test_a_split_of_which_nothing_can_be_read_is_no_answer(tmp_path):
    """However many of the others can."""
    write_pictures(tmp_path / "ext" / "train", count=40)
    write_pictures(tmp_path / "ext" / "test", count=1)
    model = pellucid.load("vit-cifar10")
    how = {"split": "test", "tolerated": 0.1}
    assert model.evaluate(f"folder:{tmp_path / 'ext'}", **how).figures["images"] == 2
    for path in [*(tmp_path / "ext" / "test").rglob("*.png"), next((tmp_path / "ext" / "train").rglob("*.png"))]:
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"none of the 2 test images can be read; the first: .*test"):
        model.evaluate(f"folder:{tmp_path / 'ext'}", **how)


def test_how_many_images_may_be_unreadable_can_be_said(tmp_path, capsys, caplog):
    write_pictures(tmp_path / "ext", count=40)
    for i in range(2):
        (tmp_path / "ext" / "cat" / f"{i:02}.png").write_bytes(b"nothing")
    changes = SMALL | {"data.name": f"folder:{tmp_path / 'ext'}", "data.held_out": 0}
    with pytest.raises(ValueError, match=r"2 of 80 images can't be read, more than 1%.* set tolerated to 0\.025"):
        pellucid.train("vit_digits", progress=False, **changes)
    result = pellucid.train("vit_digits", out=tmp_path / "run", progress=False, **changes | {"data.tolerated": 0.025})
    assert result.steps == 2
    words = ("evaluate", tmp_path / "run", "--data", f"folder:{tmp_path / 'ext'}", "--split", "all", "--json")
    assert "set tolerated to 0.025" in run(capsys, *words, code=2).err
    assert json.loads(run(capsys, *words, "--tolerated", 0.03).out)["images"] == 78
    assert "--tolerated is 2.0" in run(capsys, *words, "--tolerated", 2, code=2).err
    said = run(capsys, "data", "inspect", f"folder:{tmp_path / 'ext'}").out
    assert "problem: 2 of 80 images can't be read, more than 1%: training and evaluating refuse that" in said


def test_all_images_are_of_classifiers(capsys):
    said = run(capsys, "evaluate", "captioner-scenes", "--data", "scenes", "--split", "all", code=2).err
    assert "--split all is for classifiers" in said


def test_held_out_lists_that_are_damaged_are_one_sentence(trained, tmp_path, capsys):
    for text in ("[]", '{"test": 5}', '{"test": {"a": "b"}}', "{"):
        (tmp_path / "run" / "held_out.json").write_text(text)
        with pytest.raises(ValueError, match=r"held_out\.json"):
            RunFolder("run").held_out()
