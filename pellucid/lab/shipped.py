"""The trained models that come with the package, and pictures for them: drawn scenes, photographs from the cache."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.data.named import cache_folder
from pellucid.data.scenes import SceneConfig, SceneSet, make_scenes
from pellucid.data.sources import DataConfig
from pellucid.data.sources import load_images as load_images
from pellucid.data.tokenizer import PAD
from pellucid.models import Captioner, ViT
from pellucid.ready import load_captioner, load_classifier

CAPTIONER, CLASSIFIER = "captioner-scenes", "vit-cifar10"


class Scenes(NamedTuple):
    """A captioner, scenes that it hasn't seen, and their captions: START, words, END, PAD."""

    model: Captioner
    images: Float[Tensor, "n c y x"]
    tokens: Int[Tensor, "n t"]


class Photographs(NamedTuple):
    """A classifier, photographs that it hasn't seen, and what they show."""

    model: ViT
    images: Float[Tensor, "n c y x"]
    labels: Int[Tensor, " n"]


def load_scenes(count: int, size: tuple[int, int] = (48, 48)) -> Scenes:
    """`count` scenes of captioner-scenes' test set whose pairs of colour and shape it knows, drawn in this size."""
    ready = load_captioner(CAPTIONER)
    model = ready.model
    scenes = make_scenes(SceneConfig(train=1, validation=0, test=2 * count), size).test
    assert isinstance(scenes, SceneSet)
    chosen = (~scenes.unseen).nonzero().flatten()
    tokens = ready.tokenizer.batch([scenes.captions[i][0] for i in chosen.tolist()], model.config.max_length)
    return Scenes(model, ready.reader.prepare(scenes.images.read(chosen), model), tokens)


def load_photographs(count: int) -> Photographs | None:
    """The first `count` test images of CIFAR-10, if the set is in the cache: it is not fetched for this."""
    if not (cache_folder() / "cifar10.safetensors").is_file():
        return None
    ready, test = load_classifier(CLASSIFIER), load_images(DataConfig("cifar10")).test
    assert test is not None
    chosen = torch.arange(count)
    return Photographs(ready.transformer, ready.reader.prepare(test.read(chosen), ready.model), test.labels[chosen])


@torch.no_grad()
def caption_accuracy(data: Scenes) -> float:
    """The share of captions with every word right, each given the true words before it."""
    target = data.tokens[:, 1:]
    right = data.model(data.images, data.tokens[:, :-1]).argmax(-1) == target
    return (right | (target == PAD)).all(1).double().mean().item()


@torch.no_grad()
def label_accuracy(data: Photographs) -> float:
    """The share of photographs that are recognised."""
    return (data.model(data.images).argmax(-1) == data.labels).double().mean().item()


def name_models(photographs: Photographs | None) -> str:
    """Which models were looked at, and why not both."""
    return CAPTIONER + (f" and {CLASSIFIER}" if photographs is not None else " (CIFAR-10 is not in the cache)")
