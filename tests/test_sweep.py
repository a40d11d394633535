"""Many runs of one recipe, a rate by trial, and callbacks."""

import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

import pellucid
from pellucid.cli import main
from pellucid.recipes import recipe
from pellucid.training import Observer, find_rate, sweep
from pellucid.training.rates import DIVERGED
from pellucid.training.sweep import Range, Trial, list_combinations, name_run, summarise_repeats

TINY = {"model": {"width": 16, "depth": 1, "heads": 2}, "batch": 16, "device": "cpu", "duration": "4 steps"}
WORDS = "--model.width 16 --model.depth 1 --model.heads 2 --batch 16 --device cpu --duration".split()  # noqa: SIM905


def test_every_combination_is_a_run_of_its_own_and_the_best_comes_first(tmp_path):
    vary = {"optim.lr": [1e-3, 0.0], "optim.muon_lr": [0.01], "seed": [0, 1]}
    told = []
    trials = sweep("vit_digits", tmp_path, vary, tell=lambda *each: told.append(each), **TINY)
    assert [trial.folder.name for _, _, trial in told] == [
        f"lr={lr},muon_lr=0.01,seed={seed}" for lr in ("0.001", "0") for seed in (0, 1)
    ]
    assert [(number, count) for number, count, _ in told] == [(i, 4) for i in (1, 2, 3, 4)]
    scores = [trial.best for trial in trials]
    assert scores == sorted(scores, reverse=True)
    alone = pellucid.train("vit_digits", progress=False, **TINY | {"seed": 1, "optim.lr": 1e-3, "optim.muon_lr": 0.01})
    (same,) = [trial for trial in trials if trial.values["seed"] == 1 and trial.values["optim.lr"] == 1e-3]
    assert same.best == alone.figures["top1"]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    again = sweep("vit_digits", tmp_path, vary, **TINY)  # all have ended: they are read
    assert again == trials
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


class EndsAt(Observer):
    """A callback, as people write them."""

    def __init__(self, step: int):
        self.step, self.lines, self.beginnings = step, [], []

    def began(self, step, steps):
        self.beginnings.append((step, steps))

    def logged(self, lines):
        self.lines += lines
        return any("evaluation" in line and line["step"] >= self.step for line in lines)


def test_a_sweep_that_was_stopped_goes_on(tmp_path):
    class Killed(Exception):
        pass

    class Kills(Observer):
        def logged(self, lines):
            if any(line["step"] >= 2 and "evaluation" in line for line in lines):
                raise Killed

    how = TINY | {"evaluate_every": "2 steps", "checkpoint_every": "1 steps"}
    vary = {"seed": [0, 1]}
    with pytest.raises(Killed):
        sweep("vit_digits", tmp_path / "one", vary, callbacks=[Kills()], **how)
    heard = EndsAt(100)
    broken = sweep("vit_digits", tmp_path / "one", vary, callbacks=[heard], **how)
    assert heard.beginnings == [(1, 4), (0, 4)]
    whole = sweep("vit_digits", tmp_path / "two", vary, **how)
    assert [(t.values, t.figures) for t in broken] == [(t.values, t.figures) for t in whole]


def test_callbacks_are_told_and_may_end_a_run(tmp_path):
    heard = EndsAt(4)
    how = TINY | {"duration": "20 steps", "evaluate_every": "2 steps"}
    result = pellucid.train("vit_digits", out=tmp_path / "run", progress=False, callbacks=[heard], **how)
    assert (result.steps, result.planned) == (4, 20)
    assert [line["step"] for line in heard.lines if "loss" in line] == [1, 2, 3, 4]
    assert [line["evaluation"]["top1"] for line in heard.lines if "evaluation" in line][-1] == result.figures["top1"]
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").is_file()


def test_draws_are_the_same_ones_again():
    vary = {"optim.lr": [Range(1e-4, 1e-2)], "optim.warmup": [Range(0.0, 0.5)], "batch": [8, 16]}
    drawn = list_combinations(vary, 400, 3)
    assert list_combinations(vary, 400, 3) == drawn != list_combinations(vary, 400, 4)
    rates = torch.tensor([each["optim.lr"] for each in drawn]).log10()
    assert -4 <= rates.min() < -3.9 < -2.1 < rates.max() <= -2
    assert abs(rates.mean() + 3) < 0.1
    assert abs(sum(each["optim.warmup"] for each in drawn) / 400 - 0.25) < 0.03
    assert {each["batch"] for each in drawn} == {8, 16}
    for wrong, said in (({}, "nothing is varied"), ({"a": []}, "nothing is varied"), (vary, "say how many")):
        with pytest.raises(ValueError, match=said):
            list_combinations(wrong, 0, 0)
    assert name_run({"a.lr": 1.0, "b.lr": 2.0}) == "a.lr=1,b.lr=2"


def test_a_mistake_is_told_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="unknown field"):
        sweep("vit_digits", tmp_path / "out", {"seed": [0], "optim.speed": [1]}, **TINY)
    assert not (tmp_path / "out").exists()


def test_repeats_are_averaged():
    scores = {(1, 0): 0.5, (1, 1): 0.7, (2, 0): 0.9, (2, 1): 0.9}
    trials = [Trial({"batch": b, "seed": s}, Path(), "top1", {"top1": score}) for (b, s), score in scores.items()]
    best, worse = summarise_repeats(trials)
    assert best == ({"batch": 2}, 0.9, 0.0, 2)
    assert worse[0] == {"batch": 1}
    assert worse[1:] == pytest.approx((0.6, math.sqrt(0.02), 2))


def test_the_command_line_sweeps(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        "vit_digits",
        "--vary",
        "data.fold",
        "1",
        "2",
        "--data.folds",
        "2",
        *WORDS,
    ]
    assert main([*words, "2 steps"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2: data.fold 2: top1 0." in said
    assert "mean of 2 0." in said
    assert {path.name for path in Path("sweeps/vit_digits").iterdir()} == {"fold=1", "fold=2"}
    config = json.loads(Path("sweeps/vit_digits/fold=2/config.json").read_text())
    assert (config["data"]["folds"], config["data"]["fold"], config["batch"]) == (2, 2, 16)
    assert config["data"]["held_out"] == 0  # the recipe's 137 are no question of mine


def test_a_rate_is_found_and_nothing_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_rate("vit_digits", steps=60, **{name: TINY[name] for name in ("model", "batch", "device")})
    run = recipe("vit_digits")
    assert found.run.optim.lr == pytest.approx(found.best * run.optim.lr)
    assert 0.01 <= found.best <= 10  # a recipe's rates were chosen for it
    smallest = min(found.losses)
    assert found.losses[0] > smallest + 0.05  # it learned,
    assert found.losses[-1] > smallest + 0.02  # and then no longer
    assert all(loss <= DIVERGED * smallest for loss in found.losses[:-1])
    again = find_rate("vit_digits", steps=60, **{name: TINY[name] for name in ("model", "batch", "device")})
    assert again.losses == found.losses
    assert main(["rate", "vit_digits", "--steps", "12", *WORDS[:-1], "--figure", "rate.png"]) == 0
    assert "times the recipe's rates: --optim.lr" in capsys.readouterr().out
    with Image.open("rate.png") as image:
        assert image.width > 500
    assert [path.name for path in tmp_path.iterdir()] == ["rate.png"]
    assert main(["rate", "captioner_scenes"]) == 2
    assert "rates are tried for classifiers" in capsys.readouterr().err
