"""Training: one loop for all tasks, runs that can be stopped, killed and resumed, on one device or many."""

from pellucid.training.config import ClassifierRun, Duration, Optim, Run
from pellucid.training.engine import Engine, Result, Stopped
from pellucid.training.folder import RunFolder

__all__ = ["ClassifierRun", "Duration", "Engine", "Optim", "Result", "Run", "RunFolder", "Stopped"]
