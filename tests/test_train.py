"""The engine, on a task small enough to be written out by hand, and the recipes, each stepped twice."""

import io
import json
import math
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from trainings import TINY, Started, log, losses, tensors, trained, words_for

from pellucid.cli import main
from pellucid.config import from_json, to_json
from pellucid.data import DataConfig, ImageSet
from pellucid.data.augment import Augment
from pellucid.data.division import HeldOut
from pellucid.data.sources import Splits
from pellucid.devices import pick_device
from pellucid.models import ViTConfig
from pellucid.processes import Processes
from pellucid.recipes import RECIPES, recipe
from pellucid.runs import ClassifierRun, Duration, Optim, Run, RunFolder
from pellucid.training import Engine
from pellucid.training import progress as shown
from pellucid.training.classify import Classification, resolve
from pellucid.training.reverse import Reversing

CPU = torch.device("cpu")


class Lines:
    """A task in float64: a linear classifier of points in the plane."""

    unit, score = "points", "right"
    epoch_size = 40

    def __init__(self, run: Run):
        generator = torch.Generator().manual_seed(1)
        self.points = torch.randn(run.batch, 2, generator=generator, dtype=torch.float64)
        self.labels = (self.points.sum(1) > 0).long()
        self.batch, self.parts = run.batch, run.accumulate
        torch.manual_seed(0)
        self.model = nn.Linear(2, 2).double()
        self.seen: list[Tensor] = []

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        for step in range(start, end):
            order = torch.randperm(self.batch, generator=torch.Generator().manual_seed(step))
            yield [(self.points[part], self.labels[part]) for part in order.chunk(self.parts)]

    def loss(self, model: nn.Module, points: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return F.cross_entropy(model(points), labels), {"size": points.abs().mean()}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.seen.append(self.model.weight.detach().clone())
        return {"right": (model(self.points).argmax(1) == self.labels).double().mean().item()}


class Heard:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def began(self, step: int, steps: int) -> None:
        self.beginning = step, steps

    def logged(self, lines: list[dict[str, Any]]) -> None:
        self.lines += lines


def fitted(run: Run, **options) -> tuple[Lines, Heard, Engine]:
    task, heard = Lines(run), Heard()
    engine = Engine(task, run, CPU, observer=heard, **options)
    engine.fit()
    return task, heard, engine


def plain(**changes) -> Run:
    optim = Optim(name="sgd", lr=0.5, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0.0)
    return replace(Run(optim=optim, duration="6 steps", batch=8, evaluate_every="0 steps"), **changes)


def by_hand(steps: int = 6, lr: float = 0.5, clip: float = math.inf) -> tuple[list[float], list[Tensor]]:
    """The same run as a reader would write it: losses before and weights after each step."""
    task = Lines(plain())
    found: list[float] = []
    weights = []
    for ((points, labels),) in task.batches(0, steps):
        loss = F.cross_entropy(task.model(points), labels)
        gradients = torch.autograd.grad(loss, list(task.model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        with torch.no_grad():
            for p, g in zip(task.model.parameters(), gradients, strict=True):
                p -= lr * g * min(1.0, clip / (norm + 1e-6))
        found.append(loss.item())
        weights.append(task.model.weight.detach().clone())
    return found, weights


def test_a_run_is_what_it_says():
    task, heard, _ = fitted(plain())
    expected, weights = by_hand()
    assert heard.beginning == (0, 6)
    steps, evaluation = heard.lines[:-1], heard.lines[-1]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in steps] == pytest.approx(expected, abs=1e-12)
    assert [line["epoch"] for line in steps] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    assert all(line["lr"] == 0.5 and line["size"] > 0 and line["points_per_second"] > 0 for line in steps)
    torch.testing.assert_close(task.model.weight.detach(), weights[-1], atol=1e-12, rtol=0)
    assert evaluation["step"] == 6
    assert set(evaluation["evaluation"]) == {"right"}


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_add_up_to_the_whole(parts):
    task, heard, _ = fitted(plain(accumulate=parts))
    expected, weights = by_hand()
    assert [line["loss"] for line in heard.lines[:-1]] == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(task.model.weight.detach(), weights[-1], atol=1e-12, rtol=0)


def test_clipping():
    task, heard, _ = fitted(plain(optim=replace(plain().optim, clip=0.05)))
    expected, weights = by_hand(clip=0.05)
    assert [line["loss"] for line in heard.lines[:-1]] == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(task.model.weight.detach(), weights[-1], atol=1e-12, rtol=0)
    assert not torch.allclose(weights[-1], by_hand()[1][-1], atol=1e-3)


def test_the_average_is_its_formula_and_what_is_evaluated():
    """keep = min(ema, (1 + step) / (10 + step)): the first steps forget faster than the last."""
    task, _, engine = fitted(plain(optim=replace(plain().optim, ema=0.3), evaluate_every="3 steps"))
    start, (_, weights) = Lines(plain()).model.weight.detach(), by_hand()
    averages = [start]
    for step, weight in enumerate(weights):
        keep = min(0.3, (1 + step) / (10 + step))
        averages.append(keep * averages[-1] + (1 - keep) * weight)
    torch.testing.assert_close(engine.average["weight"], averages[-1], atol=1e-7, rtol=0)  # keep is in float32
    assert [round((1 + step) / (10 + step), 2) for step in (0, 2, 5)] == [0.1, 0.25, 0.4]
    torch.testing.assert_close(task.seen, [averages[3], averages[6]], atol=1e-7, rtol=0)
    torch.testing.assert_close(
        task.model.weight.detach(), weights[-1], atol=1e-12, rtol=0
    )  # training goes on from its own


def test_rates_follow_the_schedule():
    optim = replace(plain().optim, schedule="linear", warmup=0.5)
    _, heard, _ = fitted(plain(optim=optim))
    assert [line["lr"] for line in heard.lines[:-1]] == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5, 1 / 3, 0.5 / 3])


def test_when_to_evaluate():
    _, heard, _ = fitted(plain(evaluate_every="4 steps"))
    assert [line["step"] for line in heard.lines if "evaluation" in line] == [4, 6]
    _, heard, _ = fitted(plain(evaluate_every="0.6 epochs"))
    assert [line["step"] for line in heard.lines if "evaluation" in line] == [3, 6]


def test_minutes_leave_no_trace():
    """The steps that are only timed don't count."""
    task, heard, engine = fitted(plain(duration="0.0005 minutes"))
    count = heard.beginning[1]
    assert count == max(1, round(0.03 / engine.pace))
    torch.testing.assert_close(task.model.weight.detach(), by_hand(steps=count)[1][-1], atol=1e-12, rtol=0)


def test_the_best_is_kept(tmp_path):
    class Falling(Lines):
        def evaluate(self, model: nn.Module) -> dict[str, float]:
            super().evaluate(model)
            return {"right": [0.5, 0.9, 0.7][len(self.seen) - 1]}

    run = plain(evaluate_every="2 steps")
    folder = RunFolder(tmp_path)
    folder.create(run)
    task = Falling(run)
    result = Engine(task, run, CPU, folder=folder).fit()
    assert result.best == 0.9
    assert result.figures == {"right": 0.7}
    assert torch.equal(tensors(tmp_path, "best")["model.weight"], task.seen[1])
    assert torch.equal(tensors(tmp_path, "last")["model.weight"], task.seen[2])


def test_without_a_folder_an_interruption_is_pythons_own():
    """There is nothing to save: Ctrl-C ends it like any other program."""

    class Interrupted(Lines):
        def loss(self, model: nn.Module, points: Tensor, labels: Tensor):
            raise KeyboardInterrupt

    run = plain()
    with pytest.raises(KeyboardInterrupt):
        Engine(Interrupted(run), run, CPU).fit()


# Configurations


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_its_file(name):
    run = recipe(name)
    assert from_json(type(run), json.loads(json.dumps(to_json(run)))) == run
    assert run.recipe == name


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"batch": 0}, "batch is 0 and accumulate 1; expected one or more"),
        ({"parallel": "tp"}, "parallel is 'tp'; expected 'ddp' or 'fsdp'"),
        ({"duration": "0 epochs"}, "duration is '0 epochs'; expected more than nothing"),
        ({"duration": "ten epochs"}, "duration is 'ten epochs'; expected a number and a unit, as '400 steps'"),
        ({"evaluate_every": "5"}, "evaluate_every is '5'; expected a number and a unit"),
        ({"label_smoothing": 1.0}, r"label_smoothing is 1.0; expected a share in \[0, 1\)"),
        ({"precision": "fp16"}, "precision is 'fp16'; expected 'float32' or 'bf16'"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        ClassifierRun(**wrong)


def test_durations():
    assert Duration.parse("1 epoch").steps(steps_per_epoch=11.2) == 11
    assert Duration.parse("0 steps").steps(steps_per_epoch=11.2) == 0
    assert Duration.parse("0.5 minutes").steps(steps_per_epoch=1, seconds_per_step=0.02) == 1500
    assert Duration.parse("0.001 epochs").steps(steps_per_epoch=11.2) == 1


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is 'cuda', but this PyTorch sees no GPU; use --device cpu"):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="there is no cuda:1: this PyTorch sees one GPU; use --device cpu"):
        pick_device("auto")


# Classification


def random_splits(_: DataConfig, kept: HeldOut | None = None, check: Any = None) -> Splits:
    """Random pixels with the shape of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    classes = tuple("abcdefghij")

    def some(count: int) -> ImageSet:
        pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return ImageSet(pixels, torch.arange(count) % 10, classes)

    return Splits(some(24), some(10), some(10))


def tiny(run: ClassifierRun, **changes) -> ClassifierRun:
    model = replace(run.model, width=16, depth=2, heads=2, hidden=None)
    small = {"model": model, "batch": 8, "duration": "2 steps", "compile": False, "graphs": False, "device": "cpu"}
    return replace(run, **small | changes)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("vit")])
def test_every_recipe_takes_two_steps(name, monkeypatch):
    """With its own stem, augmentation, optimizer, precision and smoothing; only small."""
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(tiny(recipe(name)))
    heard = Heard()
    task = Classification(run, splits, CPU, Processes())
    before = {key: p.detach().clone() for key, p in task.model.named_parameters()}
    result = Engine(task, run, CPU, observer=heard).fit()
    assert [line["step"] for line in heard.lines] == [1, 2, 2]
    assert all(0.5 < line["loss"] < 10 for line in heard.lines[:2])
    assert set(result.figures) == {"top1", "loss"}
    still = [key for key, p in task.model.named_parameters() if torch.equal(p, before[key])]
    assert still == []  # every parameter learns


def test_reversing_takes_two_steps():
    run = Run(duration="2 steps", batch=4, optim=Optim(lr=1e-3))
    result = Engine(Reversing(run, test_sequences=3), run, CPU).fit()
    assert set(result.figures) == {"exact"}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "run"
    options = [*TINY, "--duration", "20 steps", "--checkpoint-every", "10 steps", "--tensorboard"]
    return folder, trained(folder, *options)


def test_what_a_folder_holds(run_folder):
    folder, said = run_folder
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "plan.json",
        "environment.json",
        "log.jsonl",
        "checkpoints",
        "curves.png",
        "tensorboard",
    }
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "last.safetensors",
        "previous.safetensors",
        "best.safetensors",
    }
    config = RunFolder(folder).run()
    assert (config.recipe, config.batch, config.model.width, config.model.classes) == ("vit_digits", 16, 16, 10)
    environment = json.loads((folder / "environment.json").read_text())
    assert {"packages", "python", "commit", "device", "cores", "date"} <= set(environment)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "evaluation" not in line]
    assert [line["step"] for line in steps] == list(range(1, 21))
    assert all({"step", "epoch", "loss", "accuracy", "lr", "images_per_second"} == set(line) for line in steps)
    evaluations = [line for line in lines if "evaluation" in line]
    assert [line["step"] for line in evaluations] == [8, 16, 20]
    assert all({"top1", "loss"} == set(line["evaluation"]) for line in evaluations)
    with Image.open(folder / "curves.png") as picture:
        assert picture.width > 800
    assert "20 steps in" in said
    assert f"the run: {folder}, its curves: {folder / 'curves.png'}" in said
    assert len([line for line in said.splitlines() if line.startswith("epoch ")]) == 3


def test_tensorboard_holds_the_log(run_folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = run_folder
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    found = board.Scalars("train/loss")
    assert [event.step for event in found] == list(range(1, 21))
    assert [event.value for event in found] == pytest.approx(losses(folder))
    assert [event.step for event in board.Scalars("evaluation/top1")] == [8, 16, 20]


def test_a_run_can_be_evaluated(run_folder, capsys):
    """The best weights are those that the log speaks of."""
    folder, _ = run_folder
    assert main(["evaluate", str(folder), "--data", "digits", "--json"]) == 0
    best = max(line["evaluation"]["top1"] for line in log(folder) if "evaluation" in line)
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(best)


def test_parts_of_a_batch_of_images(tmp_path):
    """Crops and cutmix are the same whatever the parts: they know the image's place in the batch."""
    options = [*TINY, "--augment.cutmix", "1.0", "--optim.name", "adamw", "--duration", "10 steps"]
    trained(tmp_path / "whole", *options)
    trained(tmp_path / "parts", *options, "--accumulate", "4")
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), abs=1e-6)
    trained(tmp_path / "other", *options, "--augment.cutmix", "0.0")
    assert losses(tmp_path / "other") != pytest.approx(losses(tmp_path / "whole"), abs=1e-3)


@pytest.mark.parametrize("stored", [True, False])
def test_the_first_steps_see_small_images(stored, monkeypatch):
    """Half of four steps with fewer tokens, the first with fewest, wherever the images lie; the others as without."""
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    augment = Augment(crop=4, small=0.5, small_side=16, smaller=0.25, smaller_side=8)
    run, splits = resolve(tiny(recipe("vit_cifar10_fast"), duration="4 steps", augment=augment))
    task = Classification(run, splits, torch.device("cpu"), Processes())
    if not stored:
        task.loader.stored = None
    seen, model = [], task.model
    model.embed.register_forward_pre_hook(lambda _, images: seen.append(images[0].shape[-1]))
    given = [[len(part) for part in parts] for parts in task.batches(0, 4)]
    assert given == ([[5], [5], [4], [4]] if stored else [[5]] * 4)
    Engine(task, run, torch.device("cpu")).fit()
    assert seen == [8, 16, 32, 32, 32]  # four steps, and an evaluation
    assert [task.fitting(torch.zeros(1, 3, side, side)).crop for side in (8, 16, 32)] == [1, 2, 4]


def test_pairs_cannot_be_split(tmp_path):
    options = [*TINY, "--augment.cutmix", "1.0", "--batch", "12", "--accumulate", "4"]
    code, said = Started(tmp_path / "run", *words_for(tmp_path / "run", *options)).ended()
    assert code == 2
    assert "mixing needs pairs: batch 12 over 1 processes and 4 parts leaves an odd number of images" in said


def test_label_smoothing(monkeypatch):
    """Cross-entropy with the target (1 − s)·onehot + s/classes, mixed as the pixels are."""
    logits = torch.randn(8, 10, dtype=torch.float64).float()
    labels, others, weight = torch.arange(8), torch.arange(8).flip(0), torch.rand(8)
    images = torch.zeros(8, 3, 32, 32)
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    monkeypatch.setattr("pellucid.training.classify.augment", lambda *_, **__: (images, labels, others, weight))
    base = tiny(recipe("vit_cifar10_fast"), label_smoothing=0.2, precision="float32")
    run, splits = resolve(base)
    task = Classification(run, splits, CPU, Processes())
    ((batch,),) = task.batches(0, 1)

    def said(_: Tensor) -> Tensor:
        return logits

    found, metrics = task.loss(said, *batch)  # pyright: ignore[reportArgumentType]
    onehot = weight[:, None] * F.one_hot(labels, 10) + (1 - weight[:, None]) * F.one_hot(others, 10)
    target = 0.8 * onehot + 0.2 / 10
    torch.testing.assert_close(found, -(target * logits.log_softmax(1)).sum(1).mean())
    assert metrics["accuracy"] == (logits.argmax(1) == labels).float().mean()


def test_what_a_run_is_evaluated_on(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(tiny(recipe("vit_64x5")))
    assert Classification(run, splits, CPU, Processes()).held_out is splits.validation
    assert Classification(replace(run, evaluate_on="test"), splits, CPU, Processes()).held_out is splits.test
    only = Splits(splits.train)
    assert Classification(run, only, CPU, Processes()).held_out is None
    with pytest.raises(ValueError, match="evaluate_on is 'test', but cifar10 has no such images"):
        Classification(replace(run, evaluate_on="test"), only, CPU, Processes())


def test_the_data_sets_what_only_it_knows(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(ClassifierRun(model=ViTConfig(mean=(0.1, 0.2, 0.3), std=(0.2, 0.2, 0.2))))
    assert (run.model.classes, run.model.channels, run.model.image) == (10, 3, (32, 32))
    assert run.model.labels == splits.train.classes
    assert run.model.mean == (0.1, 0.2, 0.3)
    assert resolve(run)[0] == run  # once is enough


# What people see


def step_line(step: int, **changes) -> dict[str, Any]:
    return {"step": step, "epoch": 0.5, "loss": 1.25, "accuracy": 0.5, "lr": 0.1, "images_per_second": 1234.5} | changes


def test_lines_where_there_is_no_terminal(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(shown.time, "perf_counter", lambda: now[0])
    with shown.RunDisplay("vit") as watcher:
        watcher.began(10, 110)
        for step in range(11, 60):
            now[0] += 1.0
            watcher.logged([step_line(step)])
        watcher.logged([{"step": 60, "epoch": 1.5, "evaluation": {"top1": 0.75}, "seconds": 50.0}])
        watcher.logged([{"step": 61, "epoch": 1.5, "evaluation": {}, "seconds": 50.0}])
    said = capsys.readouterr()
    assert said.err == ""
    *lines, evaluation = said.out.splitlines()
    assert len(lines) == 4
    assert lines[0] == "step 20 of 110: loss 1.2500, accuracy 50.0%, 1,234 images/s, 0:01:30 left"
    assert evaluation == "epoch 1.5, step 60, 50.0 s: top1 0.7500"


def test_a_bar_on_a_terminal(monkeypatch):
    console = Console(force_terminal=True, width=200, file=io.StringIO(), force_interactive=True)
    monkeypatch.setattr(shown, "Console", lambda **_: console)
    with shown.RunDisplay("vit") as watcher:
        watcher.began(0, 100)
        watcher.logged([step_line(50)])
        watcher.logged([{"step": 50, "epoch": 1.5, "evaluation": {"top1": 0.75}, "seconds": 50.0}])
        watcher.bar.refresh()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    assert "top1 0.7500" in said
    assert "50/100" in said
    assert "1,234 images/s" in said
    assert "loss 1.2500, accuracy 50.0%" in said


FAULTS = """
import resource, sys, torch
from pellucid.training.memory import keep_freed_memory
assert sys.argv[1] == "no" or keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(6):  # 48 MB each time: more than the C library keeps by itself
    before = faults()
    torch.ones(12_000_000)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries can't be told")
def test_memory_that_a_step_frees_is_there_for_the_next():
    said = [subprocess.run([sys.executable, "-c", FAULTS, kept], capture_output=True, text=True, check=True).stdout
            for kept in ("no", "yes")]  # fmt: skip
    without, kept = map(int, said)
    assert without > 1000  # pages of 4 kB, or fewer where the system hands out large ones
    assert kept < 100
