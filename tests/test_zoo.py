"""Other people's models: every attention recorded or named, no output changed, no record wrong."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import foreign

QUICK = list(foreign.entries(quick=True))
# What is known to be named rather than recorded; whatever else is, is a loss.
NAMED = {
    "HF/BigBird-sparse",
    "HF/Deformable-DETR",
    "HF/Longformer",
    "HF/Longformer-global",
    "HF/Mask2Former",
    "HF/RT-DETR",
    "timm/coat",
    "timm/extra",
    "timm/volo",
    "torch/sdpa",
    "torch/transformed",
    "vit-pytorch/CCT",
    "vit-pytorch/DeepViT",
    "x-transformers/softclamp",
}


def test_there_are_enough_of_them():
    assert len(QUICK) >= 60
    assert {entry.library for entry in QUICK} == set(foreign.LIBRARIES)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("entry", QUICK, ids=lambda entry: entry.name)
def test_a_model_is_recorded_or_what_is_missed_is_named(entry):
    judged = foreign.judge(entry)
    assert judged.outcome in foreign.GOOD, judged.why
    if judged.outcome == "named":
        assert entry.family in NAMED, judged.why
    elif judged.outcome == "recorded":
        assert judged.recorded == entry.attentions > 0
