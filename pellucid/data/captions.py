"""Images with sentences about them, and the three parts that they come in."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from pellucid.data.listings import Images

CLASSES = ("picture",)  # captioned images have no classes; the sets that hold them want one


@dataclass(frozen=True, eq=False)
class CaptionSet:
    """Images, one or more captions of each, and what each image is called.

    >>> from pellucid.data.images import ImageSet
    >>> images = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 0]), CLASSES)
    >>> pair = CaptionSet(images, (("A cat.", "A cat sits."), ("Two dogs.",)), ("1.png", "2.png"))
    >>> len(pair), pair.subset(torch.tensor([1])).captions
    (2, (('Two dogs.',),))
    """

    images: Images
    captions: tuple[tuple[str, ...], ...]
    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        counts = len(self.images), len(self.captions), len(self.ids)
        if len(set(counts)) > 1:
            raise ValueError("{} images, captions of {} and {} ids; expected as many of each".format(*counts))
        bare = [name for name, captions in zip(self.ids, self.captions, strict=True) if not captions]
        if bare:
            raise ValueError(f"{bare[0]!r} has no caption; leave it out, or write one")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[UInt8[Tensor, "c y x"], tuple[str, ...]]:
        """An image and its captions."""
        place = range(len(self))[operator.index(index)]
        return self.images[place][0], self.captions[place]

    def subset(self, indices: Tensor) -> "CaptionSet":
        """The images at these indices with their captions, as a set of their own."""
        chosen = torch.arange(len(self))[indices].tolist()
        captions, ids = (tuple(values[index] for index in chosen) for values in (self.captions, self.ids))
        return CaptionSet(self.images.subset(torch.tensor(chosen, dtype=torch.int64)), captions, ids)


@dataclass(frozen=True)
class CaptionSplits:
    """Captioned images to learn from, to choose by, and to judge by.

    >>> from pellucid.data import CaptionData, load_captions
    >>> from pellucid.data.scenes import SceneConfig
    >>> splits = load_captions(CaptionData("scenes", size=(32, 32), scenes=SceneConfig(train=4, validation=2, test=2)))
    >>> len(splits.train), len(splits.test)
    (4, 2)
    """

    train: CaptionSet
    validation: CaptionSet | None = None
    test: CaptionSet | None = None


def split_captions(data: Any) -> CaptionSplits:
    """Captioned images of one's own as splits: already in splits, by their names, or one set to learn from."""
    if isinstance(data, CaptionSplits):
        return data
    named = {"train": data} if isinstance(data, CaptionSet) else data
    if not isinstance(named, dict) or not {"train"} <= set(named) <= {"train", "validation", "test"}:
        raise ValueError("captioned images are a CaptionSet, or several by split: train, validation and test")
    return CaptionSplits(**named)
