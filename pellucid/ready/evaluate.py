"""How good a model is, by name or ready, in one call."""

from pathlib import Path
from typing import Any

from pellucid.ready.loading import load
from pellucid.ready.model import ReadyModel


def evaluate(model: str | Path | ReadyModel, data: Any, split: str = "test", **how: Any) -> Any:
    """What `pellucid evaluate` does: accuracy and calibration of a classifier, scores beside controls of a captioner.

    model: ready, or what `load` takes. data: by name, as `cifar10`, `folder:PATH` or `scenes`, or a set of images.
    how: path, batch and, for captioners, beam and progress. Comes back as a `ClassificationReport` or a
    `CaptioningReport`; both have their numbers in `figures`.

    >>> import torch
    >>> from pellucid.data import ImageSet
    >>> ship = ImageSet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 0]), ("ship",))
    >>> evaluate("vit-cifar10", ship).figures["images"]
    2
    """
    ready = model if isinstance(model, ReadyModel) else load(model)
    return ready.evaluate(data, split, **how)
