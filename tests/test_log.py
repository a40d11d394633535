"""The log of a run: read on as it grows, and whatever stands between its lines."""

import json
import logging
import os

import pytest
import torch

from pellucid.runs import RunFolder
from pellucid.runs.log import LONGEST, Log, LoggedEvaluation, LoggedStep, parse_line
from pellucid.serve.runs import Runs, thin_out
from pellucid.training import train
from pellucid.views.curves import read_history, save_curves

STEP = '{{"step": {0}, "epoch": {0}, "loss": 1.5, "accuracy": 0.5}}\n'.format
EVALUATION = '{{"step": {0}, "epoch": {0}, "evaluation": {{"top1": 0.25, "loss": 2.0}}, "seconds": 1.0}}\n'.format
ODD = {
    "a number": b"5",
    "a text": b'"step"',
    "a list": b"[1]",
    "nothing": b"null",
    "no JSON": b"{step: 1}",
    "no step": b'{"epoch": 1}',
    "no epoch": b'{"step": 3}',
    "a step in words": b'{"step": "3", "epoch": 1.0, "loss": 1}',
    "a step that is none": b'{"step": 0, "epoch": 0.0, "loss": 1}',
    "half a step": b'{"step": 2.5, "epoch": 1.0, "loss": 1}',
    "a step that is true": b'{"step": true, "epoch": 1.0, "loss": 1}',
    "a step beyond every float": b'{"step": 1' + b"0" * 400 + b', "epoch": 1.0, "loss": 1}',
    "a step of more digits than Python reads": b'{"step": 1' + b"0" * 5000 + b', "epoch": 1.0, "loss": 1}',
    "an epoch that is no number": b'{"step": 3, "epoch": NaN, "loss": 1}',
    "an epoch without end": b'{"step": 3, "epoch": 1e999, "loss": 1}',
    "an epoch of another world": b'{"step": 3, "epoch": 1e300, "loss": 1}',
    "an epoch before the first": b'{"step": 3, "epoch": -1, "loss": 1}',
    "an evaluation in a number": b'{"step": 3, "epoch": 1.0, "evaluation": 3}',
    "an evaluation that is nothing": b'{"step": 3, "epoch": 1.0, "evaluation": null}',
    "rubbish": bytes(range(11, 256)) * 3,
    "zeros, as a power cut leaves them": bytes(4096),
    "depth": b"[" * 60_000,
    "ten megabytes": b'{"step": 3, "epoch": 1.0, "text": "' + b"x" * 10_000_000 + b'"}',
    "exactly as long as is read at once": b" " * LONGEST,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    return RunFolder(tmp_path / "run")


def test_what_a_line_tells():
    assert parse_line(STEP(3).encode()) == LoggedStep(3, 3, {"loss": 1.5, "accuracy": 0.5})
    assert parse_line(EVALUATION(3).encode()) == LoggedEvaluation(3, 3, {"top1": 0.25, "loss": 2.0}, 1.0)
    strange = b'{"step": 3, "epoch": 0.5, "loss": NaN, "accuracy": "much", "lr": 1e999, "n": true}'
    assert parse_line(strange) == LoggedStep(3, 0.5, {"loss": None, "accuracy": None, "lr": None, "n": None})


@pytest.mark.parametrize("name", ODD)
def test_an_odd_line_is_left_out_and_counted(name, folder, caplog):
    before, after = STEP(1).encode(), (STEP(2) + EVALUATION(2)).encode()
    folder.log_file.write_bytes(before + ODD[name] + b"\n" + after + b'{"step": 4')
    log = Log()
    log.read(folder.log_file)
    assert [each.step for each in log.steps] == [1, 2]
    assert [each.step for each in log.evaluations] == [2]
    assert log.odd == (0 if ODD[name].isspace() else 1)
    told = Runs(folder.path.parent).detail("run", folder.path, 0, points=100)
    assert told["curves"]["step"] == [1, 2]
    assert told["odd_lines"] == log.odd
    with caplog.at_level(logging.WARNING, "pellucid"):
        assert [point.loss for point in read_history(folder.path, "run").steps] == [1.5, 1.5]
        folder.cut_log(1)
    sentence = f"{folder.log_file} has a line that tells of no step and no evaluation; left out"
    assert caplog.messages == [sentence, sentence][: 2 * log.odd]
    assert folder.log_file.read_bytes() == before


def test_many_odd_lines_are_told_in_one_sentence(folder, caplog):
    folder.log_file.write_text(STEP(1) + "5\n" * 3)
    folder.read_log()
    assert caplog.messages == [f"{folder.log_file} has 3 lines that tell of no step and no evaluation; left out"]


def test_good_lines_are_kept_to_the_byte(folder, caplog):
    text = '{"step":1,  "epoch":1e0,"loss":NaN,"note":"of another version"}\n' + EVALUATION(1)
    folder.log_file.write_text(text + STEP(2))
    folder.cut_log(1)
    assert folder.log_file.read_text() == text
    assert caplog.messages == []


def test_a_log_is_read_on_and_anew_when_it_is_cut(tmp_path):
    path, log = tmp_path / "log.jsonl", Log()
    path.write_text(STEP(1) + STEP(2) + STEP(3)[:20])
    log.read(path)
    assert log.last == 2
    path.write_text(STEP(1) + STEP(2) + STEP(3) + "x" * 2 * LONGEST)
    log.read(path)
    assert [each.step for each in log.steps] == [1, 2, 3]
    assert log.odd == 0  # it may still become something
    with path.open("a") as file:
        file.write("\n" + STEP(4))
    log.read(path)
    assert ([each.step for each in log.steps], log.odd) == ([1, 2, 3, 4], 1)
    path.write_text(STEP(1))
    log.read(path)
    assert ([each.step for each in log.steps], log.odd) == ([1], 0)
    (tmp_path / "new").write_text(STEP(7) * 3)
    os.replace(tmp_path / "new", path)
    log.read(path)
    assert [each.step for each in log.steps] == [7, 7, 7]


def test_means_of_the_largest_numbers_are_numbers():
    steps = [LoggedStep(i, float(i), {"loss": 1.7e308}) for i in range(1, 5)]
    assert thin_out(steps, points=2)["loss"] == [1.7e308, 1.7e308]
    assert thin_out([LoggedStep(1, 1.0, {"loss": None}), *steps[1:]], points=2)["loss"] == [1.7e308, 1.7e308]
    assert thin_out([each._replace(figures={"loss": None}) for each in steps], points=2)["loss"] == [None, None]


EXTREME = {
    "large": ["1e308", "1.7e308", "0.5"],
    "no numbers at all": ["NaN", '"much"', "null"],
    "small": ["5e-324", "0", "-1e308"],
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("epoch", ["0.5", "9e15", "0"])
def test_curves_of_strange_numbers_are_drawn(name, epoch, folder, tmp_path):
    lines = [
        f'{{"step": {i}, "epoch": {epoch}, "loss": {x}, "accuracy": {x}}}\n' for i, x in enumerate(EXTREME[name], 1)
    ]
    lines += [f'{{"step": {2**53 - 1}, "epoch": {epoch}, "evaluation": {{"loss": {x}}}}}\n' for x in EXTREME[name]]
    folder.log_file.write_text("".join(lines))
    folder.config_file.unlink()
    save_curves([folder.path], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_goes_on_over_odd_lines(tmp_path, caplog):
    """To the same end, and its log is then as if nobody had written there."""
    one, two = tmp_path / "one", tmp_path / "two"
    how = {"model": {"depth": 1, "width": 16, "heads": 2}, "batch": 64, "data": {"held_out": 0}, "progress": False}
    for path in (one, two):
        train("vit_digits", out=path, duration="4 steps", evaluate_every="2 steps", **how)
    folder = RunFolder(two)
    lines = folder.log_file.read_bytes().splitlines(keepends=True)
    folder.log_file.write_bytes(b"\n".join([*list(ODD.values())[:-2], b""]) + b"5\n".join(lines) + b'{"step": 9')
    with caplog.at_level(logging.WARNING, "pellucid"):
        result = train(two, progress=False)
    assert result.steps == 4
    assert len([message for message in caplog.messages if "lines that tell of no step" in message]) == 1
    assert folder.log_file.read_bytes() == b"".join(lines)
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2, 3, 4, 4]
    assert torch.equal(*(train(path, progress=False).model.model.state_dict()["head.weight"] for path in (one, two)))
