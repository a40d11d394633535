"""Accuracy of a classifier, class by class, with its calibration."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pellucid.config import finite
from pellucid.data.augment import Normalise
from pellucid.evaluation.asking import ask, log_odds
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
        """Whether the likeliest class of each image is its label."""
        return self.probabilities.argmax(1) == self.labels

    @property
    def top1(self) -> float:
        """The share of images whose likeliest class is their label."""
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
        """How many images were answered in a second, data included."""
        return len(self.labels) / self.seconds

    @property
    def classes(self) -> tuple[str, ...]:
        """What the classes are called, with a number where a name is used more than once: ImageNet has two cranes.

        >>> ClassificationReport(torch.eye(3), torch.arange(3), 0.0, 1.0, ("crane", "dog", "crane")).classes
        ('crane (0)', 'dog', 'crane (2)')
        """
        return distinct(self.names or tuple(map(str, range(self.probabilities.shape[1]))))

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


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names with a number where one is used more than once."""
    times = Counter(names)
    return tuple(f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names))


class Answers(Protocol):
    """Where answers to images are kept as they come, so that an evaluation goes on after a kill."""

    def begin(self, images: Any, labels: Tensor, names: Sequence[str]) -> dict[int, list[float]]:
        """What there is already, by the places of the images."""
        ...

    def add(self, places: Tensor, probabilities: Tensor) -> None: ...

    def check_same(self, place: int, probabilities: Tensor) -> None:
        """A sentence if what is kept of an image is another model's answer."""
        ...


@torch.no_grad()
def evaluate_together(
    model: nn.Module,
    images: Any,
    normalise: Normalise,
    processes: Processes,
    *,
    labels: Tensor,
    batch: int,
    names: Sequence[str] = (),
    answers: Answers | None = None,
    **how: Any,
) -> ClassificationReport | MultiLabelReport:
    """As `evaluate_classifier`, each process its share of the batches: the same ones, so the same answers.

    answers: of the first process; those that it has are not asked for again.
    """
    started = time.perf_counter()
    known: dict[int, list[float]] = processes.gather(answers.begin(images, labels, names) if answers else {})[0]
    if known:
        place = next(iter(known))
        (again, *_) = answer(model, images, normalise, torch.tensor([place]), labels, **how)
        if answers is not None and len(again):
            answers.check_same(place, again[0])
    results = [(torch.tensor(each)[None], torch.tensor([place])) for place, each in known.items()]
    is_left = torch.tensor([place not in known for place in range(len(images))])
    parts = [part for part in torch.arange(len(images)).split(batch) if is_left[part].any()]  # the same batches as ever
    for probabilities, places in processes.share_work(
        parts, lambda part: answer(model, images, normalise, part, labels, **how)[:2]
    ):
        new = is_left[places]
        results.append((probabilities[new], places[new]))
        if answers is not None:
            answers.add(places[new], probabilities[new])
    probabilities, places = (torch.cat(each) for each in zip(*results, strict=True))
    order = places.argsort()
    probabilities, places = probabilities[order], places[order]
    check_read(images, len(images) - len(places))
    truth = labels[places]
    several = labels.ndim == 2
    losses = losses_of(log_odds(probabilities, several), truth)
    kind = MultiLabelReport if several else ClassificationReport
    seconds = time.perf_counter() - started
    return kind(probabilities, truth, losses.mean().item(), seconds, tuple(names), subset(images, places))


def check_read(images: Any, count: int) -> None:
    """A sentence if too many images can't be read, whichever process met them."""
    unreadable = getattr(images, "unreadable", None)
    if unreadable is not None and count > unreadable.tolerated * len(images):
        raise ValueError(
            f"{count} of {len(images)} images can't be read, more than {100 * unreadable.tolerated:g}%; mend or remove "
            "them, or tolerate more of them (tolerated)"
        )


def subset(images: Any, places: Tensor) -> Any:
    return images if len(places) == len(images) else images.subset(places)


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    return binary_entropy(logits, labels) if labels.ndim == 2 else F.cross_entropy(logits, labels, reduction="none")


def answer(
    model: nn.Module,
    images: Any,
    normalise: Normalise,
    part: Tensor,
    truth: Tensor,
    *,
    device: torch.device | str = "cpu",
    temperature: float = 1.0,
    views: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of the images at these places that can be read, their places, and each one's loss."""
    pixels, places = images.read_whole(part) if hasattr(images, "read_whole") else (images.read(part), part)
    several = truth.ndim == 2
    with evaluating(model):
        logits = ask(model, pixels.to(device), normalise, several=several, temperature=temperature, views=views)
        losses = losses_of(logits, truth[places].to(device))
        return (logits.sigmoid() if several else logits.softmax(-1)).cpu(), places, losses.cpu()


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
    """The model's answers to all images, or to one process's share (rank, world) of them, normalised and not augmented.

    Images that can't be read are left out, and named in the log. Labels (n classes) say of each class whether it is
    true; then each has a probability of its own. temperature, views: as `ask` takes them.

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
    started = time.perf_counter()
    how = {"device": device, "temperature": temperature, "views": views}
    parts = torch.arange(share[0], len(images), share[1]).split(batch)
    results = [answer(model, images, normalise, part, truth, **how) for part in parts]
    probabilities, places, losses = (torch.cat(each) for each in zip(*results, strict=True))
    seconds = time.perf_counter() - started
    kind = MultiLabelReport if truth.ndim == 2 else ClassificationReport
    seen = subset(images, places) if share == (0, 1) else None
    return kind(probabilities, truth[places], losses.mean().item(), seconds, tuple(names), seen)
