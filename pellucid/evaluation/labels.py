"""Labels as the numbers that a model has for their classes."""

import logging
from collections import Counter
from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor, tensor

from pellucid.data.listings import Images, some

log = logging.getLogger("pellucid")


def relabel(images: Images, labels: Sequence[str] | None, count: int) -> Int[Tensor, " n"]:
    """The images' labels as numbers of a model's `count` classes: by their names or, if none is shared, by order."""
    classes = images.classes
    if labels is not None and tuple(labels) == tuple(classes):
        return images.labels
    unknown = tuple(name for name in classes if name not in (labels or ()))
    if not unknown:
        twice = tuple(name for name, times in Counter(labels).items() if times > 1 and name in classes)
        if twice:
            raise ValueError(
                f"several of the model's classes are called {some(twice)}: which is meant can't be told by name"
            )
        numbers = {name: i for i, name in enumerate(labels or ())}
        return tensor([numbers[name] for name in classes])[images.labels]
    if len(unknown) == len(classes) == count:
        names = "names no classes" if labels is None else f"has other names for its classes ({some(tuple(labels), 3)})"
        log.warning("the model %s than the data (%s); they are taken in their order", names, some(classes, 3))
        return images.labels
    known = f"{count} classes" if labels is None else some(tuple(labels))
    raise ValueError(f"the model doesn't know {some(unknown)} of the data's {len(classes)} classes; it knows {known}")
