"""How good a model is, on images it was not trained on."""

from pellucid.evaluation.accuracy import Classification, classification

__all__ = ["Classification", "classification"]
