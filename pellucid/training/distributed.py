"""Training in many processes, through PyTorch's own engine: DDP or FSDP2 joins their gradients."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.processes import Processes


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
