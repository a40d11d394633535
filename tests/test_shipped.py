"""The model that comes with the package."""

import json

import pytest
import torch
from safetensors import safe_open

from pellucid.cli import main
from pellucid.cli.demo import SAMPLES
from pellucid.data.augment import normalised
from pellucid.data.images import decode
from pellucid.hub import load, shipped
from pellucid.hub.loading import SHIPPED, normalisation

WEIGHTS = SHIPPED / "vit-cifar10" / "model.safetensors"


def test_it_is_small_and_in_half_precision():
    assert shipped() == ["vit-cifar10"]
    assert WEIGHTS.stat().st_size <= 12_000_000
    with safe_open(WEIGHTS, framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


def test_it_recognises_drawings(capsys):
    names = ("airplane", "automobile", "ship", "truck")
    assert main(["predict", "vit-cifar10", *(str(SAMPLES / f"{name}.png") for name in names), "--json"]) == 0
    for name, told in zip(names, json.loads(capsys.readouterr().out), strict=True):
        assert told["predictions"][0]["label"] == name
        assert told["predictions"][0]["probability"] > 0.7


@torch.no_grad()
def test_it_is_the_drawing_and_not_its_colours():
    """The twin: the same pixels in another order are not recognised."""
    model, order = load("vit-cifar10"), torch.randperm(32 * 32)
    for name in ("airplane", "automobile", "ship", "truck"):
        image = normalised(decode(SAMPLES / f"{name}.png", size=(32, 32))[None], normalisation(model))
        shuffled = image.flatten(2)[..., order].view_as(image)
        assert model(shuffled).softmax(-1)[0, model.config.labels.index(name)] < 0.5


def test_other_names_are_refused(capsys):
    assert main(["predict", "vit-cifar11", str(SAMPLES / "ship.png")]) == 2
    assert "vit-cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("size", [24, 48])
@torch.no_grad()
def test_it_takes_other_sizes(size):
    assert load("vit-cifar10")(torch.randn(1, 3, size, size)).shape == (1, 10)
