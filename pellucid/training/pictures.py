"""What tasks on pictures share: the order of the images, the precision, and which ones a run is evaluated on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.data.augment import Augment, Normalise, shrink
from pellucid.data.listings import Images
from pellucid.data.loader import Loader, Share
from pellucid.models import ViTConfig
from pellucid.processes import Processes
from pellucid.runs.config import CaptionerRun, ClassifierRun
from pellucid.training.task import Metrics


class OnPictures(ABC):
    """A task whose batches are shares of a set of images. What it makes of them is `share_loss`."""

    unit = "images"

    def __init__(
        self,
        run: ClassifierRun | CaptionerRun,
        images: Images,
        looks: ViTConfig,
        device: torch.device,
        processes: Processes,
    ):
        assert looks.mean is not None, "resolved() sets it"
        assert looks.std is not None, "resolved() sets it"
        self.device, self.processes = device, processes
        # Parts of the pictures in their files are cut out as they are read, parts of images on the device.
        original = isinstance(run, ClassifierRun) and run.data.zoom_into == "original"
        zoom = run.augment.zoom if original else 1.0
        if original and run.augment.zoom_side is not None:
            raise ValueError("zoom_side is for zoom into the image; leave one of zoom_side and zoom_into out")
        self.augment = replace(run.augment, zoom=1.0) if original else run.augment
        self.loader = Loader(
            images, run.batch, run.seed, device, processes.rank, processes.world, run.accumulate, zoom=zoom,
            balanced=isinstance(run, ClassifierRun) and run.balance == "sampling",
        )  # fmt: skip
        self.batch, self.epoch_size = run.batch, len(images)
        self.scaled: tuple[int, Tensor] | None = None
        self.normalise = Normalise(looks.mean, looks.std)
        self.half = run.precision == "bf16"
        self.seed = torch.tensor(run.seed, device=device)  # a tensor, or every seed would be compiled for itself
        torch.manual_seed(run.seed)  # of the weights, which are made next

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        for step, parts in enumerate(self.loader.shares(start, end), start):
            side = self.side(step / end)
            yield [(*share, *self.given(share, pixels, side)) for share, pixels in parts]

    def side(self, done: float) -> int | None:
        """The side that images are scaled down to when so much of the run is done; None for none."""
        if done >= self.augment.small:
            return None
        return self.augment.smaller_side if done < self.augment.smaller else self.augment.small_side

    def given(self, share: Share, pixels: Tensor | None, side: int | None) -> list[Tensor]:
        """The pixels of a share that a step is given: none where it finds them on the device, as they are."""
        if side is None:
            return [] if pixels is None else [pixels]
        return [self.stored_at(side)[share.image] if pixels is None else shrink(pixels, side)]

    def stored_at(self, side: int) -> Tensor:
        """All images on the device, scaled down; those of one side at a time."""
        if self.scaled is None or self.scaled[0] != side:
            assert self.loader.stored is not None
            self.scaled = side, torch.cat([shrink(some, side) for some in self.loader.stored.split(5000)])
        return self.scaled[1]

    def fitting(self, pixels: Tensor) -> Augment:
        """The augmentation of these pixels: of scaled images so much smaller a margin is cropped."""
        full = self.loader.images.shape[1]
        return replace(self.augment, crop=round(self.augment.crop * pixels.shape[-2] / full))

    def loss(
        self,
        model: nn.Module,
        index: Tensor,
        position: Tensor,
        epoch: Tensor,
        step: Tensor,
        pixels: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        share = Share(index, position, epoch, step)
        return self.share_loss(model, share, self.loader.pixels(share) if pixels is None else pixels)

    @abstractmethod
    def share_loss(self, model: nn.Module, share: Share, pixels: Tensor) -> tuple[Tensor, Metrics]:
        """The mean loss of a share of a batch, and figures of it to be logged."""

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext()


def evaluation_split(run: ClassifierRun | CaptionerRun, splits: Any) -> str | None:
    """Which images a run is evaluated on: validation images if there are any, else test images, unless it says so."""
    if run.evaluate_on is None:
        return next((split for split in ("validation", "test") if getattr(splits, split) is not None), None)
    if getattr(splits, run.evaluate_on) is None:
        raise ValueError(f"evaluate_on is {run.evaluate_on!r}, but {run.data.name} has no such images")
    return run.evaluate_on


def evaluated_on(run: ClassifierRun | CaptionerRun, splits: Any) -> Any:
    """Those images; None if there are none."""
    split = evaluation_split(run, splits)
    return None if split is None else getattr(splits, split)
