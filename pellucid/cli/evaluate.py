"""pellucid evaluate: how often a model is right, on which classes, and whether it knows when it is."""

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor, tensor

from pellucid.cli.evaluate_captions import evaluate_captions
from pellucid.cli.verbs import Evaluate
from pellucid.data.listings import Images, some
from pellucid.data.sources import DataConfig, load_images
from pellucid.evaluation.accuracy import Classification, classification
from pellucid.hub.loading import kind_of, load_captioner, normalisation
from pellucid.hub.loading import load as load_model
from pellucid.models import Captioner, ViT
from pellucid.training.config import ClassifierRun
from pellucid.training.distributed import pick_device
from pellucid.training.folder import CONFIG, RunFolder
from pellucid.views.figures import check_path, save_figure
from pellucid.views.training import confusion_figure

BATCH = 500


@dataclass(frozen=True)
class Relabelled:
    """Images whose labels are numbers of the model's classes."""

    images: Images
    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Tensor) -> Tensor:
        return self.images.read(indices)


def evaluate(asked: Evaluate) -> None:
    """Print the figures as a table or as JSON and, if asked for, draw the confusion matrix."""
    if asked.batch is not None and asked.batch < 1:
        raise ValueError(f"--batch is {asked.batch}; expected one or more")
    if asked.confusion is not None:
        check_path(asked.confusion)
    device = pick_device(asked.device)
    if kind_of(asked.model) is Captioner:
        evaluate_captions(asked, *load_captioner(asked.model, device))
        return
    wanted = {
        "beam": asked.beam is not None,
        "captions": asked.captions,
        "examples": asked.examples,
        "meteor": asked.meteor,
        "spice": asked.spice,
    }
    if for_captions := [name for name, value in wanted.items() if value]:
        raise ValueError(f"--{for_captions[0]} is for captioners; this model is a classifier")
    model = load_model(asked.model, device)
    normalise = normalisation(model)
    images = relabelled(_images(asked, model), model)
    report = classification(model, images, normalise, device=device, batch=asked.batch or BATCH)
    names = distinct(model.config.names)
    if asked.json:
        print(json.dumps(figures(report, names) | {"data": asked.data, "split": asked.split}, allow_nan=False))
    else:
        print(table(report, names, title=f"{asked.model} on the {len(images):,} {asked.split} images of {asked.data}"))
    if asked.confusion is not None:
        save_figure(confusion_figure(report.confusion, names), asked.confusion)
        if not asked.json:
            print(f"\nconfusion matrix: {asked.confusion}")


def relabelled(images: Images, model: ViT) -> Relabelled:
    """The images under the model's class numbers: by the names of the classes or, if none is shared, by their order."""
    channels = model.config.channels
    if images.shape[0] != channels:
        raise ValueError(f"the images have {images.shape[0]} channels and the model was trained on {channels}")
    labels, classes = model.config.labels, images.classes
    if labels == classes:
        return Relabelled(images, images.labels)
    unknown = tuple(name for name in classes if name not in (labels or ()))
    if not unknown:
        twice = tuple(name for name, times in Counter(labels).items() if times > 1 and name in classes)
        if twice:
            raise ValueError(
                f"several of the model's classes are called {some(twice)}: which is meant can't be told by name"
            )
        numbers = {name: i for i, name in enumerate(labels or ())}
        return Relabelled(images, tensor([numbers[name] for name in classes])[images.labels])
    if len(unknown) == len(classes) == model.config.classes:
        said = "names no classes" if labels is None else f"has other names for its classes ({some(labels, 3)})"
        print(
            f"pellucid: the model {said} than the data ({some(classes, 3)}); they are taken in their order",
            file=sys.stderr,
        )
        return Relabelled(images, images.labels)
    known = f"{model.config.classes} classes" if labels is None else some(labels)
    raise ValueError(f"the model doesn't know {some(unknown)} of the data's {len(classes)} classes; it knows {known}")


def figures(report: Classification, names: Sequence[str]) -> dict[str, Any]:
    """What the JSON holds: shares, and null where there is no number."""
    return {
        "top1": _number(report.top1),
        "top5": _number(report.top5),
        "ece": _number(report.ece()),
        "per_class": {name: _number(share) for name, share in zip(names, report.per_class, strict=True)},
        "images_per_second": _number(report.images_per_second),
        "images": len(report.labels),
    }


def table(report: Classification, names: Sequence[str], *, title: str) -> str:
    """The same for people, in percent."""
    rows = [
        ("top-1", f"{report.top1:7.2%}"),
        ("top-5", f"{report.top5:7.2%}"),
        ("ECE", f"{report.ece():7.2%}"),
        ("images/s", f"{report.images_per_second:7,.0f}"),
    ]
    counts = report.confusion.sum(1).tolist()
    classes = [
        (name, f"{'–' if math.isnan(share) else f'{share:.2%}':>7}  of {count:,}")
        for name, share, count in zip(names, report.per_class, counts, strict=True)
    ]
    wide = max(len(name) for name, _ in rows + classes)
    lines = [f"{name:<{wide}}  {value}" for name, value in rows]
    return "\n".join([title, "", *lines, "", *(f"{name:<{wide}}  {value}" for name, value in classes)])


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each with its number where it is used more than once (ImageNet has two cranes).

    >>> distinct(("crane", "dog", "crane"))
    ('crane (0)', 'dog', 'crane (2)')
    """
    times = Counter(names)
    return tuple(f"{name} ({i})" if times[name] > 1 else name for i, name in enumerate(names))


def _images(asked: Evaluate, model: ViT) -> Images:
    splits = load_images(DataConfig(asked.data, path=asked.path, size=model.config.image, held_out=_held_out(asked)))
    found = getattr(splits, asked.split)
    if found is None or not len(found):
        there = ", ".join(name for name in ("train", "validation", "test") if getattr(splits, name))
        raise ValueError(f"{asked.data} has no {asked.split} images; it has {there}")
    return found


def _held_out(asked: Evaluate) -> int:
    """As many as the run held out of the same data, so that its validation images are the ones it never saw."""
    folder = Path(asked.model)
    if asked.split == "test" or not (folder / "checkpoints").is_dir() or not (folder / CONFIG).is_file():
        return 0
    run = RunFolder(folder).config()
    return run.data.held_out if isinstance(run, ClassifierRun) and run.data.name == asked.data else 0


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None
