"""What a mutation run found untested in training."""

import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from test_caption_training import made, tiny
from torch.testing import assert_close

from pellucid.data.tokenizer import PAD, UNKNOWN
from pellucid.training import folder


def test_the_bag_is_asked_for_where_unknown_is_read_and_nothing_before_it():
    task = made(tiny(bag=0.5, model=replace(tiny().model, zero_branches=False)))
    (part,) = next(iter(task.batches(0, 1)))
    with_bag, _ = task.loss(task.model, *part)
    task.run = replace(task.run, bag=0.0)
    without, _ = task.loss(task.model, *part)
    share = task.loader.share(0)
    images, flipped = task.augmented(share, task.loader.pixels(share), task.run.augment)
    row = torch.full((len(images), 4), PAD)
    row[:, 0] = UNKNOWN
    log_probs = task.model(images, row)[:, 0].log_softmax(-1)
    bags = task.bags(share, flipped)
    assert_close(with_bag - without, -0.5 * (bags * log_probs).sum(-1).mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_half_precision_is_what_a_run_asks_for(precision):
    task = made(tiny(precision=precision))
    with task.precision():
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.skipif(shutil.which("git") is None, reason="the commit is git's")
def test_the_commit_is_that_of_the_tree_the_package_runs_from(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "pellucid" / "training" / "folder.py"))
    assert folder.environment()["commit"] is None
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(tmp_path), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout
    commit = folder.environment()["commit"]
    assert len(commit) >= 7
    assert head.startswith(commit)
