"""Learning from pictures alone: the formula, what it learns that nobody told it, and what can't be asked for."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import assert_same_run

import pellucid
from pellucid.cli import main
from pellucid.data import DataConfig, ImageSet, load_images
from pellucid.runs.config import ClassifierRun
from pellucid.training import Observer
from pellucid.training.pairs import find_partners, partners_differ

TINY = {"model": {"width": 32, "depth": 1, "heads": 2}, "batch": 128, "device": "cpu", "progress": False}
ALONE = {"pairs": {"weight": 1.0}, "augment": {"crop": 1}}


def digits(told: bool = True) -> dict[str, ImageSet]:
    """The digits; not told: with labels that say nothing."""
    splits = load_images(DataConfig("digits", held_out=137))
    train, labels = splits.train, torch.randint(10, (len(splits.train),))
    train = train if told else ImageSet(train.images, labels, train.classes)
    return {"train": train, "validation": splits.validation, "test": splits.test}


def test_the_loss_against_a_slow_loop():
    views, t = torch.randn(8, 5, dtype=torch.float64), 0.3
    found = partners_differ(views, t)
    assert found.shape == (4,)
    for i in range(4):
        total = 0.0
        for one, other in ((i, i + 4), (i + 4, i)):
            scores = {j: F.cosine_similarity(views[one], views[j], dim=0).item() / t for j in range(8) if j != one}
            total -= scores[other] - math.log(sum(map(math.exp, scores.values())))
            if one == i:
                assert find_partners(views)[i] == (max(scores, key=scores.__getitem__) == other)
        assert found[i].item() == pytest.approx(total / 2, abs=1e-10)
    turned = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    torch.testing.assert_close(partners_differ(3 * views @ turned, t), found)  # only directions count


def test_what_nobody_told_it_is_in_its_features():
    new, learned = (
        pellucid.train("vit_digits", dataset=digits(told=False), duration=f"{steps} steps", **TINY | ALONE)
        for steps in (1, 60)
    )
    assert learned.score == "found"
    assert learned.figures["found"] > 0.3 > 0.2 > new.figures["found"]
    before, after = (each.model.probe(digits(), kind="knn").top1 for each in (new, learned))
    assert after > 0.85 > 0.8 > before


def test_alone_no_label_moves_a_weight_and_beside_labels_both_do():
    def weights(told: bool, share: float) -> torch.Tensor:
        how = TINY | ALONE | {"pairs": {"weight": share}, "duration": "3 steps"}
        return pellucid.train("vit_digits", dataset=digits(told), **how).model.model.blocks[0].attention.q.weight

    assert torch.equal(weights(True, 1.0), weights(False, 1.0))
    both = weights(True, 0.5)
    assert not torch.equal(both, weights(False, 0.5))
    assert not torch.equal(both, weights(True, 0.0))


class Breaks(Observer):
    def logged(self, lines):
        if any(line["step"] == 4 and "loss" in line for line in lines):
            raise KeyboardInterrupt


def test_a_run_without_labels_resumes_to_the_last_bit_and_can_be_begun_with(tmp_path, capsys):
    data = digits()
    how = TINY | ALONE | {"duration": "6 steps", "checkpoint_every": "1 steps", "dataset": data}
    pellucid.train("vit_digits", out=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        pellucid.train("vit_digits", out=tmp_path / "run", callbacks=[Breaks()], **how)
    pellucid.train(tmp_path / "run", dataset=data, progress=False)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    model = pellucid.load(tmp_path / "run")
    for ask in (lambda: model.predict(torch.zeros(1, 8, 8)), lambda: model.evaluate("digits")):
        with pytest.raises(ValueError, match="learned without labels and has no answers"):
            ask()
    assert main(["evaluate", str(tmp_path / "run"), "--data", "digits"]) == 2
    assert "--probe knn" in capsys.readouterr().err
    assert main(["curves", str(tmp_path / "run"), "--out", str(tmp_path / "curves.png")]) == 0
    begun = {"start": str(tmp_path / "run"), "dataset": data, "duration": "1 steps", "batch": 128}
    tuned = pellucid.train("vit_finetune", device="cpu", progress=False, **begun)
    assert len(tuned.model.predict(torch.zeros(1, 8, 8), top=10)) == 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": {"weight": 2.0}}, "expected a share"),
        ({"pairs": {"weight": 1.0, "temperature": 0.0}}, "above zero"),
        (ALONE | {"augment": {"cutmix": 1.0}}, "leave mixup and cutmix at 0"),
        (ALONE | {"augment": {"crop": 0, "flip": "none"}}, "give an augmentation"),
        (ALONE | {"data": {"zoom_into": "original"}}, "leave data.zoom_into at 'image'"),
        (ALONE | {"compile": True}, "isn't compiled; give --no-compile"),
    ],
)
def test_what_cant_be_is_one_sentence(changes, said):
    with pytest.raises(ValueError, match=said):
        pellucid.train("vit_digits", duration="1 steps", **TINY | changes)


def test_a_module_of_ones_own_needs_a_last_layer():
    module = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(ValueError, match="no linear layer"):
        pellucid.train("vit_digits", module=module, duration="1 steps", progress=False, **ALONE)
    assert ClassifierRun().pairs.weight == 0
