"""What an augmentation makes a model robust to: what it showed, and nothing else."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.field import FieldSettings, Layers
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, seeded
from pellucid.lab.learning import PictureBatch, descend, learn_digits, load_digits, measure_accuracy
from pellucid.lab.panels import line_chart
from pellucid.lab.shipped import CLASSIFIER, label_accuracy, load_photographs


class RotationSettings(NamedTuple):
    """Digits, seen in training flipped and cropped, or turned."""

    degrees: tuple[float, ...] = (0.0, 15.0, 30.0, 45.0)  # By which unseen pictures are turned.
    steps: int = 150  # Of training.
    photographs: int = 200  # Test images of CIFAR-10 for vit-cifar10, if they are in the cache.
    seed: int = 0  # Of weights and augmentation.


class RotationMeasurement(NamedTuple):
    accuracy: dict[str, list[float]]  # by model, for each angle
    flipped: dict[str, float]  # by model


def turn(images: PictureBatch, degrees: Float[Tensor, " b"]) -> PictureBatch:
    """Each picture about its middle by its own angle; what comes in from outside is like its border."""
    a = degrees * torch.pi / 180
    rows = torch.stack([a.cos(), -a.sin(), 0 * a, a.sin(), a.cos(), 0 * a], 1).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def flip_and_crop(images: PictureBatch) -> PictureBatch:
    """Half of them mirrored, and all moved by a pixel at most."""
    flipped = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(-1), images)
    dy, dx = torch.randint(3, (2,)).tolist()
    return F.pad(flipped, (1, 1, 1, 1), mode="replicate")[..., dy : dy + 8, dx : dx + 8]


def turn_at_random(images: PictureBatch) -> PictureBatch:
    return turn(images, 120 * torch.rand(len(images)) - 60)


def train_on(augment: Callable[[PictureBatch], PictureBatch], p: RotationSettings) -> Layers:
    """A small CNN that learns digits as the augmentation shows them."""
    with seeded(p.seed):
        model = Layers(FieldSettings(layers=3), convolutions=True)
        learn_digits(model, steps=p.steps, rate=5e-3, batch=64, augment=augment)
    return model.eval()


def measure_rotation(p: RotationSettings) -> RotationMeasurement:
    """Two models of digits that saw other augmentations, and vit-cifar10, on pictures that are turned."""
    _, (test, labels) = load_digits()
    accuracy, flipped = {}, {}
    for name, augment in (("flips and crops", flip_and_crop), ("turned by up to 60°", turn_at_random)):
        right = partial(measure_accuracy, train_on(augment, p), labels=labels)
        accuracy[name] = [right(turn(test, torch.full((len(test),), each))) for each in p.degrees]
        flipped[name] = right(test.flip(-1))
    if (seen := load_photographs(p.photographs)) is not None:
        turned = [turn(seen.images, torch.full((len(seen.images),), each)) for each in p.degrees]
        accuracy[CLASSIFIER] = [label_accuracy(seen._replace(images=images)) for images in turned]
        flipped[CLASSIFIER] = label_accuracy(seen._replace(images=seen.images.flip(-1)))
    return RotationMeasurement(accuracy, flipped)


def claim_rotation(p: RotationSettings, m: RotationMeasurement) -> Claims:
    most = f"share of answers lost when pictures are turned by {p.degrees[-1]:g}°"
    lost = {name: values[0] - values[-1] for name, values in m.accuracy.items()}
    said, truth = "Random crops and flips make a model robust to rotation", "It is robust to what it was shown, "
    yield Thesis("rotation.crops", f"{said}.").false(
        at_most(0.2, f"digits, {most}", lost["flips and crops"]),
        twin=("of a model that saw turned digits", lost["turned by up to 60°"]),
        truth=truth + "and to nothing else.",
        heard=True,
    )
    if CLASSIFIER in lost:
        upright = m.accuracy[CLASSIFIER][0]
        yield Thesis(f"rotation.{CLASSIFIER}", f"{said}: {CLASSIFIER}, which saw both.").false(
            at_most(0.2, most, lost[CLASSIFIER]),
            twin=("when they are flipped", upright - m.flipped[CLASSIFIER]),
            truth=truth + "and it saw no picture turned.",
        )


def draw_rotation(p: RotationSettings, m: RotationMeasurement) -> Drawing:
    numbers = {f"{name}: right at {angle:g}°": share for name, values in m.accuracy.items()
               for angle, share in zip(p.degrees, values, strict=True)}  # fmt: skip
    numbers |= {f"{name}: right when flipped": share for name, share in m.flipped.items()}
    chart = line_chart("trained with", ("degrees of the turn", "share of answers right"), p.degrees, m.accuracy)
    return numbers, [chart]


ROTATION = Experiment(
    name="rotation",
    title="Turned pictures",
    statement="Flips and crops in training say nothing about turned pictures; turned ones in training do.",
    formula="share right at angle α − share right at 0°",
    predict="A model has seen its pictures mirrored and moved. How many answers does it lose when they are turned "
    "by 45°?",
    fails="A few degrees cost little, whatever was seen: neighbouring pixels are alike.",
    functions=(measure_rotation, claim_rotation, draw_rotation),
    helpers=(turn, flip_and_crop, turn_at_random, train_on, learn_digits, descend),
)
