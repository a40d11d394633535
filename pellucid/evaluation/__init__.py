"""How good a model is, on images it was not trained on."""

from pellucid.evaluation.accuracy import ClassificationReport, evaluate_classifier
from pellucid.evaluation.captioning import CaptioningReport, evaluate_captioner

__all__ = ["CaptioningReport", "ClassificationReport", "evaluate_captioner", "evaluate_classifier"]
