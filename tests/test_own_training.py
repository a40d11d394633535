"""What training on pictures of one's own needs: a word before it begins, batches that fit, and an end that is true."""

import contextlib
import json
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from trainings import Started, assert_same_run, wait_for_steps

import pellucid
from pellucid import config
from pellucid.cli import main
from pellucid.data import DataConfig, ImageSet, load_images
from pellucid.data.loader import BalancedOrder
from pellucid.devices import resident_memory
from pellucid.processes import Processes
from pellucid.recipes import recipe
from pellucid.runs import RunFolder
from pellucid.training import engine, fitting
from pellucid.training.classify import Classification, resolve
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
    assert re.search(
        r"10 steps \(2 epochs\) of 16 images, about \d+ (s|minutes) at [\d,.]+ images/s, and [\d.]+ [MG]B", length
    )
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


# Which images, how often, and how long


def classes_of(images) -> list[int]:
    return torch.bincount(images.labels, minlength=len(images.classes)).tolist()


def test_folds_are_alike_and_cover_everything_once(pictures):
    parts = [load_images(DataConfig(f"folder:{pictures}", size=(8, 8), folds=4, fold=i)) for i in range(1, 5)]
    tests = [{item.tobytes() for item in part.test.images.numpy()} for part in parts]
    assert tests[0] == tests[1] == tests[2] == tests[3]  # a tenth by name, whatever the fold
    validated = [{item.tobytes() for item in part.validation.images.numpy()} for part in parts]
    assert sum(map(len, validated)) == len(set.union(*validated)) == 94
    assert not set.union(*validated) & tests[0]
    for part in parts:
        assert len(part.train) + len(part.validation) == 94
        for have, whole in zip(classes_of(part.validation), (13, 27, 54), strict=True):
            assert abs(have - whole / 4) <= 1
    arrays = [load_images(DataConfig("digits", folds=5, fold=i)).validation for i in range(1, 6)]
    assert sorted(len(each) for each in arrays) == [287, 287, 287, 288, 288]
    assert {
        abs(a - b) <= 1 for each in arrays for a, b in zip(classes_of(each), classes_of(arrays[0]), strict=True)
    } == {True}


def test_what_is_held_out_has_its_share_of_every_class(pictures):
    splits = load_images(DataConfig(f"folder:{pictures}", size=(8, 8), held_out=14))
    assert classes_of(splits.validation) == [2, 4, 8]
    wrong = {"folds": {"folds": 1}, "fold is 6": {"folds": 5, "fold": 6}, "say of how many": {"fold": 2}}
    wrong["give one of the two"] = {"folds": 5, "held_out": 3}
    for said, changes in wrong.items():
        for name in (f"folder:{pictures}", "digits"):
            with pytest.raises(ValueError, match=said):
                load_images(DataConfig(name, size=(8, 8), **changes))


def test_evaluating_a_run_of_a_fold_takes_what_it_held_out(capsys):
    words = [*SMALL, "--data.folds", 5, "--data.fold", 2, "--data.held-out", 0, "--duration", "2 steps", "--out", "run"]
    said = say(capsys, "train", "vit_digits", *words)
    told = float(re.search(r"top1 ([\d.]+)", said.splitlines()[-2])[1])
    answer = json.loads(say(capsys, "evaluate", "run", "--data", "digits", "--split", "validation", "--json"))
    assert (answer["images"], answer["top1"]) == (288, pytest.approx(told, abs=1e-4))


def test_balanced_sampling_shows_every_class_equally_often_and_every_image_in_turn():
    labels = torch.tensor([0] * 50 + [2] * 10 + [3] * 3)  # no image of class 1
    order = BalancedOrder(labels, seed=1)
    index, epoch = order.take(0, 300)
    assert torch.bincount(labels[index]).tolist() == [100, 0, 100, 100]
    seen = torch.bincount(index, minlength=63)
    assert set(seen[:50].tolist()) == {2}
    assert set(seen[50:60].tolist()) == {10}
    again, _ = BalancedOrder(labels, seed=1).take(123, 50)
    assert torch.equal(again, index[123:173])  # a function of the place alone
    other, _ = BalancedOrder(labels, seed=2).take(0, 300)
    assert not torch.equal(other, index)
    assert epoch[index >= 60].tolist() == [i // 3 for i in range(100)]


def test_weights_of_classes_in_the_loss():
    run = replace(recipe("vit_digits"), balance="weights", batch=8)
    images = ImageSet(torch.zeros(8, 1, 8, 8, dtype=torch.uint8), torch.tensor([0] * 6 + [1] * 2), ("a", "b"))
    resolved, parts = resolve(
        replace(run, model=replace(run.model, channels=1, mean=(0.5,), std=(0.5,))), {"train": images}
    )
    task = Classification(resolved, parts, CPU, Processes(), torch.nn.Linear(1, 1))
    logits = torch.randn(8, 2, dtype=torch.float64)
    mine = task.entropy(logits, images.labels).mean()
    plain = torch.nn.functional.cross_entropy(logits, images.labels, reduction="none", label_smoothing=0.1)
    assert mine.item() == pytest.approx((plain[:6].mean() + plain[6:].mean()).item() / 2, rel=1e-6)
    assert mine.item() != pytest.approx(plain.mean().item(), rel=1e-3)


def tiny(**changes):
    return {
        "model": {"width": 16, "depth": 1, "heads": 2},
        "batch": 16,
        "device": "cpu",
        "data.held_out": 40,
        "progress": False,
    } | changes


def test_a_run_ends_when_it_has_lost_patience_and_stays_ended(tmp_path):
    patient = tiny(duration="200 steps", evaluate_every="2 steps", optim={"lr": 0.0, "muon_lr": 0.0}, patience=3)
    result = pellucid.train("vit_digits", out=tmp_path / "run", **patient)
    assert (result.steps, result.planned) == (8, 200)  # evaluated after 2, and after 4, 6 and 8 no better
    again = pellucid.train(tmp_path / "run", progress=False)
    assert (again.steps, again.figures) == (8, result.figures)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in log) == 8


def test_patience_is_remembered_over_a_kill(tmp_path):
    words = ["--evaluate-every", "2 steps", "--patience", "3", "--optim.lr", "0", "--optim.muon-lr", "0"]
    words += [*SMALL, "--duration", "40 steps", "--checkpoint-every", "1 steps", "--out", str(tmp_path / "run")]
    Started(tmp_path / "run", *words, hook="end after saving", hooked=5).ended()
    assert pellucid.train(tmp_path / "run", progress=False).steps == 8


@pytest.mark.parametrize("changes", [{}, {"balance": "sampling", "augment": {"cutmix": 1.0}}])
def test_a_run_goes_on_for_longer(tmp_path, changes):
    steady = {"lr": 1e-3, "schedule": "constant", "warmup": 0.0, "ema": 0.9}
    how = tiny(optim=steady, evaluate_every="4 steps", **changes)
    whole = pellucid.train("vit_digits", out=tmp_path / "whole", duration="12 steps", **how)
    pellucid.train("vit_digits", out=tmp_path / "run", duration="8 steps", **how)
    with pytest.raises(ValueError, match="has 8 already"):
        pellucid.train(tmp_path / "run", duration="4 steps")
    with pytest.raises(ValueError, match="leave out the other options"):
        pellucid.train(tmp_path / "run", batch=4)
    longer = pellucid.train(tmp_path / "run", duration="12 steps", progress=False)
    assert (longer.steps, longer.figures) == (whole.steps, whole.figures)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert RunFolder(tmp_path / "run").run() == RunFolder(tmp_path / "whole").run()
    assert main(["train", "vit_digits", "--resume", str(tmp_path / "run"), "--duration", "14 steps"]) == 0
    assert RunFolder(tmp_path / "run").plan().steps == 14


def test_the_estimate_is_what_happens_and_changes_nothing(monkeypatch, capsys):
    """In seconds of the processor: by the clock, a busy machine has other things to do."""
    clock = SimpleNamespace(perf_counter=time.process_time)
    for module in (fitting, engine):
        monkeypatch.setattr(module, "time", clock)
    seen = []
    look = fitting.look_ahead
    monkeypatch.setattr(fitting, "look_ahead", lambda *given: seen.append(look(*given)) or seen[-1])
    images = torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = {"train": ImageSet(images, torch.arange(64) % 2, ("even", "odd"))}
    model = {"width": 128, "depth": 3, "heads": 2, "patch": (8, 8)}
    run = config.override(pellucid.recipe("vit_digits"), {"model": model, "batch": 32, "duration": "6 steps"})
    run = config.override(run, {"data.held_out": 0, "device": "cpu"})
    looked = pellucid.train(run, dataset=data)
    assert "of memory" in capsys.readouterr().out
    (outlook,) = seen
    assert 1 / 1.7 < looked.seconds / (6 * outlook.seconds) < 1.7
    assert 1 / 1.5 < resident_memory() / outlook.memory < 1.5
    blind = pellucid.train(run, dataset=data, progress=False)
    assert len(seen) == 1
    for one, other in zip(looked.model.model.parameters(), blind.model.model.parameters(), strict=True):
        assert torch.equal(one, other)
