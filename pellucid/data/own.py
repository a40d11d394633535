"""A dataset of one's own: whatever gives an image and its label for a number, as PyTorch's datasets do."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pellucid.data import listings
from pellucid.data.aspect import Area, Goal, put, shape_in_batch
from pellucid.data.images import ImageHeader, ImageSet, Size, View, check_size, to_picture, to_tensor
from pellucid.data.lazy import LazyImageSet
from pellucid.data.sentences import one_line, reason
from pellucid.data.shards import IMAGE_COLUMNS, LABEL_COLUMNS

MOST_LABELS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class DatasetItem:
    """An image of a dataset that somebody else wrote."""

    dataset: Any
    index: int

    @property
    def name(self) -> str:
        return f"item {self.index} of the dataset"

    def read(self) -> tuple[Image.Image, int | str]:
        """The picture, grey or RGB, and its label; one sentence if they are none."""
        try:
            image, label = _pair(self.dataset[self.index])
            return to_picture(image, "its image"), _label(label)
        except Exception as error:  # another's code raises anything
            raise ValueError(one_line(f"{self.name} can't be read: {reason(error)}")) from error

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return _pixels(self.read()[0], size, channels, view)

    def probe(self) -> ImageHeader:
        return _header(self.read()[0])

    def n_bytes(self) -> int:
        picture = self.read()[0]
        return picture.height * picture.width * len(picture.getbands())


def as_image_set(
    dataset: Any, classes: Sequence[str] | None = None, size: Size | None = None, patch: Size | None = None
) -> listings.Images:
    """The image set of any object with `__getitem__` and `__len__` that gives (image, label), or {"image", "label"}.

    Images are Pillow's, arrays (y x) or (y x c), or tensors (c y x): bytes, or floats in 0…1. Labels are numbers or
    words. `classes`: what the labels are called; unless given, what the dataset says, else the labels themselves.
    `size`: as in `DataConfig`; with a `patch` images keep the ratio of their sides, which are multiples of it. Every
    item is read at once; what makes more than 2 GiB, again when it is asked for.

    >>> black, white = torch.zeros(3, 8, 8), torch.ones(3, 8, 8)
    >>> pair = as_image_set([(black, "night"), (white, "day")])
    >>> pair.classes, pair.labels, pair.shape, int(pair[1][0].max())
    (('day', 'night'), tensor([1, 0]), (3, 8, 8), 255)
    """
    check_size(size)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"the dataset is {type(dataset).__name__}; expected an object with __getitem__ and __len__")
    items = [DatasetItem(dataset, i) for i in range(len(dataset))]
    if not items:
        raise ValueError("the dataset is empty; expected one image or more")
    labels, headers, pictures, held = [], set(), [], 0
    for item in items:
        picture, label = item.read()
        labels.append(label)
        headers.add(_header(picture))
        held += 3 * picture.height * picture.width
        if held <= listings.IN_MEMORY:
            pictures.append(picture)
    names, numbers = _number(labels, classes if classes is not None else _class_names(dataset))
    sizes = {(header.height, header.width) for header in headers}
    box = size or (sizes.pop() if len(sizes) == 1 else listings.USUAL_SIZE)
    goal: Goal = box if patch is None else Area(box, patch)
    channels = 1 if all(header.grey for header in headers) else 3
    if len(items) * math.prod(shape_in_batch(goal, channels)) > listings.IN_MEMORY:
        # One thread: PyTorch asks its datasets from one at a time, and theirs may count on it.
        return LazyImageSet(items, numbers, names, goal, channels, strict=True, threads=1)
    images = torch.empty(len(items), *shape_in_batch(goal, channels), dtype=torch.uint8)
    for i, image in enumerate(images):
        picture = pictures[i] if i < len(pictures) else items[i].read()[0]
        put(image.numpy(), _pixels(picture, goal, channels).numpy())
    return ImageSet(images, numbers, names, area=goal if isinstance(goal, Area) else None)


def _pair(item: Any) -> tuple[Any, Any]:
    """Image and label, which a dataset gives as a pair, or by the names that Hugging Face's datasets have for them."""
    if isinstance(item, Mapping):
        keys = [next((key for key in usual if key in item), None) for usual in (IMAGE_COLUMNS, LABEL_COLUMNS)]
        if None in keys:
            raise ValueError(f"it has {listings.some(tuple(map(str, item)))}; expected 'image' and 'label'")
        return item[keys[0]], item[keys[1]]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        count = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise ValueError(f"it is a {type(item).__name__}{count}; expected a pair of an image and its label")
    return item[0], item[1]


def _pixels(picture: Image.Image, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
    return to_tensor(picture.convert("L" if channels == 1 else "RGB"), size, view=view)


def _header(picture: Image.Image) -> ImageHeader:
    return ImageHeader(picture.height, picture.width, picture.mode == "L")


def _label(label: Any) -> int | str:
    if isinstance(label, str):
        return label
    try:
        return operator.index(label)
    except TypeError:
        raise ValueError(f"its label is {label!r}; expected the number of a class, or a word") from None


def _class_names(dataset: Any) -> Sequence[str] | None:
    """What the dataset calls its classes: as torchvision's do, or Hugging Face's."""
    features = getattr(dataset, "features", None)
    columns = [features[key] for key in LABEL_COLUMNS if key in features] if isinstance(features, Mapping) else []
    return getattr(dataset, "classes", None) or next((getattr(column, "names", None) for column in columns), None)


def _number(labels: list[int | str], classes: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
    """The names of the classes, and each label as the number of one."""
    if isinstance(labels[0], str):
        names = tuple(classes or sorted(label for label in set(labels) if isinstance(label, str)))
        number: dict[int | str, int] = {name: i for i, name in enumerate(names)}
        expected = f"one of {listings.some(names)}"
    else:
        highest = max(label for label in labels if isinstance(label, int))
        names = tuple(classes or map(str, range(min(max(highest, 0), MOST_LABELS) + 1)))
        number = {i: i for i in range(len(names))}
        expected = f"0…{len(names) - 1}"
    for i, label in enumerate(labels):
        if label not in number:
            raise ValueError(f"item {i} of the dataset has the label {label!r}; expected {expected}")
    return names, torch.tensor([number[label] for label in labels])
