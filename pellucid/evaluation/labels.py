"""Labels as the numbers that a model has for their classes."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, tensor

from pellucid.data.listings import Images, some

log = logging.getLogger("pellucid")


def relabel(
    images: Images, labels: Sequence[str] | None, count: int, classes: Mapping[str, str] | None = None
) -> Tensor:
    """The images' labels as numbers of a model's `count` classes, by their names.

    classes: what the model calls those classes of the data that it has other names for. Where the model names none, or
    the data numbers them, they are taken in their order.
    """
    own = images.classes
    meant = _translate(own, labels, classes or {})
    if labels is not None and meant == tuple(labels):
        return images.labels
    unknown = tuple(name for name, known in zip(own, meant, strict=True) if known not in (labels or ()))
    if images.labels.ndim == 2:
        return _arrange(images.labels, meant, labels, count)
    if not unknown:
        twice = tuple(name for name, times in Counter(labels).items() if times > 1 and name in meant)
        if twice:
            raise ValueError(
                f"several of the model's classes are called {some(twice)}: which is meant can't be told by name"
            )
        numbers = {name: i for i, name in enumerate(labels or ())}
        return tensor([numbers[name] for name in meant])[images.labels]
    numbered = tuple(map(str, range(count))) == tuple(own)
    if len(own) == count and (labels is None or numbered):
        which = "data has numbers" if numbered else "model has no names"
        log.warning("the %s for its classes; those of the data (%s) are taken in their order", which, some(own, 3))
        return images.labels
    known = f"{count} classes without names" if labels is None else some(tuple(labels))
    raise ValueError(
        f"the model doesn't know {some(unknown)} of the data's {len(own)} classes; it knows {known}; "
        f"say which of them each is: classes, or --classes FILE, as {{{unknown[0]!r}: {(labels or ('…',))[0]!r}}}"
    )


def _arrange(truth: Tensor, meant: Sequence[str], labels: Sequence[str] | None, count: int) -> Tensor:
    """Columns of truth (n classes) in the model's order; a class that only the model knows is true of no image."""
    arranged = torch.zeros(len(truth), count, dtype=torch.bool)
    known = list(labels or map(str, range(count)))
    if strange := tuple(name for name in meant if name not in known):
        raise ValueError(f"the model doesn't know {some(strange)} of the data's classes; it knows {some(tuple(known))}")
    for column, name in enumerate(meant):
        arranged[:, known.index(name)] |= truth[:, column]
    return arranged


def _translate(own: Sequence[str], labels: Sequence[str] | None, classes: Mapping[str, str]) -> tuple[str, ...]:
    """The data's classes by the model's names."""
    strange = tuple(name for name in classes if name not in own)
    if strange:
        raise ValueError(f"classes names {some(strange)}, which the data doesn't have; it has {some(tuple(own))}")
    wrong = tuple(name for name in classes.values() if name not in (labels or ()))
    if wrong:
        known = "the model has no names for its classes" if labels is None else f"the model knows {some(tuple(labels))}"
        raise ValueError(f"classes means {some(wrong)}, which the model doesn't know; {known}")
    return tuple(classes.get(name, name) for name in own)
