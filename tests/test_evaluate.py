"""Figures of a classifier against hand-made truth, and trained models found by their names."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from pellucid.config import to_json
from pellucid.data import DataConfig, ImageSet
from pellucid.data.augment import Normalise
from pellucid.data.lazy import LazyImageSet
from pellucid.data.reader import PictureReader
from pellucid.evaluation.accuracy import ClassificationReport, evaluate_classifier, evaluate_together
from pellucid.models import ViT, ViTConfig
from pellucid.processes import Processes
from pellucid.ready import loading
from pellucid.runs import ClassifierRun

CONFIG = ViTConfig(
    classes=3,
    image=(8, 8),
    width=16,
    depth=1,
    heads=2,
    labels=("ant", "bee", "cow"),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.25, 0.3),
)


def report(probabilities, labels):
    return ClassificationReport(torch.tensor(probabilities), torch.tensor(labels), 0.0, 2.0)


def slow_ece(probabilities, labels, bins):
    """Naeini et al. 2015, one image and one interval (low, high] at a time."""
    total = 0.0
    for i in range(bins):
        inside = [
            (max(row), float(row.index(max(row)) == label))
            for row, label in zip(probabilities, labels, strict=True)
            if i / bins < max(row) <= (i + 1) / bins
        ]
        if inside:
            confidence, accuracy = (sum(values) / len(inside) for values in zip(*inside, strict=True))
            total += len(inside) / len(labels) * abs(confidence - accuracy)
    return total


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_against_a_slow_loop(bins):
    probabilities = (3 * torch.randn(400, 6, dtype=torch.float64)).softmax(-1)
    labels = torch.randint(6, (400,))
    found = ClassificationReport(probabilities, labels, 0.0, 1.0).ece(bins)
    assert_close(found, slow_ece(probabilities.tolist(), labels.tolist(), bins), atol=1e-12, rtol=0)
    assert found > 0.1  # a model that guesses with confidence is not calibrated


def test_ece_of_a_model_that_knows():
    sure = report([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], [0, 1, 0, 1])
    assert sure.ece() == 0.0
    assert report([[1.0, 0.0], [0.0, 1.0]], [1, 0]).ece() == 1.0


def test_top5_by_hand():
    row = [0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.05]
    assert report([row, row], [4, 5]).top5 == 0.5
    assert report([row, row], [0, 5]).top1 == 0.5
    few = report([[0.9, 0.1], [0.9, 0.1]], [0, 1])
    assert few.top5 == 1.0
    assert few.top1 == 0.5


def test_confusion_has_a_row_for_what_it_is():
    seen = report([[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], [0, 1, 1, 1])
    assert seen.confusion.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert seen.confusion.tolist() != seen.confusion.T.tolist()
    assert seen.per_class[0] == 1.0
    assert_close(seen.per_class[1], 1 / 3)
    assert math.isnan(seen.per_class[2])  # no image of this class
    assert seen.images_per_second == 2.0


def test_classification_of_images_one_at_a_time():
    model = ViT(CONFIG)
    images = torch.randint(256, (11, 3, 8, 8), dtype=torch.uint8)
    labels = torch.randint(3, (11,))
    normalise = Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    found = evaluate_classifier(model, ImageSet(images, labels, ("ant", "bee", "cow")), normalise, batch=4)
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalise.mean, normalise.std))
    with torch.no_grad():
        rows = torch.stack([model.eval()((image / 255 - mean)[None] / std)[0].softmax(-1) for image in images])
    assert_close(found.probabilities, rows, atol=1e-6, rtol=1e-5)
    assert_close(found.loss, -rows[range(11), labels].log().mean().item(), atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        raw = model(images.float()).softmax(-1)
    assert not torch.allclose(found.probabilities, raw, atol=1e-4)  # the normalisation counts


# Models by name


def run_folder(path, *, best=None, last=None, config=CONFIG):
    """What training leaves: `best` and `last` are tensors by name."""
    (path / "checkpoints").mkdir(parents=True)
    run = ClassifierRun(recipe="vit_digits", model=config, data=DataConfig("digits"))
    (path / "config.json").write_text(json.dumps(to_json(run)))
    for which, tensors in (("best", best), ("last", last)):
        if tensors is not None:
            save_file(tensors, path / "checkpoints" / f"{which}.safetensors", metadata={"facts": "{}"})
    return path


def under(prefix, model):
    return {f"{prefix}.{name}": tensor for name, tensor in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.fixture
def models():
    return [ViT(CONFIG) for _ in range(3)]


def test_a_run_gives_its_best_weights_else_its_average_else_its_last(tmp_path, models):
    best, average, last = models
    state = under("model", last) | {"optimizer.head.weight.exp_avg": torch.zeros(3, 16)}
    whole = run_folder(tmp_path / "a", best=under("model", best), last=state | under("average", average))
    averaged = run_folder(tmp_path / "b", last=state | under("average", average))
    plain = run_folder(tmp_path / "c", last=state)
    for folder, expected in ((whole, best), (averaged, average), (plain, last)):
        found = loading.load(folder).model
        assert same(found, expected)
        assert not found.training
        assert found.config == CONFIG
        assert [same(found, model) for model in models].count(True) == 1


def test_a_saved_folder_and_a_shipped_model(tmp_path, models, monkeypatch):
    models[0].save_pretrained(tmp_path / "weights" / "vit-tiny")
    assert same(loading.load(tmp_path / "weights" / "vit-tiny").model, models[0])
    with pytest.raises(ValueError, match="no model 'vit-tiny'"):
        loading.load("vit-tiny")
    monkeypatch.setattr(loading, "SHIPPED", tmp_path / "weights")
    assert loading.shipped() == ["vit-tiny"]
    assert same(loading.load("vit-tiny").model, models[0])
    with pytest.raises(ValueError, match=r"no model 'vit-huge'.* is not there, and the shipped models are: vit-tiny; "):
        loading.load("vit-huge")


def test_a_folder_or_file_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        loading.load(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="as a path it is a file"):
        loading.load(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json is not JSON"),
        ("[]", r"config\.json holds no object"),
        ('{"model": "Perceiver"}', "describes a 'Perceiver'; expected a ViT"),
        ('{"model": "ViT", "colour": 1}', r"config\.json: unknown field in the config: colour"),
        ('{"recipe": "x", "model": {"heads": 0}}', r"config\.json: heads is 0; expected one or more"),
        ('{"model": "ViT"}', r"holds no model\.safetensors"),
        ('{"recipe": "x", "model": {}}', r"kept no weights: there is neither best\.safetensors nor last\.safetensors"),
    ],
)
def test_a_damaged_config_gets_one_sentence(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        loading.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("which", ["best", "last"])
def test_damaged_weights_of_a_run(tmp_path, models, which):
    tensors = under("model", models[0])
    folder = run_folder(tmp_path / "run", **{which: tensors})
    file = folder / "checkpoints" / f"{which}.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{which}\.safetensors is damaged or no checkpoint"):
        loading.load(folder)
    save_file({k: v for k, v in tensors.items() if k != "model.head.bias"}, file)
    with pytest.raises(ValueError, match=rf"{which}\.safetensors doesn't fit this ViT: it lacks head\.bias"):
        loading.load(folder)
    save_file(tensors | {"model.tail": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="it has unknown tail"):
        loading.load(folder)
    file.write_bytes(whole)
    assert same(loading.load(folder).model, models[0])


def test_half_an_average_is_not_filled_up_with_the_last_weights(tmp_path, models):
    average = under("average", models[1])
    del average["average.head.bias"]
    folder = run_folder(tmp_path / "run", last=under("model", models[0]) | average)
    with pytest.raises(ValueError, match=r"it lacks head\.bias"):
        loading.load(folder)


def test_damaged_weights_of_a_saved_folder(tmp_path, models):
    models[0].save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        loading.load(tmp_path)


def test_normalisation_and_names_come_from_the_config(models):
    assert PictureReader.of(models[0].config).normalise == Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    assert models[0].config.names == ("ant", "bee", "cow")
    bare = ViT(replace(CONFIG, labels=None, mean=None, std=None))
    assert bare.config.names == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"put mean and std into its config\.json"):
        PictureReader.of(bare.config)


class Plain:
    """An image of one colour that lies in no file; without a colour it can't be read."""

    def __init__(self, name, level):
        self.name, self.level = name, level

    def decode(self, size, channels, view=None):
        if self.level is None:
            raise ValueError(f"{self.name} is no image")
        return torch.full((channels, *size), self.level, dtype=torch.uint8)


def test_no_image_stands_in_for_one_that_can_not_be_read():
    """In training another one of its class does. Here each is counted once, by however many processes."""
    levels = [250, None, 240, 10, None, 20]
    items, labels = [Plain(f"{i}.png", level) for i, level in enumerate(levels)], torch.tensor([0, 0, 0, 1, 1, 1])
    lazy = LazyImageSet(items, labels, ("light", "dark"), (4, 4), tolerated=0.5)
    normalise = Normalise((0.5,) * 3, (0.25,) * 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    report = evaluate_classifier(model, lazy, normalise, batch=2)
    assert report.labels.tolist() == [0, 0, 1, 1]
    assert [report.name_of(place) for place in range(4)] == ["0.png", "2.png", "3.png", "5.png"]
    again = evaluate_together(model, lazy, normalise, Processes(), labels=labels, batch=2)
    assert torch.equal(again.probabilities, report.probabilities)
    assert again.loss == pytest.approx(report.loss)
    readable = LazyImageSet([item for item in items if item.level], report.labels, ("light", "dark"), (4, 4))
    assert_close(evaluate_classifier(model, readable, normalise, batch=2).probabilities, report.probabilities)
    strict = LazyImageSet(items, labels, ("light", "dark"), (4, 4), tolerated=0.3)
    with pytest.raises(ValueError, match="2 of 6 images can't be read, more than 30%"):
        evaluate_classifier(model, strict, normalise)
