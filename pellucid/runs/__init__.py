"""Training runs: what decides one (`config`), and what it leaves on disk (`folder`, `checkpoints`)."""

from pellucid.runs.checkpoints import Checkpoint, Checkpoints
from pellucid.runs.config import AnyRun, CaptionerRun, ClassifierRun, Duration, Optim, Plan, Run, TranslatorRun
from pellucid.runs.folder import RunFolder

__all__ = [
    "AnyRun",
    "CaptionerRun",
    "Checkpoint",
    "Checkpoints",
    "ClassifierRun",
    "Duration",
    "Optim",
    "Plan",
    "Run",
    "RunFolder",
    "TranslatorRun",
]
