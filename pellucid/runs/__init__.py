"""Training runs: what decides one (`config`), and what it leaves on disk (`folder`, `checkpoints`)."""

from pellucid.runs.checkpoints import Checkpoint, Checkpoints
from pellucid.runs.config import CaptionerRun, ClassifierRun, Duration, Optim, Plan, Run
from pellucid.runs.folder import RunFolder

__all__ = [
    "CaptionerRun",
    "Checkpoint",
    "Checkpoints",
    "ClassifierRun",
    "Duration",
    "Optim",
    "Plan",
    "Run",
    "RunFolder",
]
