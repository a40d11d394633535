"""What all ready models share: how pictures come in, one or many, and where the module lives."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from pellucid.data.images import Fit
from pellucid.data.reader import Picture, PictureReader
from pellucid.devices import pick_device
from pellucid.explain.trace import Trace
from pellucid.models import ViTConfig
from pellucid.models.pretrained import Pretrained
from pellucid.runs import Run

Pictures = Picture | Sequence[Picture]


class ReadyModel(ABC):
    """A trained module with all that it takes to ask it.

    A new kind of model is one class like this, named in `loading.KINDS`: `kind` is what a run of it says it is,
    `module_class` what its config.json says.

    model: the module. looks: what it is fed and answers. name: to show. run: the run that it came from, if it did.

    >>> import pellucid
    >>> model = pellucid.load("vit-cifar10")
    >>> isinstance(model, ReadyModel), model.kind, len(model.labels)
    (True, 'classifier', 10)
    """

    kind: ClassVar[str]
    module_class: ClassVar[type[Pretrained]]
    fit: ClassVar[Fit]

    def __init__(self, model: nn.Module, looks: ViTConfig, *, name: str = "", run: Run | None = None):
        self.model, self.looks, self.name, self.run = model.eval(), looks, name, run
        self.labels: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def assemble(cls, module: Any, folder: Path, *, name: str = "", run: Run | None = None) -> Self:
        """The module with what lies beside it in its folder."""

    @abstractmethod
    def trace(self, picture: Picture) -> Trace:
        """All that its attention follows from as it looks at one picture."""

    @abstractmethod
    def evaluate(self, data: Any, split: str = "test") -> Any:
        """How good it is on images with their truth."""

    @cached_property
    def reader(self) -> PictureReader:
        """How it reads pictures; one sentence if its config doesn't say."""
        return PictureReader.of(self.looks, self.fit)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: torch.device | str) -> Self:
        """Compute there from now on: "cpu", "cuda", "auto"."""
        self.model.to(pick_device(device) if isinstance(device, str) else device)
        return self

    def read(self, pictures: Pictures) -> UInt8[Tensor, "b c y x"]:
        """Pictures as the module sees them, before normalisation; one sentence if one can't be read.

        Those that keep the ratio of their sides lie on canvases, with one channel more.
        """
        several: Any = pictures if is_many(pictures) else [pictures]
        return self.reader.join([self.reader.read(picture) for picture in several])

    def save(self, folder: str | Path, *, half: bool = False) -> None:
        """Keep it as config.json and model.safetensors, from where `load` and the Hub take it.

        half: in half precision, which takes half the space; it is loaded in float32 again.
        """
        assert isinstance(self.model, Pretrained), "a model of one's own is kept by who wrote it"
        kept = copy.deepcopy(self.model).half() if half else self.model
        kept.save_pretrained(folder)

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters())
        return f"{type(self).__name__}({self.name!r}, {size:,} parameters, on {self.device})"


def is_many(pictures: Pictures) -> bool:
    """A list or a batch (b c y x) is many pictures, a path or a tensor (c y x) is one."""
    return isinstance(pictures, (list, tuple)) or (hasattr(pictures, "ndim") and pictures.ndim == 4)  # pyright: ignore


def choose_split(data: Any, splits: Any, split: str) -> Any:
    """The images of one split; or a sentence that says which there are."""
    images = getattr(splits, split, None)
    if images is None or not len(images):
        there = ", ".join(name for name in ("train", "validation", "test") if getattr(splits, name, None))
        raise ValueError(f"{data} has no {split} images; it has {there}")
    return images
