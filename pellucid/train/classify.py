"""Classification as a task: images, labels, cross-entropy, accuracy."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.data.augment import Normalise, augment
from pellucid.data.loader import Loader, Share
from pellucid.data.sources import load, statistics
from pellucid.evaluate.accuracy import classification
from pellucid.models import ViT
from pellucid.train.config import Run
from pellucid.train.distributed import Processes
from pellucid.train.task import Metrics


def resolved(run: Run) -> tuple[Run, Any]:
    """The run with what only its data knows (classes, channels, image size, normalisation), and the data."""
    splits = load(run.data)
    train = splits.train
    channels, height, width = train.shape
    mean, std = (run.model.mean, run.model.std) if run.model.mean and run.model.std else statistics(train)
    model = replace(
        run.model,
        classes=len(train.classes),
        labels=tuple(train.classes),
        channels=channels,
        image=(height, width),
        mean=tuple(mean),
        std=tuple(std),
    )
    return replace(run, model=model), splits


class Classification:
    """Train a ViT on labelled images."""

    unit = "images"
    score = "top1"

    def __init__(self, run: Run, splits: Any, device: torch.device, processes: Processes):
        config = run.model
        assert config.mean is not None, "resolved() sets it"
        assert config.std is not None, "resolved() sets it"
        self.run, self.device, self.processes = run, device, processes
        self.loader = Loader(splits.train, run.batch, run.seed, device, processes.rank, processes.world, run.accumulate)
        self.batch, self.epoch_size = run.batch, len(splits.train)
        self.normalise = Normalise(config.mean, config.std)
        self.held_out = _held_out(run, splits, processes)
        self.mixes = run.augment.mixup > 0 or run.augment.cutmix > 0
        if self.mixes and (run.batch // (processes.world * run.accumulate)) % 2:
            raise ValueError(
                f"mixing needs pairs: batch {run.batch} over {processes.world} processes and {run.accumulate} parts "
                "leaves an odd number of images in each; choose an even one"
            )
        self.seed = torch.tensor(run.seed, device=device)  # a tensor, or every seed would be compiled for itself
        torch.manual_seed(run.seed)
        self.model = ViT(config).to(device)

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        for parts in self.loader.shares(start, end):
            yield [(*share, *([] if pixels is None else [pixels])) for share, pixels in parts]

    def loss(
        self,
        model: nn.Module,
        index: Tensor,
        position: Tensor,
        epoch: Tensor,
        step: Tensor,
        pixels: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        run, share = self.run, Share(index, position, epoch, step)
        with torch.no_grad():
            pixels = self.loader.pixels(share) if pixels is None else pixels
            labels = self.loader.labels[index]
            images, labels, others, weight = augment(
                pixels, labels, run.augment, self.normalise,
                seed=self.seed, step=step, epoch=epoch, index=index, positions=position,
            )  # fmt: skip
        with self.precision():
            logits = model(images).float()
        loss = F.cross_entropy(logits, labels, reduction="none", label_smoothing=run.label_smoothing)
        if self.mixes:
            other = F.cross_entropy(logits, others, reduction="none", label_smoothing=run.label_smoothing)
            loss = weight * loss + (1 - weight) * other
        right = (logits.detach().argmax(1) == labels).float().mean()
        return loss.mean(), {"accuracy": right}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on the validation (or test) images, each process its share of them."""
        if self.held_out is None:
            return {}
        rank, world = self.processes.rank, self.processes.world
        batch = equally_often(len(self.held_out), world)
        with self.precision():
            report = classification(
                model, self.held_out, self.normalise, device=self.device, batch=batch, share=(rank, world)
            )
        figures = torch.tensor([report.top1, report.loss], device=self.device, dtype=torch.float64)
        figures *= len(report.labels) * world / len(self.held_out)
        top1, loss = self.processes.mean(figures).tolist()
        return {"top1": top1, "loss": loss}

    def precision(self):
        if self.run.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def equally_often(images: int, processes: int, most: int = 1000) -> int:
    """A batch with which every process calls the model equally often: a model that is spread over them waits for all.

    >>> equally_often(10_000, processes=4), equally_often(2001, processes=2)      # 1001 images are not in two batches
    (1000, 999)
    """
    largest, smallest = -(-images // processes), images // processes
    return next(batch for batch in range(most, 0, -1) if -(-largest // batch) == -(-smallest // batch))


def _held_out(run: Run, splits: Any, processes: Processes) -> Any:
    """The images that a run is evaluated on: validation if there is one, else test, unless the run says which."""
    if run.evaluate_on is None:
        found = splits.validation if splits.validation is not None else splits.test
    else:
        found = getattr(splits, run.evaluate_on)
        if found is None:
            raise ValueError(f"evaluate_on is {run.evaluate_on!r}, but {run.data.name} has no such images")
    if found is not None and len(found) < processes.world:
        raise ValueError(f"{len(found)} images to evaluate on are too few for {processes.world} processes; use fewer")
    return found
