"""Broken and hostile files, given to the command: a sentence, exit code 2, and nothing else in the world changes."""

import io
import json
import os
import pickle
import struct
import tarfile
import tempfile
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from test_data import encoded, parts, picture, write_binary10, write_folder, write_python10
from test_data_fuzz import everything_below, png, tar_with

from pellucid.cli import main
from pellucid.config import to_json
from pellucid.data import decode
from pellucid.models import ViT, ViTConfig
from pellucid.runs import ClassifierRun

CONFIG = ViTConfig(
    classes=2, image=(8, 8), width=8, depth=1, heads=1, labels=("cat", "dog"), mean=(0.5,) * 3, std=(0.3,) * 3
)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder to work in, with somebody else's file above it; caches and temporary files lie in there too."""
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "victim.txt").write_text("untouched")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(here)
    ViT(CONFIG).save_pretrained(here / "model")
    return tmp_path


@pytest.fixture
def refused(world, capsys):
    """Runs a command that must fail; returns what it said."""

    def run(*words, sentences=1):
        before = everything_below(world)
        assert main([str(word) for word in words]) == 2
        assert everything_below(world) == before
        said = capsys.readouterr()
        assert said.out == ""
        lines = said.err.splitlines()
        assert len(lines) == sentences
        assert all(line.startswith("pellucid: ") and len(line) > 20 for line in lines)
        assert "Traceback" not in said.err
        return said.err

    return run


class Code:
    """What it is pickled as would make a file when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("made_by_the_pickle",)


def archive(path, arrays):
    folder = path.with_suffix(".files")
    folder.mkdir()
    write_binary10(folder, arrays)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
    return path


@pytest.mark.parametrize("kept", [0, 1, 100, 10_000])
def test_a_truncated_archive(kept, world, refused, capsys):
    path = archive(world / "here" / "cifar10.tar.gz", parts())
    assert main(["data", "fetch", "cifar10", "--path", str(path)]) == 0  # before it is cut, it is read
    assert "train: 10 images" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} can't be unpacked: " in refused("data", "fetch", "cifar10", "--path", path)
    assert f"{path} can't be unpacked: " in refused("data", "inspect", path)
    assert f"{path} can't be unpacked: " in refused("train", "vit_digits", "--data.name=cifar10", "--data.path", path)


@pytest.mark.parametrize("name", ["../victim.txt", "a/../../victim.txt", "/tmp/pellucid_victim.txt", "../here/model/x"])
def test_an_archive_that_leads_out_of_its_folder(name, world, refused):
    path = tar_with(world / "here" / "cifar10.tar.gz", name=name)
    said = refused("data", "fetch", "cifar10", "--path", path)
    assert f"its member {name!r} would lie outside the folder" in said
    assert not os.path.exists("/tmp/pellucid_victim.txt")


def test_a_shard_that_leads_out_of_its_folder(world, capsys):
    """Its members are only read, wherever they say they lie."""
    path = world / "here" / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (("../../victim.png", encoded(picture())), ("../../victim.cls", b"0")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    before = everything_below(world)
    assert main(["data", "inspect", f"wds:{path}"]) == 0
    assert "train: 1 images" in capsys.readouterr().out
    assert everything_below(world) == before


def test_broken_images(world, refused):
    folder = write_folder(world / "here" / "pictures", splits=("train", "test"), count=4, height=8, width=8)
    for path in folder.rglob("00[01].png"):
        path.write_bytes(path.read_bytes()[:50])
    source = f"folder:{folder}"
    assert "4 of 16 images can't be read, more than 1%; the first: " in refused(
        "evaluate", "model", "--data", source, sentences=5
    )
    words = ("train", "vit_digits", "--data.name", source, "--data.held-out", 0)
    assert "more than 1%; the first: " in refused(*words, sentences=9)
    assert "more than 1%; the first: " in refused("data", "look", source, sentences=9)
    broken = folder / "train" / "cat" / "000.png"
    said = refused("predict", "model", broken, broken, sentences=3)
    assert said.count(f"{broken} can't be read: ") == 2


def test_what_pillow_remarks_is_not_told(world, refused):
    """It warns of a damaged TIFF before it fails on it."""
    path, whole = world / "here" / "a.tif", bytearray(encoded(picture(height=16, width=16), "TIFF"))
    at = whole.index(struct.pack("<HHL", 258, 3, 3)) + 8  # where the bits of each channel are said to lie
    whole[at : at + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(whole)
    with pytest.warns(UserWarning, match="(?i)tag|corrupt|truncated"), pytest.raises(ValueError, match="can't be read"):
        decode(path)
    assert "a.tif can't be read: " in refused("predict", "model", path)


def test_a_pickle_with_code_in_it(world, refused):
    folder = world / "here" / "cifar10"
    folder.mkdir()
    write_python10(folder, parts())
    (folder / "data_batch_3").write_bytes(pickle.dumps({"data": Code(), "labels": [0]}, 2))
    assert "mkdir, which is refused; only arrays, lists and strings" in refused(
        "data", "fetch", "cifar10", "--path", folder
    )
    torch.save({"cls_token": Code()}, world / "here" / "model.pt")
    assert "asks for posix.mkdir, which is refused" in refused("convert", "model.pt", "out", "--heads", 1)
    assert not (world / "here" / "made_by_the_pickle").exists()
    pickle.loads(pickle.dumps(Code()))  # else the test says nothing
    assert (world / "here" / "made_by_the_pickle").exists()


def test_the_smallest_and_the_largest_image(world, refused, capsys):
    (world / "here" / "small.png").write_bytes(encoded(Image.new("RGB", (1, 1), "red")))
    assert main(["predict", "model", "small.png"]) == 0
    assert capsys.readouterr().out.count(" %") == 2
    (world / "here" / "large.png").write_bytes(png(20_000, 20_000))
    assert (
        "large.png can't be read: it is 20,000×20,000 pixels, more than the limit of 67,108,864; make it smaller"
        in refused("predict", "model", "large.png")
    )


def test_an_empty_class(world, refused, capsys):
    folder = write_folder(world / "here" / "pictures", splits=("train", "test"), count=2, height=8, width=8)
    assert main(["evaluate", "model", "--data", f"folder:{folder}"]) == 0
    capsys.readouterr()
    (folder / "train" / "fish").mkdir()
    for words in (
        ("evaluate", "model", "--data", f"folder:{folder}"),
        ("train", "vit_digits", "--data.name", f"folder:{folder}"),
        ("data", "look", f"folder:{folder}"),
    ):
        assert f"no images in '{folder}/train/fish'; put some there, or remove the folder" in refused(*words)


@pytest.mark.parametrize("words", [("predict", "model", "a.png"), ("convert", "model", "out"), ("evaluate", "model")])
def test_a_checkpoint_with_a_missing_key(words, world, refused):
    weights = load_file("model/model.safetensors")
    del weights["head.bias"]
    save_file(weights, "model/model.safetensors")
    words = [*words, "--data", "digits"] if words[0] == "evaluate" else words
    assert "model.safetensors doesn't fit this ViT: it lacks head.bias" in refused(*words)


def test_a_runs_checkpoint_with_a_missing_key(world, refused):
    run = world / "here" / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(to_json(ClassifierRun(recipe="vit_digits", model=CONFIG))))
    weights = {f"model.{name}": tensor for name, tensor in ViT(CONFIG).state_dict().items() if name != "head.bias"}
    save_file(weights, run / "checkpoints" / "best.safetensors")
    assert "best.safetensors doesn't fit this ViT: it lacks head.bias" in refused("predict", run, "a.png")
    (run / "checkpoints" / "best.safetensors").write_bytes(b"broken")
    assert "best.safetensors is damaged or no checkpoint" in refused("predict", run, "a.png")


def test_a_config_with_an_unknown_field(world, refused):
    config = world / "here" / "model" / "config.json"
    good = json.loads(config.read_text())
    config.write_text(json.dumps(good | {"flavour": "vanilla"}))
    for words in (
        ("predict", "model", "a.png"),
        ("evaluate", "model", "--data", "digits"),
        ("convert", "model", "out"),
    ):
        assert "unknown field in the config: flavour; ViTConfig has " in refused(*words)
    config.write_text(json.dumps(good | {"width": "wide"}))
    assert "config width is 'wide'; expected int" in refused("predict", "model", "a.png")
    config.write_text(json.dumps(good)[:40])
    assert "config.json is not JSON" in refused("predict", "model", "a.png")
    run = to_json(replace(ClassifierRun(recipe="vit_digits"), model=CONFIG))
    config.write_text(json.dumps(run | {"optim": run["optim"] | {"speed": 3}}))
    assert "unknown field in the config: optim.speed; Optim has name, lr" in refused(
        "train", "vit_digits", "--resume", "model"
    )
