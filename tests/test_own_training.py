"""What training on pictures of one's own needs: a word before it begins, batches that fit, and an end that is true."""

import contextlib
import json
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trainings import Started, wait_for_steps

import pellucid
from pellucid.cli import main
from pellucid.recipes import recipe
from pellucid.training import fitting
from pellucid.training.fitting import Outlook, fit_parts, fit_run

CPU = torch.device("cpu")
SMALL = shlex.split("--model.depth 1 --model.width 16 --model.heads 2 --data.size 8 8 --device cpu")


def write_pictures(root: Path, counts: dict[str, int], side: int = 9) -> Path:
    """Classes that differ in colour, so that something can be learned."""
    noise = np.random.default_rng(0)
    for which, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = noise.integers(0, 200, (side, side, 3), dtype=np.uint8)
            pixels[..., which % 3] += 40
            Image.fromarray(pixels).save(root / name / f"{i:03}.png")
    return root


def say(capsys, *words, code: int = 0) -> str:
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.out if not code else said.err


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("own") / "birds", {"wren": 60, "robin": 30, "gull": 15})


@pytest.fixture(autouse=True)
def here(tmp_path):
    with contextlib.chdir(tmp_path):
        yield tmp_path


def test_a_run_begins_with_what_it_will_do(pictures, capsys):
    words = [*SMALL, "--data.name", f"folder:{pictures}", "--duration", "2 epochs", "--out", "run"]
    said = say(capsys, "train", "vit_cifar10_fast", *words)
    data, model, machine, length, fitted, note, *_ = said.splitlines()
    assert "83 to train, 11 to choose the best weights, 11 to test; 3 classes ('gull', 'robin', 'wren')" in data
    assert "8 × 8 pixels in patches of 4 × 4: 4 tokens" in model
    assert re.search(r"parameters; ", model)
    assert re.search(r"CPU, \d threads?, float32$", machine)
    assert re.search(r"10 steps \(2 epochs\) of 16 images, about \d+ s at [\d,]+ images/s, and [\d.]+ MB", length)
    assert "batch 16 instead of 1024" in fitted
    assert "precision float32 instead of bf16, compile off instead of on" in fitted
    assert "'gull' with 11 images and 'wren' with 48" in note
    config = json.loads(Path("run/config.json").read_text())
    assert (config["batch"], config["compile"], config["precision"]) == (16, False, "float32")


def test_what_was_asked_for_stays(pictures, capsys):
    words = [*SMALL, "--data.name", f"folder:{pictures}", "--duration", "1 steps", "--out", "run", "--batch", 60]
    said = say(capsys, "train", "vit_cifar10_fast", *words, "--precision=bf16")
    assert "of 60 images" in said
    assert "bf16" in said
    assert "batch" not in said[said.index("fitted") :].splitlines()[0]


def test_a_run_is_trained_as_it_is():
    """Only a recipe is fitted: a run that somebody made says everything itself."""
    run = replace(recipe("vit_digits"), batch=1000, duration="1 steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "FEWEST_STEPS", 1000)
        assert pellucid.train(run, progress=False).images == 1000
        assert pellucid.train("vit_digits", duration="1 steps", progress=False).images == fitting.SMALLEST
        assert pellucid.train("vit_digits", duration="1 steps", batch=60, progress=False).images == 60


@pytest.mark.parametrize(("images", "world", "batch"), [(477, 1, 32), (50_000, 1, 1024), (3, 1, 16), (477, 24, 48)])
def test_an_epoch_has_eight_steps_or_batches_are_small(images, world, batch):
    assert fit_run(recipe("vit_cifar10_fast"), set(), images, CPU, world).batch == batch
    assert fit_run(recipe("vit_cifar10_fast"), None, images, CPU, world).batch == 1024


def test_a_step_too_large_for_memory_is_taken_in_parts(monkeypatch):
    monkeypatch.setattr(fitting, "memory_of", lambda _: 1_000)
    run = replace(recipe("vit_digits"), accumulate=2)
    assert fit_parts(run, set(), Outlook(1.0, 800, 100), 64, CPU).accumulate == 2
    assert fit_parts(run, set(), Outlook(1.0, 1500, 100), 64, CPU).accumulate == 4
    for too_much in (Outlook(1.0, 1500, 950), Outlook(1.0, 90_000, 100)):
        with pytest.raises(ValueError, match="a step would take about"):
            fit_parts(run, set(), too_much, 64, CPU)
    with pytest.raises(ValueError, match="more parts"):
        fit_parts(run, {"accumulate"}, Outlook(1.0, 1500, 100), 64, CPU)


def test_tiny_patches_are_refused_before_anything_is_decoded(tmp_path, capsys):
    write_pictures(tmp_path / "photos", {"a": 3, "b": 3}, side=300)
    for path in (tmp_path / "photos").rglob("001.png"):
        path.write_bytes(path.read_bytes()[:200])  # told of only when it is decoded
    words = ["train", "vit_digits", "--data.name", f"folder:{tmp_path / 'photos'}", "--out", "run"]
    said = say(capsys, *words, code=2)
    assert "300 × 300 pixels in patches of 2 × 2 are 22,500 tokens each" in said
    assert "--model.patch 16 16 makes 324 tokens" in said
    assert not Path("run").exists()
    assert "can't be read" in say(capsys, *words, "--model.patch", 16, 16, "--data.strict", code=2)


def test_trying_a_step_changes_nothing(pictures):
    """What is trained after a trial is what is trained without one: a run is tried only to tell of it."""
    changes = {"model": {"dropout": 0.2, "depth": 1, "width": 16, "heads": 2}, "duration": "3 steps"}
    run = replace(recipe("vit_digits"), batch=16, duration="3 steps")
    told, silent = (pellucid.train(run, progress=shown, **changes).model.model for shown in (True, False))
    for one, other in zip(told.state_dict().values(), silent.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_training_ends_with_what_evaluating_finds(pictures, capsys):
    words = [*SMALL, "--data.name", f"folder:{pictures}", "--duration", "24 steps", "--evaluate-every", "2 steps"]
    said = say(capsys, "train", "vit_digits", *words, "--optim.muon-lr", 0.3, "--optim.lr", 0.3, "--out", "run")
    (line,) = [line for line in said.splitlines() if "are kept" in line]
    told = {name: float(value) for name, value in re.findall(r"(top1|loss) ([\d.]+)", line.split(";")[0])}
    assert "on 11 validation images" in line
    assert "are not those that will answer" in line  # so diverging a run has its best score before its end
    answer = say(capsys, "evaluate", "run", "--data", f"folder:{pictures}", "--split", "validation", "--json")
    assert json.loads(answer)["top1"] == pytest.approx(told["top1"], abs=1e-4)
    assert "after step 24 " not in line


def test_the_first_ctrl_c_is_answered_at_once(tmp_path):
    """Also in a step that takes for ever."""
    words = [*SMALL, "--duration", "100 steps", "--out", str(tmp_path / "run"), "--checkpoint-every", "1 steps"]
    started = Started(tmp_path / "run", *words, hook="hang", hooked=3)
    wait_for_steps(tmp_path / "run", 3)
    time.sleep(0.3)
    started.send(signal.SIGINT)
    end = time.monotonic() + 5
    while "stopping after this step; again to quit" not in started.said.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert started.process.is_alive()
    started.send(signal.SIGINT)
    assert started.ended(10)[0] == 130


def test_ctrl_c_while_compiling_ends_it_at_once_and_it_can_go_on(tmp_path):
    words = [*SMALL, "--duration", "4 steps", "--out", str(tmp_path / "run")]
    started = Started(tmp_path / "run", *words, hook="hang while compiling")
    end = time.monotonic() + 60
    while not (tmp_path / "run" / "config.json").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)
    started.send(signal.SIGINT)
    code, said = started.ended(10)
    assert code == 130
    assert "stopped before the first step; go on with: pellucid train vit_digits --resume" in said
    assert main(["train", "vit_digits", "--resume", str(tmp_path / "run")]) == 0
