"""The models that come with the package."""

import json
from pathlib import Path

import matplotlib
import pytest
import torch
from safetensors import safe_open

from pellucid.cli import main
from pellucid.cli.demo import SAMPLES
from pellucid.data.scenes import SceneConfig, make_scenes
from pellucid.evaluation import evaluate_captioner
from pellucid.ready import load_captioner, load_classifier, load_translator, shipped
from pellucid.ready.loading import SHIPPED
from pellucid.recipes.translator import translator_small

MOST = {  # bytes of the weights
    "vit-cifar10": 12_000_000,
    "vit-tiny-imagenet": 16_000_000,
    "captioner-scenes": 3_000_000,
    "captioner-flickr8k": 32_000_000,
    "translator-en-de": 12_000_000,
}


@pytest.mark.parametrize("name", shipped())
def test_it_is_small_and_in_half_precision(name):
    weights = SHIPPED / name / "model.safetensors"
    assert weights.stat().st_size <= MOST[name]
    with safe_open(weights, framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("vit-")])
def test_a_classifier_calls_its_classes_by_names_and_reads_any_picture(name):
    model = load_classifier(name)
    assert len(set(model.labels)) == len(model.labels) == model.looks.classes
    assert not any(label.isdecimal() for label in model.labels)
    photograph = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    best = model.predict(photograph, top=model.looks.classes)
    assert sum(each.probability for each in best) == pytest.approx(1, abs=1e-4)
    assert best[0].label != model.predict(SAMPLES / "ship.png", top=1)[0].label, "they are different things"


def test_it_recognises_drawings(capsys):
    names = ("airplane", "automobile", "ship", "truck")
    assert main(["predict", "vit-cifar10", *(str(SAMPLES / f"{name}.png") for name in names), "--json"]) == 0
    for name, told in zip(names, json.loads(capsys.readouterr().out), strict=True):
        assert told["predictions"][0]["label"] == name
        assert told["predictions"][0]["probability"] > 0.7


@torch.no_grad()
def test_it_is_the_drawing_and_not_its_colours():
    """The twin: the same pixels in another order are not recognised."""
    model, order = load_classifier("vit-cifar10"), torch.randperm(32 * 32)
    for name in ("airplane", "automobile", "ship", "truck"):
        pixels = model.read(SAMPLES / f"{name}.png")
        shuffled = pixels.flatten(2)[..., order].view_as(pixels)
        assert model.probabilities(shuffled)[0, model.labels.index(name)] < 0.5


def test_other_names_are_refused(capsys):
    assert main(["predict", "vit-cifar11", str(SAMPLES / "ship.png")]) == 2
    assert "vit-cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("size", [24, 48])
@torch.no_grad()
def test_it_takes_other_sizes(size):
    assert load_classifier("vit-cifar10").model(torch.randn(1, 3, size, size)).shape == (1, 10)


def test_the_captioner_says_what_is_in_new_scenes_and_looks_at_it():
    model = load_captioner("captioner-scenes")
    scenes = make_scenes(SceneConfig(train=1, validation=60, test=60, seed=7), model.reader.size)
    how = {"others": scenes.validation, "beam": 2, "batch": 60}
    figures = evaluate_captioner(model.model, model.tokenizer, scenes.test, **how).figures
    assert figures["exact_seen"] > 0.8
    assert figures["exact_unseen"] > 0.6
    assert figures["pointing"] > 0.7 > 0.2 > figures["pointing_chance"]


def test_the_captioner_sees_the_picture():
    """The twin: of a blank picture it says something else than of a scene."""
    model = load_captioner("captioner-scenes")
    scene = make_scenes(SceneConfig(train=1, validation=1, test=0), model.reader.size).validation
    pictures = [scene.images.read(torch.tensor([0]))[0], model.reader.blank()]
    (seen, *_), (blank, *_) = model.caption(pictures)
    assert seen.text == scene.captions[0][0] != blank.text


def test_the_captioner_of_photographs_tells_a_portrait_from_a_ship(capsys):
    portrait = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    assert main(["caption", "captioner-flickr8k", str(portrait), str(SAMPLES / "ship.png"), "--json"]) == 0
    person, ship = (set(told["captions"][0]["caption"].split()) for told in json.loads(capsys.readouterr().out))
    assert {"man", "woman", "jacket"} & person
    assert "boat" in ship
    assert not {"boat", "water"} & person


def test_the_translator_reads_every_word():
    """One word of the source changed, and its translation changes: nothing else in the sentence says which it was."""
    model = load_translator("translator-en-de")
    for noun, said in {"horse": "Pferd", "bicycle": "Fahrrad", "motorcycle": "Motorrad"}.items():
        (best,) = model.translate(f"A woman in a red jacket rides a {noun}.", attention=True)
        assert said in best.words
        assert len({"Pferd", "Fahrrad", "Motorrad"} & set(best.words)) == 1
        row = best.attention[-1].mean(0)[best.words.index(said)]  # the mean of the last layer's heads
        assert best.source_words[int(row.argmax())] == noun


def test_a_translator_without_its_run_searches_as_the_recipes_do():
    assert load_translator("translator-en-de").length_penalty == translator_small().length_penalty
