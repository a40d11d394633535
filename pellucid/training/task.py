"""What the engine asks of a task. A new task is a new class like this, and no line in the engine."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor, nn

Metrics = dict[str, Tensor]


class Task(Protocol):
    """A model, its batches, its loss and what counts as good."""

    unit: str  # what a batch holds, as "images"
    batch: int  # how many of them in a step, over all processes
    epoch_size: int  # how many make an epoch
    score: str  # the figure of `evaluate` by which the best checkpoint is known; larger is better

    @property
    def model(self) -> nn.Module: ...

    def batches(self, start: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        """For every step, the tensors of each accumulated part, on the device: a pure function of (seed, step)."""
        ...

    @property
    def loss(self) -> Callable[..., tuple[Tensor, Metrics]]:
        """loss(model, *part): the mean loss of one part, and figures of it to be logged."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on data that isn't trained on."""
        ...
