"""Learning from a teacher: its formulas, other sizes and classes, and runs that resume."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import assert_same_run

import pellucid
from pellucid.data import ImageSet
from pellucid.data.augment import Normalise, normalised
from pellucid.recipes import recipe
from pellucid.runs.config import Distil
from pellucid.training import Observer
from pellucid.training.distil import Teacher, answers_differ, find_teacher, likeness_differs, reading

CPU = torch.device("cpu")
TINY = {"model": {"width": 16, "depth": 1, "heads": 2}, "batch": 16, "device": "cpu", "progress": False}


def test_answers_and_likeness_are_their_formulas():
    mine, its = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    distil = Distil(temperature=3.0)
    p, q = (its / 3).softmax(-1), (mine / 3).softmax(-1)
    torch.testing.assert_close(answers_differ(mine, its, distil), 9 * (p * (p / q).log()).sum(-1), atol=1e-10, rtol=0)
    p, q = (its / 3).sigmoid(), (mine / 3).sigmoid()
    both = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    torch.testing.assert_close(answers_differ(mine, its, distil, several=True), 9 * both.mean(1), atol=1e-10, rtol=0)
    a, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    expected = sum(
        (F.cosine_similarity(a[i], a[j], dim=0) - F.cosine_similarity(b[i], b[j], dim=0)) ** 2
        for i in range(5)
        for j in range(5)
    )
    torch.testing.assert_close(likeness_differs(a, b), expected / 25, atol=1e-10, rtol=0)
    turned = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    assert likeness_differs(a, 2 * a @ turned) < 1e-20  # what is alike stays alike


def test_a_teacher_sees_the_pictures_as_it_was_trained_to():
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    ours, its = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), Normalise((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    teacher = Teacher(nn.Identity(), ours, its, (8, 8))
    torch.testing.assert_close(teacher.see(normalised(pixels, ours)), normalised(pixels, its), atol=1e-5, rtol=0)
    assert Teacher(nn.Identity(), ours, its, (16, 12)).see(normalised(pixels, ours)).shape == (4, 3, 16, 12)


def test_the_shipped_model_teaches_its_classes_by_name():
    looks = replace(recipe("vit_cifar10_fast").model, mean=(0.5,) * 3, std=(0.2,) * 3)
    some = replace(looks, classes=2, labels=("ship", "cat"))
    run = replace(recipe("vit_cifar10_fast"), model=some, distil=Distil(teacher="vit-cifar10"))
    teacher = find_teacher(run, None, CPU)
    logits, features = teacher.teach(torch.randn(3, 3, 32, 32))
    assert (logits.shape, features.shape) == ((3, 2), (3, 256))
    assert [pellucid.load("vit-cifar10").labels[i] for i in teacher.columns.tolist()] == ["ship", "cat"]
    strange = replace(run, model=replace(some, labels=("ship", "wren")))
    with pytest.raises(ValueError, match="doesn't know 'wren'; let it teach what is alike alone"):
        find_teacher(strange, None, CPU)
    alike = find_teacher(replace(strange, distil=Distil("vit-cifar10", weight=0.0, features=1.0)), None, CPU)
    assert alike.columns is None


class Sums(nn.Module):
    """A teacher of one's own, that knows by which of ten pixels a digit was painted."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10, bias=False)
        with torch.no_grad():
            self.last.weight.zero_()
            self.last.weight[torch.arange(10), torch.arange(10)] = 5.0

    def forward(self, images):
        return self.last(images.flatten(1))


def painted(seed: int, wrong: bool = False) -> ImageSet:
    """Pictures of which one of ten pixels is bright; wrong: with labels that say nothing."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (320,), generator=generator)
    pixels = torch.randint(0, 60, (320, 1, 8, 8), generator=generator, dtype=torch.uint8)
    pixels.flatten(1)[torch.arange(320), labels] = 255
    told = torch.randint(0, 10, (320,), generator=generator) if wrong else labels
    return ImageSet(pixels, told, tuple(map(str, range(10))))


class Breaks(Observer):
    def logged(self, lines):
        if any(line["step"] == 4 and "loss" in line for line in lines):
            raise KeyboardInterrupt


def test_what_only_the_teacher_knows_is_learned():
    """The training labels are wrong, so whoever is right has it from the teacher."""
    data = {"train": painted(0, wrong=True), "validation": painted(1)}
    how = TINY | {"duration": "120 steps", "label_smoothing": 0.0, "augment": {"crop": 0}, "dataset": data}
    student = pellucid.train("vit_digits", teacher=Sums(), distil={"weight": 1.0}, **how)
    alone = pellucid.train("vit_digits", **how)
    assert student.figures["top1"] > 0.6 > 0.3 > alone.figures["top1"]


def test_a_run_with_a_teacher_resumes_to_the_last_bit(tmp_path):
    data = {"train": painted(0), "validation": painted(1)}
    how = TINY | {"duration": "6 steps", "checkpoint_every": "1 steps", "dataset": data, "teacher": Sums()}
    how |= {"distil": {"weight": 0.5, "features": 2.0}, "evaluate_every": "3 steps", "augment": {"cutmix": 1.0}}
    pellucid.train("vit_digits", out=tmp_path / "whole", **how)
    with pytest.raises(KeyboardInterrupt):
        pellucid.train("vit_digits", out=tmp_path / "run", callbacks=[Breaks()], **how)
    with pytest.raises(ValueError, match="give it again: train"):
        pellucid.train(tmp_path / "run", dataset=data, progress=False)
    pellucid.train(tmp_path / "run", dataset=data, teacher=Sums(), progress=False)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_what_cant_be_is_one_sentence():
    for changes, said in (
        ({"distil": {"weight": 2.0}}, "expected a share"),
        ({"distil": {"temperature": 0.0}}, "above zero"),
        ({"distil": {"teacher": "vit-cifar10"}}, "sees 3 channels"),
    ):
        with pytest.raises(ValueError, match=said):
            pellucid.train("vit_digits", duration="1 steps", **TINY | changes)
    with pytest.raises(ValueError, match="says 3 classes, and there are 10"):
        pellucid.train("vit_digits", teacher=nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), duration="1 steps", **TINY)
    with pytest.raises(ValueError, match="no linear layer"), reading(nn.Identity()):
        pass
