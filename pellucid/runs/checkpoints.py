"""The checkpoints of a run as they lie on disk: which there are, after which step, and the weights in them.

    last.safetensors       the whole state, to go on from; last-STEP, a folder, where many processes wrote it (FSDP2)
    previous.safetensors   the state before, for when the last one is damaged; of folders the last two are kept
    best.safetensors       the weights of the best evaluation
    step-STEP.safetensors  weights that are kept for good

Tensors are called `model.…`, `average.…` and `optimizer.….…`. What isn't a tensor, the facts, is JSON in the header,
and beside it stands a checksum of the file.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Size, Tensor, nn

from pellucid.config import from_json, parse_json
from pellucid.models.pretrained import load_strictly, open_tensors
from pellucid.runs import parts
from pellucid.runs.checksum import Damaged, check_whole
from pellucid.runs.log import whole_number

UNFINISHED = ("*.part", ".tmp*")  # the last are files that safetensors had not yet given their name


class Checkpoint(NamedTuple):
    """Weights that a run has kept, and the step they are of.

    >>> from pathlib import Path
    >>> Checkpoint(100, Path("runs/mine/checkpoints/last.safetensors")).step
    100
    """

    step: int
    path: Path


@dataclass(frozen=True)
class Facts:
    """Where a run stands. seconds: of training so far; best: its best score; figures: of its last evaluation.

    stale: evaluations since the best one.
    files, checksums: of a checkpoint in parts, by name; their sizes are in bytes.
    """

    step: int
    seconds: float
    best: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    stale: int = 0

    def __post_init__(self) -> None:
        if whole_number(self.step) is None:
            raise ValueError(f"its step is {self.step}; expected a whole number")
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"its seconds are {self.seconds}; expected a number, zero or more")
        for name, kind in (("figures", float | int), ("files", int), ("checksums", str)):
            values = getattr(self, name)
            if not isinstance(values, dict) or not all(isinstance(value, kind) for value in values.values()):
                raise ValueError(f"its {name} make no sense")


class Checkpoints:
    """A run's checkpoints, by what they are for.

    >>> from pathlib import Path
    >>> Checkpoints(Path("nowhere")).listing()
    []
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.last, self.previous = folder / "last.safetensors", folder / "previous.safetensors"
        self.best = folder / "best.safetensors"

    def last_in_parts(self, step: int) -> Path:
        """Where the state after a step lies, if every process writes its part."""
        return self.folder / f"last-{step}"

    def kept(self, step: int) -> Path:
        """Where the weights after a step lie that are kept for good."""
        return self.folder / f"step-{step}.safetensors"

    def states(self) -> Iterator[Path]:
        """Every state that was finished: the last, and the one before."""
        yield from (path for path in (self.last, self.previous) if path.is_file())
        for facts in self.folder.glob(f"last-*/{parts.FACTS}"):
            yield facts.parent

    def newest(self) -> Path | None:
        """The last state by what states say of themselves; None before there is one."""
        states = list(self.states())
        if len(states) < 2:
            return states[0] if states else None
        return max(states, key=lambda path: (read_state_facts(path).step, path == self.last))

    def newest_whole(self) -> tuple[Path | None, list[Damaged]]:
        """The state to go on from, and what is wrong with the others; None before there is one."""
        whole, problems = [], []
        for path in self.states():
            try:
                check_checkpoint(path)
                whole.append((read_state_facts(path).step, path == self.last, path))
            except Damaged as error:
                problems.append(error)
        if problems and not whole:
            raise ValueError("; ".join([*map(str, problems), self._name_ways_on()]))
        return max(whole)[-1] if whole else None, problems

    def _name_ways_on(self) -> str:
        """What can still be done when no state is whole."""
        states = " and ".join(path.name for path in self.states())
        step = step_of(self.best) if self.best.is_file() else None
        best = "" if step is None else f"{self.best.name}, after step {step}, can be asked but not trained on; "
        return f"there is no whole state to go on from; {best}to begin from the start, remove {states} and resume again"

    def instead_of(self, damaged: Path) -> str:
        """Which weights there are when these are damaged."""
        known = [self.best, *self.states()]
        others = [each for each in self.listing() if each.path in known and each.path != damaged]
        if not others:
            return f"there are no others in {self.folder}"
        step, path = max(others, key=lambda each: (each.path == self.best, each.step))
        return f"move it away, and {path.name}, after step {step}, is used instead"

    def outdated(self, *kept: Path | None) -> Iterator[Path]:
        """States other than those kept, and what a killed process left unfinished."""
        for pattern in ("last*", "previous*", *UNFINISHED):
            yield from (path for path in self.folder.glob(pattern) if path not in kept)

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
        return whole_number(read_facts(path).get("step"))
    except (ValueError, OSError):
        return None


def check_checkpoint(path: Path) -> None:
    """Damaged if a file, or a folder of parts, isn't what was written."""
    parts.check_parts(path) if path.is_dir() else check_whole(path)


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint, a file or a folder of parts, says beside its tensors."""
    if path.is_dir():
        return parts.read_facts(path)
    try:
        with open_tensors(path) as file:
            facts = parse_json(file.metadata()["facts"], "the text of its facts", allow_nan=True)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(path, error) from None
    if not isinstance(facts, dict):
        raise Damaged(path, "its facts are no object")
    return facts


def read_state_facts(path: Path) -> Facts:
    """The facts of a state that a run can go on from."""
    data = read_facts(path)
    try:
        return from_json(Facts, data)
    except ValueError as error:
        raise Damaged(path / parts.FACTS if path.is_dir() else path, error) from None


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Around reading weights: of damaged ones a sentence also says which others there are."""
    try:
        check_checkpoint(path)
        yield
    except Damaged as error:
        raise ValueError(f"{error}; {Checkpoints(path.parent).instead_of(path)}") from None


def fill_module(module: nn.Module, path: Path) -> None:
    """Give the module the weights in a checkpoint, their average where there is one."""
    with checked(path):
        weights, average = read_tensors(path, "model."), read_tensors(path, "average.")
    if average:  # of what is learned; what only is remembered (buffers) has no average
        learned = dict(module.named_parameters())
        weights = {name: tensor for name, tensor in weights.items() if name not in learned} | average
    load_strictly(module, weights, path)


def read_shapes(path: Path) -> dict[str, Size]:
    """The shapes of the model's tensors by their names in it; none of them is made."""
    prefix = "model."
    with checked(path):
        if path.is_dir():
            return parts.read_shapes(path, prefix)
        try:
            with open_tensors(path) as file:
                names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                return {name.removeprefix(prefix): Size(file.get_slice(name).get_shape()) for name in names}
        except SafetensorError as error:
            raise Damaged(path, error) from None


def read_tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it. The optimizers' memory is not read."""
    if path.is_dir():
        return parts.read_tensors(path, prefix)
    try:
        with open_tensors(path) as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise Damaged(path, error) from None
