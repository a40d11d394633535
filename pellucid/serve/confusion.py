"""What a classifier's run confuses, drawn from the images that it was evaluated on."""

import io
from pathlib import Path
from typing import NamedTuple

import torch

from pellucid.data.named import cache_folder
from pellucid.data.sources import DataConfig, load_images
from pellucid.evaluation import ClassificationReport
from pellucid.ready import load_classifier
from pellucid.runs import ClassifierRun, RunFolder
from pellucid.training.pictures import evaluated_on
from pellucid.views.training import DPI, confusion_figure


class ConfusionPicture(NamedTuple):
    """A picture (PNG), and of how many images it tells."""

    picture: bytes
    images: int


def draw_confusion(path: Path, most: int) -> ConfusionPicture:
    """The confusion matrix of a run's best weights, on at most so many images, evenly spread; or one sentence."""
    run = RunFolder(path).run()
    if not isinstance(run, ClassifierRun):
        raise ValueError("a captioner has no classes to confuse")
    if not _is_at_hand(run.data):
        raise ValueError(f"the images of {run.data.name} are not on this machine; pellucid data fetch gets them")
    images = evaluated_on(run, load_images(run.data_as_seen, RunFolder(path).held_out()))
    if images is None or not len(images):
        raise ValueError(f"the run holds no images of {run.data.name} back to be evaluated on")
    chosen = torch.arange(min(most, len(images))) * len(images) // min(most, len(images))
    report = load_classifier(path).evaluate(images.subset(chosen), batch=250)
    if not isinstance(report, ClassificationReport):
        raise ValueError("several classes may be true of one picture here, so none is taken for another")
    stream = io.BytesIO()
    confusion_figure(report.confusion, report.classes).savefig(stream, format="png", dpi=DPI)
    return ConfusionPicture(stream.getvalue(), len(chosen))


def _is_at_hand(data: DataConfig) -> bool:
    """Whether reading it asks nobody else: a page that is opened fetches no data."""
    kind, colon, _ = data.name.partition(":")
    if colon:
        return kind == "folder"
    return data.name == "digits" or data.path is not None or (cache_folder() / f"{data.name}.safetensors").is_file()
