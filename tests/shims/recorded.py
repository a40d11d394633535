"""python recorded.py WORDS…: `pellucid WORDS…`, which also says what it takes to be saved, in RECORDED_ROOT/said.jsonl.

Run under recorder.c, whose record then holds each promise at its place between what was done to files.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pellucid.cli import main
from pellucid.runs import RunFolder
from pellucid.training.checkpoint import CheckpointWriter


def promise(kind: type, name: str, tell: Callable[..., dict[str, Any]]) -> None:
    """When the method has returned, what it was called with is there to stay."""
    method = getattr(kind, name)

    def called(self, *arguments: Any) -> Any:
        result = method(self, *arguments)
        place = self.path if isinstance(self, RunFolder) else self.checkpoints.folder.parent
        with Path(os.environ["RECORDED_ROOT"], "said.jsonl").open("a") as file:
            file.write(json.dumps({"what": name, "where": str(place)} | tell(*arguments)) + "\n")
        return result

    setattr(kind, name, called)


if __name__ == "__main__":
    torch.set_num_threads(1)
    promise(RunFolder, "create", lambda run, files=None: {"files": sorted(files or {})})
    promise(RunFolder, "keep_plan", lambda plan: {"steps": plan.steps})
    promise(RunFolder, "log", lambda lines: {"step": lines[-1]["step"]} if lines else {})
    promise(RunFolder, "cut_log", lambda step: {"step": step})
    promise(CheckpointWriter, "save_last", lambda tensors, facts: {"step": facts.step})
    promise(CheckpointWriter, "save_best", lambda weights, facts: {"step": facts["step"]})
    promise(CheckpointWriter, "save_kept", lambda weights, facts: {"step": facts["step"]})
    sys.exit(main(sys.argv[1:]))
