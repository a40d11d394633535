"""Training: one loop for all tasks, runs that can be stopped, killed and resumed, on one device or many."""

from pellucid.training.engine import Engine, Observer, Result, Stopped
from pellucid.training.rates import find_rate
from pellucid.training.sweep import sweep
from pellucid.training.train import train, train_run

__all__ = ["Engine", "Observer", "Result", "Stopped", "find_rate", "sweep", "train", "train_run"]
