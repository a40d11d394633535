"""What a mutation run found untested in evaluation."""

import pytest
import torch
import torch.nn.functional as F
from speaking import CAPTIONS, captioner, pictures
from speaking import NORMALISE as SPOKEN
from torch import nn

from pellucid.data import ImageSet
from pellucid.data.augment import Normalise, normalised
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import END, NEVER, START, CaptionTokenizer
from pellucid.decode import greedy
from pellucid.decode.captions import write_captions
from pellucid.evaluation.accuracy import evaluate_classifier
from pellucid.evaluation.controls import controls
from pellucid.evaluation.pointing import pointing

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


@pytest.mark.parametrize(
    ("box", "share"),
    [((4, 4, 8, 8), 0.25), ((0, 0, 4, 4), 0.25), ((3.9, 4, 8, 8), 0.5), ((4, 3.9, 8, 8), 0.5), ((0, 0, 4.1, 4), 0.5)],
)
def test_a_patch_that_only_touches_the_box_is_no_tolerant_hit(box, share):
    report = pointing([torch.ones(1, 1, 1, 2, 2)], [[[box]]], (8, 8))
    assert report.tolerant_chance == share


def test_a_beam_of_one_says_the_likeliest_word_each_time():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, pixels = captioner(tokenizer, steps=5), pictures()
    context = model.encode(normalised(pixels, SPOKEN))
    words = greedy(model, context, start=START, end=END, length=15, forbidden=NEVER).tokens[:, 0]
    said = write_captions(model, tokenizer, pixels, beam=1)
    assert [best.text for (best,) in said] == [tokenizer.decode(row) for row in words]
    with pytest.raises(ValueError, match="beam is 0; expected one or more"):
        write_captions(model, tokenizer, pixels, beam=0)


def test_an_interval_is_of_as_many_resamples_as_are_asked_for():
    references = {"a": ["a dog runs"], "b": ["two cats sit on grass"], "c": ["a red bird"]}
    said = {"a": "a dog runs", "b": "a dog runs", "c": "a red bird"}
    low, high = controls(said, references, resamples=1).interval["cider_d"]
    assert low == high  # of one number
    low, high = controls(said, references).interval["cider_d"]
    assert low < high
