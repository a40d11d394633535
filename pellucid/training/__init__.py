"""Training: one loop for all tasks, runs that can be stopped, killed and resumed, on one device or many."""

from pellucid.training.engine import Engine, Result, Stopped
from pellucid.training.train import train, train_run

__all__ = ["Engine", "Result", "Stopped", "train", "train_run"]
