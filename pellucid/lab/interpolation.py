"""Pictures of other sizes, by interpolated positions."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most
from pellucid.lab.panels import bar_chart
from pellucid.lab.shipped import CAPTIONER, CLASSIFIER, caption_accuracy, label_accuracy, load_photographs, load_scenes


class InterpolationSettings(NamedTuple):
    """Which sizes are tried, as shares of the model's own, on how many pictures."""

    shares: tuple[float, ...] = (0.75, 1.0, 1.5)  # Of the size that the model was trained with.
    photographs: int = 150  # Test images of CIFAR-10 for vit-cifar10, if they are in the cache.
    scenes: int = 200  # Drawn scenes for captioner-scenes otherwise.


class InterpolationMeasurement(NamedTuple):
    model: str
    own: int  # the size that it was trained with
    accuracy: dict[int, float]  # share of answers right, by size
    brought_back: float  # of the largest pictures, made small again


def resize(images: Float[Tensor, "b c y x"], size: int) -> Float[Tensor, "b c size size"]:
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True, align_corners=False)


def whole_patches(size: float, patch: int) -> int:
    """The nearest size that is made of whole patches."""
    return max(patch, round(size / patch) * patch)


@torch.no_grad()
def measure_interpolation(p: InterpolationSettings) -> InterpolationMeasurement:
    """The same pictures in other sizes, positions interpolated; and the largest, brought back to the own size."""
    photographs = load_photographs(p.photographs)
    config = load_scenes(1).model.config.encoder if photographs is None else photographs.model.config
    own, patch = config.image[0], config.patch[0]
    sizes = [whole_patches(share * own, patch) for share in p.shares]
    if photographs is None:
        scenes = {size: load_scenes(p.scenes, (size, size)) for size in sizes}
        accuracy = {size: caption_accuracy(data) for size, data in scenes.items()}
        large = scenes[max(sizes)]
        back = caption_accuracy(large._replace(images=resize(large.images, own)))
        return InterpolationMeasurement(CAPTIONER, own, accuracy, back)
    pictures = {size: resize(photographs.images, size) for size in sizes}
    accuracy = {size: label_accuracy(photographs._replace(images=images)) for size, images in pictures.items()}
    back = label_accuracy(photographs._replace(images=resize(pictures[max(sizes)], own)))
    return InterpolationMeasurement(CLASSIFIER, own, accuracy, back)


def claim_interpolation(p: InterpolationSettings, m: InterpolationMeasurement) -> Claims:
    worst, largest = min(m.accuracy, key=lambda size: m.accuracy[size]), max(m.accuracy)
    own, least, square = m.accuracy[m.own], m.accuracy[worst], f"{m.own}×{m.own}"
    yield Thesis(
        "interpolation.free",
        "With interpolated positions a vision transformer does as well on other sizes as on its own.",
    ).false(
        at_most(0.05, f"{m.model} at {worst}×{worst} instead of {square}: share of answers lost", own - least),
        twin=(f"the pictures of {largest}×{largest} brought back to {square}", own - m.brought_back),
        truth="It takes them, and answers less well: a patch shows a larger or smaller part of the picture than in "
        "training.",
    )


def draw_interpolation(p: InterpolationSettings, m: InterpolationMeasurement) -> Drawing:
    bars, largest, own = {f"{n}×{n}": share for n, share in m.accuracy.items()}, max(m.accuracy), f"{m.own}×{m.own}"
    numbers = {f"{m.model} at {size}": share for size, share in bars.items()}
    line = (f"{largest}×{largest}, brought back to {own}", m.brought_back)
    chart = bar_chart(f"{m.model}, positions interpolated", "share of answers right", {"": bars}, line=line)
    return numbers | {f"{m.model} at {own}, brought back": m.brought_back, "model": m.model}, [chart]


INTERPOLATION = Experiment(
    name="interpolation",
    title="Other sizes",
    statement="A learned grid of positions can be interpolated to another size; the model then works, less well.",
    formula="positions of the new grid = bicubic interpolation of the learned ones",
    predict="Trained at 32×32. At 48×48 there are more patches, each sharper. Is the accuracy higher or lower?",
    fails="A few epochs of training at the new size bring most of it back.",
    functions=(measure_interpolation, claim_interpolation, draw_interpolation),
    helpers=(resize,),
)
