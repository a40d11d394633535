"""Answers where several classes may be true of one image: each class is a question of its own."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.config import finite

HALF = 0.5  # from which probability on a class is said to be true


@dataclass(frozen=True)
class MultiLabelReport:
    """What a model said of images of which several classes may be true. Shares, not percent.

    probabilities, labels (n classes); seconds: of the forward passes, data included; names: of the classes.
    """

    probabilities: Float[Tensor, "n classes"]
    labels: Bool[Tensor, "n classes"]
    loss: float
    seconds: float
    names: tuple[str, ...] = ()
    images: Any = None  # what it was asked about

    @property
    def per_class(self) -> list[float]:
        """The average precision of each class; NaN for a class that is true of no image."""
        return [average_precision(said, true) for said, true in zip(self.probabilities.T, self.labels.T, strict=True)]

    @property
    def map(self) -> float:
        """The mean of the classes' average precisions."""
        known = [each for each in self.per_class if not math.isnan(each)]
        return sum(known) / len(known) if known else math.nan

    @property
    def f1(self) -> float:
        """Of all answers together, a class being said from one half on: 2·right / (said + true)."""
        said = self.probabilities >= HALF
        return 2 * (said & self.labels).sum().item() / max(1, (said.sum() + self.labels.sum()).item())

    @property
    def exact(self) -> float:
        """The share of images all of whose classes are right."""
        return ((self.probabilities >= HALF) == self.labels).all(1).double().mean().item()

    @property
    def images_per_second(self) -> float:
        return len(self.labels) / self.seconds

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names or tuple(map(str, range(self.labels.shape[1])))

    @property
    def figures(self) -> dict[str, Any]:
        """All of it in numbers: shares, and None where there is no number."""
        figures: dict[str, Any] = {"map": self.map, "f1": self.f1, "exact": self.exact}
        figures["per_class"] = dict(zip(self.classes, self.per_class, strict=True))
        return finite(figures | {"images_per_second": self.images_per_second, "images": len(self.labels)})


def average_precision(said: Float[Tensor, " n"], true: Bool[Tensor, " n"]) -> float:
    """Σ (recall − recall before) · precision, from the most probable image on; images as probable are one step.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, True])), 1 / 2 + 1 / 2 * 2 / 3
    (0.8333333333333333, 0.8333333333333333)
    """
    if not true.any():
        return math.nan
    order = said.double().argsort(descending=True)
    right = true[order].double().cumsum(0)
    count = torch.arange(1, len(said) + 1, dtype=torch.float64)
    last = torch.ones(len(said), dtype=torch.bool)
    last[:-1] = said[order].diff() != 0  # the end of a step
    recall, precision = (right / true.sum())[last], (right / count)[last]
    before = F.pad(recall[:-1], (1, 0))
    return ((recall - before) * precision).sum().item()


def binary_entropy(
    logits: Float[Tensor, "b classes"], labels: Bool[Tensor, "b classes"], smoothing: float = 0.0
) -> Float[Tensor, " b"]:
    """The mean over the classes of each question's cross-entropy; smoothing: share of the target that is one half."""
    target = labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
