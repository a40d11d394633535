"""Models that can be asked: a module with its reader and what its answers are called. `load` makes one from a name."""

from pellucid.ready.captioner import ReadyCaptioner
from pellucid.ready.classifier import Prediction, ReadyClassifier
from pellucid.ready.foreign import ReadyForeign
from pellucid.ready.loading import (
    evaluate,
    load,
    load_captioner,
    load_checkpoint,
    load_classifier,
    load_translator,
    shipped,
)
from pellucid.ready.model import ReadyModel
from pellucid.ready.translator import ReadyTranslator

__all__ = [
    "Prediction",
    "ReadyCaptioner",
    "ReadyClassifier",
    "ReadyForeign",
    "ReadyModel",
    "ReadyTranslator",
    "evaluate",
    "load",
    "load_captioner",
    "load_checkpoint",
    "load_classifier",
    "load_translator",
    "shipped",
]
