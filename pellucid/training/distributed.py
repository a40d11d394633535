"""Many processes through PyTorch's own engine: torchrun starts them, DDP or FSDP2 joins their gradients."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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


def parallel(model: nn.Module, processes: Processes, kind: str, device: torch.device) -> nn.Module:
    """The model as every process computes it: "ddp" keeps a copy in each, "fsdp" spreads each block over all."""
    if processes.world == 1:
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes.world,))
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh)
    # Whole parameters never outlive a pass, so that whoever asks for them in between finds the spread ones.
    network = _Whole(model)
    fully_shard(network, mesh=mesh, reshard_after_forward=True)
    return network


class _Whole(nn.Module):
    """fully_shard changes the class of the module it is given: of this one, so that the model keeps its own."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)


def exchange_gradients(network: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass joins the processes' gradients: only the last of a step's parts has to."""
    if isinstance(network, nn.parallel.DistributedDataParallel):
        network.require_backward_grad_sync = wanted
    elif hasattr(network, "set_requires_gradient_sync"):
        network.set_requires_gradient_sync(wanted)  # pyright: ignore[reportCallIssue]


# Spread tensors: FSDP2's parameters, of which each process holds a part.


def is_spread(x: Tensor) -> bool:
    return hasattr(x, "full_tensor")


def whole(x: Tensor) -> Tensor:
    """All of a spread tensor, in every process."""
    return x.full_tensor() if is_spread(x) else x  # pyright: ignore[reportAttributeAccessIssue]


def own_part(x: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return x.to_local() if is_spread(x) else x  # pyright: ignore[reportAttributeAccessIssue]


def spread_like(x: Tensor, other: Tensor) -> Tensor:
    """A tensor that every process has whole, spread as `other` is."""
    if not is_spread(other):
        return x
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = other.device_mesh, other.placements  # pyright: ignore[reportAttributeAccessIssue]
    return distribute_tensor(x.to(other.device), mesh, placements, src_data_rank=None)
