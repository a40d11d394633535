"""Features asked by their neighbours and by one layer, against slow truths; and models whose answers mean nothing."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.testing import assert_close

from pellucid.cli import main
from pellucid.data import ImageSet
from pellucid.data.augment import Normalise
from pellucid.evaluation.probing import choose_penalty, extract_features, fit_linear, probe, vote
from pellucid.models import ViT, ViTConfig
from pellucid.ready import ReadyClassifier

NORMALISE = Normalise((0.5,) * 3, (0.25,) * 3)
CONFIG = ViTConfig(
    classes=4, image=(8, 8), width=16, depth=1, heads=2, labels=("a", "b", "c", "d"), mean=(0.5,) * 3, std=(0.25,) * 3
)


def colours(n, shift=0, several=False):
    """Plain pictures of three hues, lighter and darker: none of the model's own classes."""
    labels = (torch.arange(n) + shift) % 3
    pixels = torch.randint(20, 60, (n, 3, 1, 1), dtype=torch.uint8)
    pixels[torch.arange(n), labels] += 150
    labels = F.one_hot(labels, 3).bool() if several else labels
    return ImageSet(pixels.expand(-1, -1, 8, 8).contiguous(), labels, ("red", "green", "blue"))


def test_the_vote_against_a_slow_loop():
    known, labels, asked = torch.randn(30, 5), torch.randint(4, (30,)), torch.randn(7, 5)
    found = vote(known.double(), labels, asked.double(), classes=4, k=6)
    for i in range(7):
        cosines = [F.cosine_similarity(asked[i].double(), each.double(), dim=0).item() for each in known]
        votes = [0.0] * 4
        for cosine, label in sorted(zip(cosines, labels.tolist(), strict=True), reverse=True)[:6]:
            votes[label] += math.exp(cosine / 0.07)
        shares = torch.tensor([each / sum(votes) for each in votes], dtype=torch.float64)
        assert_close(found[i], shares, atol=1e-10, rtol=0)
    assert (found == 0).any(), "somebody has no vote"
    assert_close(vote(known, labels, known, classes=4, k=1).argmax(1), labels)  # each is its own nearest
    assert_close(vote(known, labels, asked, classes=4, k=99).sum(1), torch.ones(7))  # more than there are


def test_the_layer_is_where_the_loss_has_no_slope():
    x, labels, penalty = torch.randn(40, 6, dtype=torch.float64), torch.randint(3, (40,)), 0.01
    weight, bias = (each.requires_grad_() for each in fit_linear(x, labels, 3, penalty))
    loss = F.cross_entropy(x @ weight + bias, labels) + penalty / 2 * weight.square().sum()
    loss.backward()
    assert weight.grad.abs().max() < 1e-5
    assert bias.grad.abs().max() < 1e-5
    small, _ = fit_linear(x, labels, 3, penalty=10.0)
    assert small.norm() < 0.1 * weight.norm()
    assert choose_penalty(x, labels, 3) == 0.1, "there is nothing to be learned, so as little as can be"
    x[torch.arange(40), labels] += 9
    assert choose_penalty(x, labels, 3) < 0.1


def test_features_are_what_the_last_layer_reads():
    model, images = ViT(CONFIG).train(), colours(5)
    features = extract_features(model, images, NORMALISE, batch=2)
    assert features.shape == (5, 16)
    model.eval()
    with torch.no_grad():
        assert_close(model.head(features), model((images.images / 255 - 0.5) / 0.25), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["knn", "linear"])
def test_a_model_that_knows_other_classes_has_features_for_these(kind):
    model = ReadyClassifier(ViT(CONFIG).eval())
    data = {"train": colours(60), "test": colours(30, shift=1)}
    report = model.probe(data, kind=kind)
    assert report.top1 == 1.0
    assert report.figures["per_class"] == {"red": 1.0, "green": 1.0, "blue": 1.0}
    assert_close(report.probabilities.sum(1), torch.ones(30))
    wrong = ImageSet(data["train"].images, torch.randint(3, (60,)), data["train"].classes)
    assert model.probe(data | {"train": wrong}, kind=kind).top1 < 0.8, "what it learns from decides"


def test_what_is_asked_for_wrongly():
    model, images = ReadyClassifier(ViT(CONFIG)), colours(12)
    with pytest.raises(ValueError, match="probe is 'svm'; expected 'knn' or 'linear'"):
        model.probe({"train": images, "test": images}, kind="svm")
    with pytest.raises(ValueError, match="a probe learns from train, so expected 'test' or 'validation'"):
        model.probe({"train": images}, "train")
    with pytest.raises(ValueError, match="data has no test images"):
        model.probe({"train": images})
    for others, sentence in (
        (colours(6, several=True), "images of one class each"),
        (ImageSet(images.images, images.labels, ("x", "y", "z")), "other classes than those"),
    ):
        with pytest.raises(ValueError, match=sentence):
            probe(model.model, images, others, NORMALISE)
    with pytest.raises(ValueError, match="no linear layer whose features could be read"):
        probe(nn.Sequential(nn.Conv2d(3, 3, 1)), images, images, NORMALISE)


def test_on_the_command_line(tmp_path, capsys):
    ViT(CONFIG).save_pretrained(tmp_path / "model")
    for split, images in (("train", colours(30)), ("test", colours(9))):
        for i, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
            path = tmp_path / "pictures" / split / images.classes[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    words = ["evaluate", str(tmp_path / "model"), "--data", f"folder:{tmp_path / 'pictures'}", "--probe"]
    for kind in ("knn", "linear"):
        assert main([*words, kind, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["top1"], found["probe"], found["images"], found["split"]) == (1.0, kind, 9, "test")
    assert main([*words, "knn"]) == 0
    assert "by its features' neighbours on the 9 test images" in capsys.readouterr().out
    for more, sentence in (
        (["--calibrate"], "--calibrate is for what the model answers"),
        (["--views", "2"], "--views is for what the model answers"),
        (["--split", "train"], "a probe learns from train"),
    ):
        assert main([*words, "knn", *more]) == 2
        assert sentence in capsys.readouterr().err
