"""The program that says what one change of a recipe brings: in time, and on images held out."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pellucid

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import record

TINY = [
    "--data.name",
    "digits",
    "--data.size",
    "16",
    "16",
    "--data.held-out",
    "40",
    "--model.width",
    "16",
    "--model.depth",
    "1",
    "--model.heads",
    "2",
    "--model.hidden",
    "16",
    "--batch",
    "32",
    "--precision",
    "float32",
    "--no-compile",
    "--no-graphs",
    "--device",
    "cpu",
]


@pytest.fixture
def kept(monkeypatch):
    """What would be kept, and never is."""
    found = {}
    monkeypatch.setattr(record, "keep", lambda name, tables, *_, **how: found.update({name: tables[name].rows} | how))
    return found


def test_steps_are_timed_for_each_size_of_images(kept, monkeypatch):
    sides, fitting = [], record.classify.Classification.fitting
    monkeypatch.setattr(
        record.classify.Classification,
        "fitting",
        lambda self, pixels: sides.append(pixels.shape[-1]) or fitting(self, pixels),
    )
    sizes = ["--augment.small-side", "8", "--augment.smaller-side", "4"]
    record.main(["steps", "large", "small", "grow", "--count", "2", *sizes, *TINY])
    large, small, grow = kept["steps"]
    assert large["beside"] == 1.0
    assert sides == [16] * 4 + [8] * 4 + [16] * 4 + [4] * 4 + [8] * 4 + [16] * 4
    assert small["mean"] == pytest.approx((small["small"] + small["whole"]) / 2 * 1024 / 32)
    parts = 0.35 * grow["smaller"] + 0.35 * grow["small"] + 0.3 * grow["whole"]
    assert grow["mean"] == pytest.approx(parts * 1024 / 32)


def test_trials_say_what_they_are_worth_in_the_time_of_the_first(kept, tmp_path):
    rows = ["--rows", str(tmp_path / "rows.jsonl")]
    record.main(["trials", "base", "--epochs", "0.1", *rows, *TINY])
    known = kept["trials"][0]
    record.main(["trials", "base", "stem+lr6@0.2", "--epochs", "0.1", *rows, *TINY])
    first, other = kept["trials"]
    assert first == known, "what is done isn't made again"
    assert (first["epochs"], other["epochs"]) == (0.1, 0.2)
    assert first["worth"] == first["held out"]
    assert (other["worth"] < other["held out"]) == (other["training"] > first["training"])
    assert kept["settings"]["images held out"] == 40


def test_changes_are_joined_and_unknown_ones_named(kept):
    run = record.changed(pellucid.recipe("vit_cifar10_fast"), "small+stem+half")
    assert (run.augment.small, run.optim.muon_stem, run.batch) == (0.5, True, 512)
    assert replace(run, batch=1024, augment=replace(run.augment, small=0.0)).augment.cutmix == 1.0, "others stay"
    with pytest.raises(ValueError, match="there is no change 'magic'; expected some of base, small"):
        record.main(["trials", "magic", *TINY])
    assert kept == {}
