"""The state of a run, written and restored: weights, their average, the optimizers' memory, and where the run stands.

A checkpoint is written beside the old one and takes its place at once, so that at any moment a whole one is there. Data
order, augmentation and dropout are functions of (seed, step): there is no random state to keep. Nothing is unpickled.
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from pellucid.config import to_json
from pellucid.files import replace_file, sync_named, write_text
from pellucid.models.pretrained import open_tensors, write_weights
from pellucid.processes import Processes
from pellucid.runs import parts
from pellucid.runs.checkpoints import Checkpoints, Facts, read_state_facts, step_of
from pellucid.runs.checksum import EMPTY, FIELD, Damaged, sum_file, write_checksum
from pellucid.training.distributed import is_spread, spread_like, whole
from pellucid.training.lora import hidden_state, merged_state

log = logging.getLogger("pellucid")


class State:
    """Everything that training changes, as named tensors: `model.…`, `average.…`, `optimizer.….…`.

    Of LoRA `model.…` are the sums, for whoever opens the run, and `lora.…` what training goes on from.
    """

    def __init__(self, model: nn.Module, average: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]):
        self.model, self.average, self.optimizers = model, average, optimizers
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies, but for the sums of LoRA."""
        tensors = {f"model.{name}": tensor for name, tensor in merged_state(self.model).items()}
        tensors |= {f"lora.{name}": tensor for name, tensor in hidden_state(self.model).items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        for optimizer in self.optimizers:
            for p, memory in optimizer.state.items():
                tensors |= {f"optimizer.{self.names[p]}.{key}": value for key, value in memory.items()}
        return tensors

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
        problems = {
            "lacks": own.keys() - shapes.keys(),
            "has unknown": shapes.keys() - own.keys(),
            "has the wrong shape for": {name for name in own.keys() & shapes.keys() if own[name] != shapes[name]},
        }
        sentences = [f"{what} {', '.join(sorted(names))}" for what, names in problems.items() if names]
        if sentences:
            raise ValueError(f"{source} doesn't fit this run: it {'; it '.join(sentences)}")


class CheckpointWriter:
    """Keeps the last two states of a run, the weights of its best evaluation, and those that are to stay for good.

    last.safetensors is written by one process. Where the model is spread over many (FSDP2), each writes its part of a
    folder last-STEP, through PyTorch's distributed checkpoints. Any number of processes can read either.
    """

    def __init__(self, checkpoints: Checkpoints, processes: Processes):
        self.checkpoints, self.processes = checkpoints, processes
        self.newest: Path | None = None  # what was last written or read: known to be whole

    def save_last(self, tensors: dict[str, Tensor], facts: Facts) -> None:
        """The state, on the disk when this returns. The one that was known to be whole stays beside it."""
        newest, before = self.checkpoints.last, self.newest
        if any(is_spread(tensor) for tensor in tensors.values()):
            newest = self.checkpoints.last_in_parts(facts.step)
            save_parts(newest, tensors, facts, self.processes)
        else:
            aside = self.checkpoints.previous if before == newest else None
            if self.processes.first:
                save_checkpoint(newest, tensors, to_json(facts), aside)
            before = aside or before
        if self.processes.first:
            for path in self.checkpoints.outdated(newest, before):
                remove_state(path)
        self.newest = newest
        self.processes.wait()

    def save_best(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._save_weights(self.checkpoints.best, weights, facts)

    def save_kept(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._save_weights(self.checkpoints.kept(facts["step"]), weights, facts)

    def _save_weights(self, path: Path, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        gathered = {name: whole(tensor) for name, tensor in weights.items()}  # every process takes part
        if self.processes.first:
            save_checkpoint(path, gathered, facts)

    def restore_last(self, state: State) -> Facts | None:
        """Put the newest whole state in place and return its facts; None if there is none yet."""
        self.newest = self._choose_state()
        if self.newest is None:
            return None
        return (
            restore_parts(self.newest, state, self.processes) if self.newest.is_dir() else restore(self.newest, state)
        )

    def _choose_state(self) -> Path | None:
        """The first process looks, all go on from the same one. What is damaged is told of."""
        name, problem = "", ""
        if self.processes.first:
            try:
                path, problems = self.checkpoints.newest_whole()
                name = path.name if path else ""
                for each in problems:
                    log.warning("%s; going on from %s, after step %s", each, name, step_of(path) if path else 0)
            except ValueError as error:
                problem = str(error)
        name, problem = json.loads(self.processes.share(json.dumps([name, problem])))
        if problem:
            raise ValueError(problem)
        return self.checkpoints.folder / name if name else None


def remove_state(path: Path) -> None:
    """Of a folder first what makes it count."""
    (path / parts.FACTS if path.is_dir() else path).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)


# One file, by one process


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any], aside: Path | None = None) -> None:
    """facts: what isn't a tensor (step, best score, …), as JSON in the file's header. aside: for what was there."""

    def write(part: Path) -> None:
        write_weights(part, tensors, {"facts": json.dumps(facts), FIELD: EMPTY})
        write_checksum(part)

    try:
        replace_file(path, write, aside)
    except SafetensorError as error:  # safetensors says so when the disk is full
        raise OSError(f"the checkpoint could not be written ({error})") from None


@torch.no_grad()
def restore(path: Path, state: State) -> Facts:
    """One tensor after the other: a second copy of the whole state is never in memory."""
    try:
        with open_tensors(path) as file:
            names: list[str] = list(file.keys())
            state.check({name: torch.Size(file.get_slice(name).get_shape()) for name in names}, path)
            own = state.tensors()
            for name in names:
                own[name].copy_(spread_like(file.get_tensor(name), own[name]))
    except SafetensorError as error:
        raise Damaged(path, error) from None
    return read_state_facts(path)


# A folder, each process its part


def save_parts(path: Path, tensors: dict[str, Tensor], facts: Facts, processes: Processes) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    if processes.first:
        shutil.rmtree(path, ignore_errors=True)  # what a killed process left there would be read too
    processes.wait()
    with parts.translate_failures(lambda error: OSError(f"the checkpoint could not be written ({error})")):
        save_together(tensors, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True))
    files = sorted(path.iterdir())
    mine = files[processes.rank :: processes.world]
    checksums = processes.gather({part.name: sum_file(part) for part in mine})
    if processes.first:
        sync_named(path)
        sizes = {part.name: part.stat().st_size for part in files}
        facts = replace(facts, files=sizes, checksums={name: each for some in checksums for name, each in some.items()})
        replace_file(path / parts.FACTS, partial(write_facts, facts=facts))


def write_facts(path: Path, facts: Facts) -> None:
    write_text(path, json.dumps(to_json(facts) | {FIELD: EMPTY}, indent=2) + "\n")
    write_checksum(path)


def restore_parts(path: Path, state: State, processes: Processes) -> Facts:
    with parts.translate_failures(partial(Damaged, path)):
        reader, saved = parts.open_parts(path)
        state.check({name: tensor.size for name, tensor in saved.items()}, path)
        parts.fill_tensors(state.tensors(), reader, alone=processes.world == 1)
    return read_state_facts(path)
