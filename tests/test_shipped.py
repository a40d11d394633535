"""The models that come with the package."""

import json
from pathlib import Path

import matplotlib
import pytest
import torch
from safetensors import safe_open

from pellucid.cli import main
from pellucid.cli.demo import SAMPLES
from pellucid.cli.evaluate_captions import Speaker, scene_figures
from pellucid.data.augment import normalised
from pellucid.data.images import decode
from pellucid.data.scenes import SceneConfig, make_scenes
from pellucid.evaluation.speech import blank_picture, describe
from pellucid.hub import load, load_captioner, shipped
from pellucid.hub.loading import SHIPPED, normalisation


@pytest.mark.parametrize(
    ("name", "most"),
    [("vit-cifar10", 12_000_000), ("captioner-scenes", 3_000_000), ("captioner-flickr8k", 24_000_000)],
)
def test_it_is_small_and_in_half_precision(name, most):
    assert name in shipped()
    weights = SHIPPED / name / "model.safetensors"
    assert weights.stat().st_size <= most
    with safe_open(weights, framework="pt") as file:
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


def test_the_captioner_says_what_is_in_new_scenes_and_looks_at_it():
    model, tokenizer = load_captioner("captioner-scenes")
    scenes = make_scenes(SceneConfig(train=1, validation=60, test=60, seed=7), model.config.encoder.image)
    speaker = Speaker(model, tokenizer, normalisation(model), beam=2, batch=60)
    found = scene_figures(speaker, scenes.test, scenes.validation)
    assert found["exact_seen"] > 0.8
    assert found["exact_unseen"] > 0.6
    assert found["pointing"] > 0.7 > 0.2 > found["pointing_chance"]


def test_the_captioner_sees_the_picture():
    """The twin: of a blank picture it says something else than of a scene."""
    model, tokenizer = load_captioner("captioner-scenes")
    normalise = normalisation(model)
    scene = make_scenes(SceneConfig(train=1, validation=1, test=0), model.config.encoder.image).validation
    pictures = torch.cat([scene.images.read(torch.tensor([0])), blank_picture(model, normalise)])
    (seen, *_), (blank, *_) = describe(model, tokenizer, pictures, normalise)
    assert seen.caption == scene.captions[0][0] != blank.caption


def test_the_captioner_of_photographs_tells_a_portrait_from_a_ship(capsys):
    portrait = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    assert main(["caption", "captioner-flickr8k", str(portrait), str(SAMPLES / "ship.png"), "--json"]) == 0
    person, ship = (set(told["captions"][0]["caption"].split()) for told in json.loads(capsys.readouterr().out))
    assert {"man", "woman", "jacket"} & person
    assert {"boat", "water"} <= ship
    assert not {"boat", "water"} & person
