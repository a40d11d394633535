"""The processes that torchrun started, joined by PyTorch: what each says to the others, and work that they share."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Part = TypeVar("Part")
Answer = TypeVar("Answer")

HELD = 5.0  # seconds after which a thread has let go of a tensor, or somebody else has it
SETTLING = 0.05  # seconds for what `add_up` doesn't wait for: the tensors of PyTorch's own exchanges (FSDP2)


@dataclass(frozen=True)
class Processes:
    """This process among the others; alone unless torchrun started it."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mean(self, x: Tensor) -> Tensor:
        """The mean of x over all processes."""
        if self.world == 1:
            return x
        return add_up(x.clone()) / self.world

    def agree(self, flag: bool, device: torch.device) -> bool:
        """True if any process says so: a signal may reach only one of them."""
        if self.world == 1:
            return flag
        return bool(add_up(torch.tensor(float(flag), device=device)) > 0)

    def share(self, text: str) -> str:
        """What the first process says, in all of them."""
        if self.world == 1:
            return text
        texts = [text]
        dist.broadcast_object_list(texts)
        return texts[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process says, the first one's first."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def share_work(self, parts: Sequence[Part], act: Callable[[Part], Answer]) -> Iterator[Answer]:
        """What is answered to each part, in their order and in every process, each of which did its share of them.

        >>> list(Processes().share_work([1, 2, 3], lambda part: part * part))
        [1, 4, 9]
        """
        for start in range(0, len(parts), self.world):
            mine = start + self.rank
            answers = self.gather(act(parts[mine]) if mine < len(parts) else None)
            yield from answers[: len(parts) - start]

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


def add_up(x: Tensor) -> Tensor:
    """Becomes the sum over all processes.

    A thread of gloo's holds x a moment longer than this takes, and needs Python's lock to let go of it. Were the group
    of processes dissolved just then, PyTorch would hold the lock and wait for that thread, for ever (seen in PyTorch
    2.13, once in 200 ends of a run on a busy machine): so it is waited for here.
    """
    dist.all_reduce(x)
    if x.device.type == "cpu":
        end = time.monotonic() + HELD
        while x._use_count() > 1 and time.monotonic() < end:  # pyright: ignore[reportAttributeAccessIssue]
            time.sleep(0)
    return x


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, joined by NCCL on GPUs and gloo on CPUs."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        yield Processes()
        return
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        if device.type != "cuda":
            time.sleep(SETTLING)
        dist.destroy_process_group()
