"""Accuracy of a classifier, class by class, with its calibration."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pellucid.config import finite
from pellucid.data.augment import Normalise
from pellucid.evaluation.asking import ask
from pellucid.evaluation.multilabel import MultiLabelReport, binary_entropy
from pellucid.layers.modes import evaluating
from pellucid.processes import Processes


@dataclass(frozen=True)
class ClassificationReport:
    """What a model said of labelled images. Shares, not percent.

    probabilities (n classes), labels (n); seconds: of the forward passes, data included; names: of the classes.

    >>> import torch
    >>> answers = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> report = ClassificationReport(answers, torch.tensor([0, 1, 1]), loss=0.5, seconds=1.0)
    >>> round(report.top1, 3), report.confusion.tolist()
    (0.667, [[1, 0], [1, 1]])
    """

    probabilities: Float[Tensor, "n classes"]
    labels: Int[Tensor, " n"]
    loss: float
    seconds: float
    names: tuple[str, ...] = ()
    images: Any = None  # what it was asked about, for who wants to see them

    @property
    def right(self) -> Bool[Tensor, " n"]:
        return self.probabilities.argmax(1) == self.labels

    @property
    def top1(self) -> float:
        return self.right.double().mean().item()

    @property
    def top5(self) -> float:
        """Whether the label is among the five likeliest; with five classes or fewer it always is."""
        best = self.probabilities.topk(min(5, self.probabilities.shape[1]), dim=1).indices
        return (best == self.labels[:, None]).any(1).double().mean().item()

    @property
    def per_class(self) -> list[float]:
        """The share of each class's images that were recognised; NaN for a class with no image."""
        table = self.confusion.double()
        return (table.diag() / table.sum(1)).tolist()

    @property
    def confusion(self) -> Int[Tensor, "classes classes"]:
        """How many images of each class (row) were called what (column)."""
        classes = self.probabilities.shape[1]
        cells = self.labels * classes + self.probabilities.argmax(1)
        return torch.bincount(cells, minlength=classes * classes).view(classes, classes)

    @property
    def images_per_second(self) -> float:
        return len(self.labels) / self.seconds

    @property
    def classes(self) -> tuple[str, ...]:
        """What the classes are called, with a number where a name is used more than once: ImageNet has two cranes.

        >>> ClassificationReport(torch.eye(3), torch.arange(3), 0.0, 1.0, ("crane", "dog", "crane")).classes
        ('crane (0)', 'dog', 'crane (2)')
        """
        names = self.names or tuple(map(str, range(self.probabilities.shape[1])))
        times = Counter(names)
        return tuple(f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names))

    @property
    def figures(self) -> dict[str, Any]:
        """All of it in numbers: shares, and None where there is no number."""
        figures: dict[str, Any] = {"top1": self.top1, "top5": self.top5, "ece": self.ece()}
        figures["per_class"] = dict(zip(self.classes, self.per_class, strict=True))
        return finite(figures | {"images_per_second": self.images_per_second, "images": len(self.labels)})

    def mistakes(self, count: int = 24) -> list[int]:
        """The places of images that it took for something else, those that it was surest of first."""
        sure = self.probabilities.max(1).values.masked_fill(self.right, -1.0)
        return sure.argsort(descending=True, stable=True)[: min(count, int((~self.right).sum()))].tolist()

    def name_of(self, place: int) -> str:
        """What the image at a place is called."""
        return f"number {place}" if self.images is None else self.images.name_of(place)

    def ece(self, bins: int = 15) -> float:
        """Expected calibration error (Naeini et al. 2015): the mean gap between confidence and accuracy.

        Images are put into equal intervals of confidence; each interval counts by its number of images.
        """
        confidence = self.probabilities.max(1).values.double()
        place = (confidence * bins).ceil().long().clamp(1, bins) - 1
        gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, confidence - self.right.double())
        return (gap.abs().sum() / len(confidence)).item()


def evaluate_together(
    model: nn.Module, images: Any, normalise: Normalise, processes: Processes, *, labels: Tensor, batch: int, **how: Any
) -> ClassificationReport | MultiLabelReport:
    """As `evaluate_classifier`, each process its share of the batches: the same ones, so the same answers."""

    def evaluate(part: Tensor) -> ClassificationReport | MultiLabelReport:
        report = evaluate_classifier(model, images.subset(part), normalise, labels=labels[part], batch=batch, **how)
        return replace(report, images=None)

    started = time.perf_counter()
    reports = list(processes.share_work(torch.arange(len(images)).split(batch), evaluate))
    whole = {name: torch.cat([getattr(each, name) for each in reports]) for name in ("probabilities", "labels")}
    loss = sum(each.loss * len(each.labels) for each in reports) / max(1, len(images))
    return replace(reports[0], **whole, loss=loss, seconds=time.perf_counter() - started, images=images)


@torch.no_grad()
def evaluate_classifier(
    model: nn.Module,
    images: Any,
    normalise: Normalise,
    *,
    device: torch.device | str = "cpu",
    batch: int = 1000,
    share: tuple[int, int] = (0, 1),
    labels: Tensor | None = None,
    names: Sequence[str] = (),
    temperature: float = 1.0,
    views: int = 1,
) -> ClassificationReport | MultiLabelReport:
    """The model's answers to all images, or to one process's share (rank, world) of them; normalisation alone.

    Labels (n classes) say of each class whether it is true; then each has a probability of its own. temperature, views:
    as `ask` takes them.

    >>> import torch
    >>> from torch import nn
    >>> from pellucid.data import ImageSet
    >>> from pellucid.data.augment import Normalise
    >>> images = ImageSet(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), ("dark", "light"))
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    >>> evaluate_classifier(model, images, Normalise((0.5,) * 3, (0.5,) * 3)).top1
    0.5
    """
    truth: Tensor = images.labels if labels is None else labels
    indices = torch.arange(share[0], len(images), share[1])
    started = time.perf_counter()
    probabilities, losses = [], []
    several = truth.ndim == 2
    how = {"several": several, "temperature": temperature, "views": views}
    with evaluating(model):
        for part in indices.split(batch):
            logits = ask(model, images.read(part).to(device), normalise, **how)
            true = truth[part].to(device)
            losses.append(
                binary_entropy(logits, true).sum() if several else F.cross_entropy(logits, true, reduction="sum")
            )
            probabilities.append(logits.sigmoid() if several else logits.softmax(-1))
        answers = torch.cat(probabilities).cpu()
    seconds = time.perf_counter() - started
    loss = torch.stack(losses).sum().item() / max(1, len(indices))
    kind = MultiLabelReport if several else ClassificationReport
    return kind(answers, truth[indices], loss, seconds, tuple(names), images if share == (0, 1) else None)
