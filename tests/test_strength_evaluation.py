"""What a mutation run found untested in evaluation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pellucid.data import ImageSet
from pellucid.data.augment import Normalise, normalised
from pellucid.data.reader import PictureReader
from pellucid.evaluation.accuracy import evaluate_classifier

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def images(count: int) -> ImageSet:
    pixels = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, ("ant", "bee", "cow"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_loss_is_the_mean_over_however_few_images_there_are(count):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 3))
    some = images(count)
    report = evaluate_classifier(model, some, NORMALISE, batch=2)
    expected = F.cross_entropy(model(normalised(some.images, NORMALISE)), some.labels)
    assert report.loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_blank_picture_has_the_mean_colour_in_bytes():
    blank = PictureReader((8, 12), 3, Normalise((0.8, 0.0, 1.0), (0.2, 0.2, 0.2))).blank()
    assert blank.shape == (3, 8, 12)
    assert [channel.unique().tolist() for channel in blank] == [[204], [0], [255]]


def test_the_clock_runs_while_the_model_answers(monkeypatch):
    now = [100.0]

    class Slow(nn.Sequential):
        def forward(self, x):
            now[0] += 0.5
            return super().forward(x)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    report = evaluate_classifier(Slow(nn.Flatten(), nn.Linear(3 * 4 * 4, 3)), images(6), NORMALISE, batch=2)
    assert report.seconds == pytest.approx(1.5)
    assert report.images_per_second == pytest.approx(4.0)
