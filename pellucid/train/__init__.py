"""Training: one loop for all tasks, runs that can be stopped, killed and resumed, on one device or many."""

from pellucid.train.config import Duration, Optim, Run, Training
from pellucid.train.engine import Engine, Result, Stopped
from pellucid.train.folder import RunFolder

__all__ = ["Duration", "Engine", "Optim", "Result", "Run", "RunFolder", "Stopped", "Training"]
