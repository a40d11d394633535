"""The checkpoints of a run as they lie on disk: which there are, after which step, and the weights in them.

    last.safetensors       the whole state, to go on from; last-STEP, a folder, where many processes wrote it (FSDP2)
    best.safetensors       the weights of the best evaluation
    step-STEP.safetensors  weights that are kept for good

Tensors are called `model.…`, `average.…` and `optimizer.….…`. What isn't a tensor, the facts, is JSON in the header.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pellucid.config import from_json
from pellucid.models.pretrained import load_strictly
from pellucid.runs import parts
from pellucid.runs.parts import damaged

UNFINISHED = ("*.part", ".tmp*")  # the last are files that safetensors had not yet given their name


class Checkpoint(NamedTuple):
    """Weights that a run has kept, and the step they are of."""

    step: int
    path: Path


@dataclass(frozen=True)
class Facts:
    """Where a run stands. seconds: of training so far; best: its best score; figures: of its last evaluation.

    files: of a checkpoint in parts, with their sizes in bytes.
    """

    step: int
    seconds: float
    best: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)


class Checkpoints:
    """A run's checkpoints, by what they are for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.last, self.best = folder / "last.safetensors", folder / "best.safetensors"

    def last_in_parts(self, step: int) -> Path:
        return self.folder / f"last-{step}"

    def kept(self, step: int) -> Path:
        return self.folder / f"step-{step}.safetensors"

    def newest(self) -> Path | None:
        """The state to go on from; None before there is one."""
        states = list(self.states())
        return (
            max(states, key=lambda path: read_state_facts(path).step) if len(states) > 1 else next(iter(states), None)
        )

    def states(self) -> Iterator[Path]:
        """Every whole state: more than one only if a process was killed as it replaced the older."""
        if self.last.is_file():
            yield self.last
        for facts in self.folder.glob(f"last-*/{parts.FACTS}"):
            yield facts.parent

    def outdated(self, newest: Path) -> Iterator[Path]:
        """States older than the newest, and what a killed process left unfinished."""
        for pattern in ("last*", *UNFINISHED):
            yield from (path for path in self.folder.glob(pattern) if path != newest)

    def weights(self) -> Path | None:
        """Where the weights lie that the run is known by: the best, else the newest."""
        return self.best if self.best.is_file() else self.newest()

    def listing(self) -> list[Checkpoint]:
        """All that can be looked at, the earliest first; damaged ones are left out."""
        paths = [*self.folder.glob("*.safetensors"), *(path for path in self.states() if path.is_dir())]
        steps = ((step_of(path), path) for path in paths)
        listed = [Checkpoint(step, path) for step, path in steps if step is not None]
        return sorted(listed, key=lambda each: (each.step, each.path.name))


def step_of(path: Path) -> int | None:
    """After which step of training it was written; None if it can't be told."""
    try:
        step = read_facts(path).get("step")
    except (ValueError, OSError):
        return None
    return step if isinstance(step, int) and step >= 0 else None


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint, a file or a folder of parts, says beside its tensors."""
    if path.is_dir():
        return parts.read_facts(path)
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["facts"])
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise damaged(path, error) from None


def read_state_facts(path: Path) -> Facts:
    """The facts of a state that a run can go on from."""
    data = read_facts(path)
    try:
        return from_json(Facts, data)
    except ValueError as error:
        raise damaged(path / parts.FACTS if path.is_dir() else path, error) from None


def fill_module(module: nn.Module, path: Path) -> None:
    """Give the module the weights in a checkpoint, their average where there is one."""
    weights, average = read_tensors(path, "model."), read_tensors(path, "average.")
    if average:  # of what is learned; what only is remembered (buffers) has no average
        learned = dict(module.named_parameters())
        weights = {name: tensor for name, tensor in weights.items() if name not in learned} | average
    load_strictly(module, weights, path)


def read_tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it. The optimizers' memory is not read."""
    if path.is_dir():
        return parts.read_tensors(path, prefix)
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise damaged(path, error) from None
