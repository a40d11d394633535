"""Classification as a task: images, labels, cross-entropy, accuracy."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.data.augment import Augmented, augment
from pellucid.data.division import HeldOut
from pellucid.data.images import Size
from pellucid.data.listings import Images
from pellucid.data.loader import Share
from pellucid.data.sources import Splits, load_images, split_own, statistics
from pellucid.evaluation.accuracy import evaluate_classifier
from pellucid.evaluation.multilabel import MultiLabelReport, binary_entropy
from pellucid.layers.modes import evaluating, reading
from pellucid.models import ViT
from pellucid.processes import Processes
from pellucid.ready import ReadyClassifier
from pellucid.runs.config import ClassifierRun
from pellucid.training.distil import Teacher, answers_differ, likeness_differs
from pellucid.training.pairs import find_partners, partners_differ
from pellucid.training.pictures import OnPictures, evaluated_on
from pellucid.training.task import Metrics

OTHER = 1 << 31  # added to the seed of a picture's second view
ASKED = 256  # pictures among whose views those that weren't trained on look for each other


def resolve(
    run: ClassifierRun, data: Any = None, kept: HeldOut | None = None, check: Callable[[Size], None] | None = None
) -> tuple[ClassifierRun, Splits]:
    """The run with what only its data knows (classes, channels, image size, normalisation), and the data.

    data: a set of one's own, or several by split, instead of what the run names. kept: what it held out before.
    check: is told the images' size before they are decoded.
    """
    config = run.data_as_seen
    splits = load_images(config, kept, check) if data is None else split_own(data, config)
    train = splits.train
    if len(train.classes) < 2 and train.labels.ndim == 1:
        raise ValueError(
            f"there is one class only, {', '.join(train.classes)!r}, and nothing to tell it from; give the folder that "
            "holds a folder for each class, or a table with their names"
        )
    if config.keep_aspect and train.area is None:
        raise ValueError("keep_aspect is for images that are read now; these were brought to one shape before")
    channels, *size = train.shape
    if train.area is not None:  # and not of the canvas
        channels, size = channels - 1, train.area.size
    mean, std = (run.model.mean, run.model.std) if run.model.mean and run.model.std else statistics(train)
    model = replace(
        run.model,
        classes=len(train.classes),
        labels=tuple(train.classes),
        channels=channels,
        image=(size[0], size[1]),
        keep_aspect=train.area is not None,
        mean=tuple(mean),
        std=tuple(std),
        multi_label=train.labels.ndim == 2,
    )
    if model.multi_label and run.balance != "none":
        raise ValueError("balance is for images of one class each; leave it at 'none' where several may be true")
    return replace(run, model=model), splits


class Classification(OnPictures):
    """Train a ViT, or a module of one's own that makes logits of images, on labelled images."""

    def __init__(
        self,
        run: ClassifierRun,
        splits: Splits,
        device: torch.device,
        processes: Processes,
        model: nn.Module | None = None,
        teacher: Teacher | None = None,
    ):
        self.reads = run.pairs.weight > 0 or (teacher is not None and run.distil.features > 0)
        if self.reads and run.compile:
            raise ValueError(
                "what the last layer reads isn't compiled; give --no-compile, or neither features nor pairs"
            )
        self.teacher = teacher
        super().__init__(run, splits.train, run.model, device, processes)
        self.run = run
        self.score = "found" if run.pairs.weight == 1 else "map" if run.model.multi_label else "top1"
        self.held_out = evaluated_on(run, splits)
        if self.held_out is not None and len(self.held_out) < processes.world:
            raise ValueError(
                f"{len(self.held_out)} images to evaluate on are too few for {processes.world} processes; use fewer"
            )
        self.mixes = run.augment.mixup > 0 or run.augment.cutmix > 0
        if self.mixes and (run.batch // (processes.world * run.accumulate)) % 2:
            raise ValueError(
                f"mixing needs pairs: batch {run.batch} over {processes.world} processes and {run.accumulate} parts "
                "leaves an odd number of images in each; choose an even one"
            )
        self.weights = weigh_classes(splits.train).to(device) if run.balance == "weights" else None
        self.model = (ViT(run.model) if model is None else model).to(device)

    def ready(self, name: str = "") -> ReadyClassifier:
        return ReadyClassifier(self.model, self.run.model, name=name, run=self.run)

    def share_loss(self, model: nn.Module, share: Share, pixels: Tensor) -> tuple[Tensor, Metrics]:
        pairs, b = self.run.pairs, len(pixels)
        with torch.no_grad():
            images, labels, others, weight = self.view(share, pixels)
            if pairs.weight:
                images = torch.cat([images, self.view(share, pixels, OTHER).images])
        with self.precision(), self.reading() as read:
            logits = model(images)[:b].float()
        loss = self.entropy(logits, labels)
        if self.mixes:
            loss = weight * loss + (1 - weight) * self.entropy(logits, others)
        if self.teacher is not None:
            loss = self.learn_from(self.teacher, images[:b], loss, logits, [each[:b] for each in read])
        if pairs.weight:
            loss = (1 - pairs.weight) * loss + pairs.weight * partners_differ(read[0].float(), pairs.temperature)
        if pairs.weight == 1:
            return loss.mean(), {"found": find_partners(read[0].detach()).float().mean()}
        said = logits.detach() > 0 if labels.ndim == 2 else logits.detach().argmax(1)
        return loss.mean(), {"accuracy": (said == labels).float().mean()}

    def view(self, share: Share, pixels: Tensor, other: int = 0) -> Augmented:
        """The pictures of a share as they are augmented; other: for another view of them."""
        return augment(
            pixels, self.loader.labels[share.image], self.fitting(pixels), self.normalise,
            seed=self.seed + other, step=share.step, epoch=share.epoch, index=share.image, positions=share.position,
        )  # fmt: skip

    def reading(self) -> AbstractContextManager[list[Tensor]]:
        return reading(self.model) if self.reads else nullcontext([])

    def learn_from(
        self, teacher: Teacher, images: Tensor, loss: Tensor, logits: Tensor, read: list[Tensor]
    ) -> Float[Tensor, " b"]:
        """The loss with the teacher's share in it."""
        distil = self.run.distil
        with self.precision():
            its, its_features = teacher.teach(images)
        if distil.weight:
            if its.shape != logits.shape:
                raise ValueError(f"the teacher says {its.shape[1]} classes, and there are {logits.shape[1]}")
            several = self.run.model.multi_label
            loss = (1 - distil.weight) * loss + distil.weight * answers_differ(logits, its, distil, several=several)
        if distil.features:
            loss = loss + distil.features * likeness_differs(read[0].float(), its_features)
        return loss

    def entropy(self, logits: Float[Tensor, "b classes"], labels: Tensor) -> Float[Tensor, " b"]:
        """Of each image, times the weight of its class. Weights are of the whole set, so that processes agree."""
        smoothing = self.run.label_smoothing
        if labels.ndim == 2:
            return binary_entropy(logits, labels, smoothing)
        loss = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return loss if self.weights is None else loss * self.weights[labels]

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the validation (or test) images, each process its share of them."""
        if self.held_out is None:
            return {}
        if self.run.pairs.weight == 1:
            return {"found": self.find(model, self.held_out)}
        rank, world = self.processes.rank, self.processes.world
        batch = choose_batch(len(self.held_out), world)
        with self.precision():
            report = evaluate_classifier(
                model, self.held_out, self.normalise, device=self.device, batch=batch, share=(rank, world)
            )
        if isinstance(report, MultiLabelReport):
            return self.join(report)
        count = len(report.labels)
        shares = [count * report.top1, count * report.loss, count] if count else [0, 0, 0]
        figures = self.processes.mean(torch.tensor(shares, device=self.device, dtype=torch.float64))
        top1, loss = (figures[:2] / figures[2]).tolist()
        return {"top1": top1, "loss": loss}

    @torch.no_grad()
    def find(self, model: nn.Module, images: Images) -> float:
        """How often two views of a picture that isn't trained on find each other among those of 256 pictures.

        Always the same views; every process looks at all of them, because a model that is spread waits for all.
        """
        right, start = [], torch.zeros((), dtype=torch.int64, device=self.device)
        for part in torch.arange(len(images)).split(ASKED):
            index, pixels = part.to(self.device), images.read(part).to(self.device)
            views = [
                augment(
                    pixels, index, self.augment, self.normalise,
                    seed=other, step=start, epoch=torch.zeros_like(index), index=index, positions=index,
                ).images
                for other in (0, OTHER)
            ]  # fmt: skip
            with self.precision(), evaluating(model), reading(self.model) as read:
                model(torch.cat(views))
            right.append(find_partners(read[0].float()))
        return torch.cat(right).double().mean().item()

    def join(self, mine: MultiLabelReport) -> dict[str, float]:
        """Average precision is of all images together, wherever they were looked at."""
        shares = self.processes.gather((mine.probabilities, mine.labels, mine.loss * len(mine.labels)))
        probabilities, labels, losses = zip(*shares, strict=True)
        whole = MultiLabelReport(torch.cat(probabilities), torch.cat(labels), 0.0, mine.seconds)
        return {"map": whole.map, "loss": sum(losses) / len(whole.labels)}


def weigh_classes(images: Images) -> Float[Tensor, " classes"]:
    """Weights by which every class counts the same, and an image 1 in the mean.

    >>> from pellucid.data import ImageSet
    >>> weigh_classes(ImageSet(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 1, 1]), ("a", "b")))
    tensor([2.0000, 0.6667])
    """
    counts = torch.bincount(images.labels, minlength=len(images.classes))
    return len(images) / ((counts > 0).sum() * counts.clamp(min=1)).float()


def choose_batch(images: int, processes: int, most: int = 1000) -> int:
    """A batch with which every process calls the model equally often: a model that is spread over them waits for all.

    >>> choose_batch(10_000, processes=4), choose_batch(2001, processes=2)      # 1001 images are not in two batches
    (1000, 999)
    """
    largest, smallest = -(-images // processes), images // processes
    return next(batch for batch in range(most, 0, -1) if -(-largest // batch) == -(-smallest // batch))
