"""The state of a run on disk: weights, their average, the optimizers' memory, and where the run stands.

A checkpoint is written beside the old one and takes its place at once, so that at any moment a whole one is there. Data
order, augmentation and dropout are functions of (seed, step): there is no random state to keep. Nothing is unpickled.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pellucid.config import from_json, to_json
from pellucid.hub import parts
from pellucid.hub.parts import damaged
from pellucid.models.pretrained import write_weights
from pellucid.training.distributed import Processes, is_spread, spread_like, whole

FORGOTTEN = ("last*", "*.part", ".tmp*")  # the last are files that safetensors had not yet given their name


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


class State:
    """Everything that training changes, as named tensors: `model.…`, `average.…`, `optimizer.….…`."""

    def __init__(self, model: nn.Module, average: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]):
        self.model, self.average, self.optimizers = model, average, optimizers
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        found |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        for optimizer in self.optimizers:
            for p, memory in optimizer.state.items():
                found |= {f"optimizer.{self.names[p]}.{key}": value for key, value in memory.items()}
        return found

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Whatever is trained inside, the state is afterwards what it was, in the tensors that captured graphs know."""
        before = {name: tensor.detach().clone() for name, tensor in self.tensors().items()}
        yield
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(before[name])

    def check(self, shapes: Mapping[str, torch.Size], source: Path) -> None:
        """A checkpoint has what this run has, no more and no less, or a sentence says what differs."""
        own = {name: tensor.shape for name, tensor in self.tensors().items()}
        said = {
            "lacks": own.keys() - shapes.keys(),
            "has unknown": shapes.keys() - own.keys(),
            "has the wrong shape for": {name for name in own.keys() & shapes.keys() if own[name] != shapes[name]},
        }
        problems = [f"{what} {', '.join(sorted(names))}" for what, names in said.items() if names]
        if problems:
            raise ValueError(f"{source} doesn't fit this run: it {'; it '.join(problems)}")


class Checkpoints:
    """The last state of a run, the weights of its best evaluation, and those that are kept for good.

    last.safetensors is written by one process. Where the model is spread over many (FSDP2), each writes its part of a
    folder last-STEP, through PyTorch's distributed checkpoints. Any number of processes can read either.
    """

    def __init__(self, folder: Path, processes: Processes):
        self.folder, self.processes = folder, processes
        self.last, self.best = folder / "last.safetensors", folder / "best.safetensors"

    def save_last(self, tensors: dict[str, Tensor], facts: Facts) -> None:
        kept = self.last
        if any(is_spread(tensor) for tensor in tensors.values()):
            kept = self.folder / f"last-{facts.step}"
            save_parts(kept, tensors, facts, self.processes)
        elif self.processes.first:
            save(kept, tensors, to_json(facts))
        if self.processes.first:
            self._forget_all_but(kept)
        self.processes.wait()

    def save_best(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._save_weights(self.best, weights, facts)

    def save_kept(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._save_weights(self.folder / f"step-{facts['step']}.safetensors", weights, facts)

    def _save_weights(self, path: Path, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        gathered = {name: whole(tensor) for name, tensor in weights.items()}  # every process takes part
        if self.processes.first:
            save(path, gathered, facts)

    def restore_last(self, state: State) -> Facts | None:
        """Put the newest state in place and return its facts; None if there is none yet."""
        found = {_parts_facts(path.parent).step: path.parent for path in self.folder.glob(f"last-*/{parts.FACTS}")}
        if self.last.exists():
            found[_facts(read_facts(self.last), self.last).step] = self.last
        if not found:
            return None
        newest = found[max(found)]
        if newest == self.last:
            return restore(newest, state)
        return restore_parts(newest, state, self.processes)

    def _forget_all_but(self, kept: Path) -> None:
        """Older states, and what a killed process left unfinished."""
        for path in chain.from_iterable(self.folder.glob(old) for old in FORGOTTEN):
            if path == kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


# One file, by one process


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a file beside `path`, which then takes its place at once; what was there survives any failure."""
    part = path.with_name(f"{path.name}.part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    replace_file(path, lambda part: part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8"))


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """facts: what isn't a tensor (step, best score, …), as JSON in the file's header."""
    try:
        replace_file(path, lambda part: write_weights(part, tensors, {"facts": json.dumps(facts)}))
    except SafetensorError as error:  # safetensors says so when the disk is full
        raise OSError(f"the checkpoint could not be written ({error})") from None


@torch.no_grad()
def restore(path: Path, state: State) -> Facts:
    """One tensor after the other: a second copy of the whole state is never in memory."""
    try:
        with safe_open(path, framework="pt") as file:
            names: list[str] = list(file.keys())
            state.check({name: torch.Size(file.get_slice(name).get_shape()) for name in names}, path)
            own = state.tensors()
            for name in names:
                own[name].copy_(spread_like(file.get_tensor(name), own[name]))
    except SafetensorError as error:
        raise damaged(path, error) from None
    return _facts(read_facts(path), path)


def read_facts(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["facts"])
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise damaged(path, error) from None


def _facts(data: Any, path: Path) -> Facts:
    try:
        return from_json(Facts, data)
    except ValueError as error:
        raise damaged(path, error) from None


# A folder, each process its part


def save_parts(path: Path, tensors: dict[str, Tensor], facts: Facts, processes: Processes) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    if processes.first:
        shutil.rmtree(path, ignore_errors=True)  # what a killed process left there would be read too
    processes.wait()
    with parts.told(lambda error: OSError(f"the checkpoint could not be written ({error})")):
        save_together(tensors, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True))
    if processes.first:
        files = {part.name: part.stat().st_size for part in path.iterdir()}
        write_json(path / parts.FACTS, to_json(replace(facts, files=files)))


def restore_parts(path: Path, state: State, processes: Processes) -> Facts:
    facts = _parts_facts(path)
    parts.check_sizes(path, facts.files)
    with parts.told(lambda error: damaged(path, error)):
        reader, saved = parts.opened(path)
        state.check({name: tensor.size for name, tensor in saved.items()}, path)
        parts.fill(state.tensors(), reader, alone=processes.world == 1)
    return facts


def _parts_facts(path: Path) -> Facts:
    return _facts(parts.facts(path), path / parts.FACTS)
