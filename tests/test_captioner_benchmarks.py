"""The programs that compare captioners say what their runs say, and name no folder of a machine."""

import json
import sys
from pathlib import Path

import pytest

import pellucid

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import captioners
import encoders
import report

TINY = {
    "duration": "2 steps",
    "batch": 8,
    "model": {"layers": 1, "heads": 2, "encoder": {"width": 16, "depth": 1, "heads": 2, "patch": (12, 12)}},
    "data": {"scenes": {"train": 16, "validation": 4, "test": 4}},
}


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/me/captions.json", "PATH"),
        ("--start /tmp/run --data.size 128 128", "--start PATH --data.size 128 128"),
        ("folder:/srv/pictures", "folder:PATH"),
        ("runs/mine", "runs/mine"),
        ("1/2", "1/2"),
    ],
)
def test_a_command_that_is_kept_names_no_folder_of_a_machine(word, kept):
    assert report.without_places(word) == kept


def test_a_run_is_done_when_its_last_stage_is(tmp_path):
    out = tmp_path / "run"
    assert not captioners.is_done(out)
    pellucid.train("captioner_scenes", out=out, progress=False, **TINY)
    assert captioners.is_done(out)
    config = json.loads((out / "config.json").read_text())
    config["critical"]["duration"] = "1 steps"  # a stage that hasn't begun
    (out / "config.json").write_text(json.dumps(config))
    assert not captioners.is_done(out)


def test_a_variant_says_what_the_log_of_its_run_says(tmp_path):
    out = tmp_path / "run"
    result = pellucid.train("captioner_scenes", out=out, progress=False, **TINY)
    row = encoders.read("small", out)
    assert (row["variant"], row["size"], row["tokens"]) == ("small", "48×48", 16)
    assert row["cider_d"] == result.figures["cider_d"]
    assert row["loss"] == result.figures["loss"]
    assert row["own captions"] is None
    nothing = encoders.read("none", tmp_path / "none")
    assert nothing["cider_d"] is None
    assert nothing["variant"] == "none"
