"""Pictures of other sizes, by interpolated positions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result
from pellucid.lab.panels import Bars
from pellucid.lab.shipped import (
    CAPTIONER,
    CLASSIFIER,
    Captioned,
    Labelled,
    captioned,
    named_right,
    photographed,
    said_right,
)


@dataclass(frozen=True)
class Interpolation:
    """Which sizes are tried, as shares of the model's own, on how many pictures."""

    shares: tuple[float, ...] = (0.75, 1.0, 1.5)
    """Of the size that the model was trained with."""
    photographs: int = 150
    """Test images of CIFAR-10 for vit-cifar10, if they are in the cache."""
    scenes: int = 200
    """Drawn scenes for captioner-scenes otherwise."""


@torch.no_grad()
def interpolation(p: Interpolation) -> Result:
    """The same pictures in other sizes, positions interpolated; and the largest, brought back to the own size."""
    photographs = photographed(p.photographs)
    if photographs is not None:
        model, labels = photographs.model, photographs.labels
        name, own, patch = CLASSIFIER, model.config.image[0], model.config.patch[0]
        sizes = [whole(share * own, patch) for share in p.shares]
        pictures = {size: resized(photographs.images, size) for size in sizes}
        right = {size: named_right(Labelled(model, images, labels)) for size, images in pictures.items()}
        back = named_right(Labelled(model, resized(pictures[max(sizes)], own), labels))
    else:
        config = captioned(1).model.config.encoder
        name, own, patch = CAPTIONER, config.image[0], config.patch[0]
        sizes = [whole(share * own, patch) for share in p.shares]
        drawn = {size: captioned(p.scenes, (size, size)) for size in sizes}
        right = {size: said_right(scenes) for size, scenes in drawn.items()}
        large = drawn[max(sizes)]
        back = said_right(Captioned(large.model, resized(large.images, own), large.tokens))
    worst = min(right, key=lambda size: right[size])
    claims = (
        Claim(
            "interpolation.free",
            "With interpolated positions a vision transformer does as well on other sizes as on its own.",
            "false",
            "≤",
            0.05,
            breaks=(
                Case(
                    f"{name} at {worst}×{worst} instead of {own}×{own}: share of answers lost",
                    right[own] - right[worst],
                ),
            ),
            twin=Case(f"the pictures of {max(sizes)}×{max(sizes)} brought back to {own}×{own}", right[own] - back),
            truth="It takes them, and answers less well: a patch shows a larger or smaller part of the picture than "
            "in training.",
        ),
    )
    panels = (
        Bars(
            f"{name}, positions interpolated",
            "share of answers right",
            tuple(f"{size}×{size}" for size in right),
            (("", tuple(right.values())),),
            line=(f"{max(sizes)}×{max(sizes)}, brought back to {own}×{own}", back),
        ),
    )
    numbers = {f"{name} at {size}×{size}": value for size, value in right.items()}
    return Result(numbers | {f"{name} at {own}×{own}, brought back": back, "model": name}, panels, claims)


def resized(images: Float[Tensor, "b c y x"], size: int) -> Float[Tensor, "b c size size"]:
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True, align_corners=False)


def whole(size: float, patch: int) -> int:
    """The nearest size that is made of whole patches."""
    return max(patch, round(size / patch) * patch)


EXPERIMENTS = (
    Experiment(
        name="interpolation",
        title="Other sizes",
        statement="A learned grid of positions can be interpolated to another size; the model then works, less well.",
        formula="positions of the new grid = bicubic interpolation of the learned ones",
        predict="Trained at 32×32. At 48×48 there are more patches, each sharper. Is the accuracy higher or lower?",
        fails="A few epochs of training at the new size bring most of it back.",
        parameters=Interpolation,
        run=interpolation,
        shown=(resized,),
    ),
)
