"""LoRA (Hu et al. 2022): a trained matrix stays, and a product of two thin ones is learned that is added to it.

The product is a parametrisation of `nn.Linear.weight`, so whoever reads the weight reads the sum, and no layer knows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

HIDDEN = ".parametrizations."  # in the names of what stands behind an adapted weight
PRODUCT = f"{HIDDEN}weight.0."  # and of what is added to it


class LowRank(nn.Module):
    """W ↦ W + scale · up · down. It begins as nothing: `up` is zero.

    >>> linear = nn.Linear(4, 3)
    >>> adapt(linear, rank=2, scale=1.0, generator=torch.Generator())
    >>> [p.shape for p in linear.parameters() if p.requires_grad]
    [torch.Size([2, 4]), torch.Size([3, 2])]
    """

    def __init__(self, weight: Tensor, rank: int, scale: float, generator: torch.Generator):
        super().__init__()
        rows, columns = weight.shape
        drawn = torch.randn(rank, columns, generator=generator) / math.sqrt(columns)
        self.scale = scale
        self.down = nn.Parameter(drawn.to(weight))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # or the sum that is kept were not what was trained
            return torch.addmm(weight, self.up, self.down, alpha=self.scale)


def adapt(linear: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
    """Freeze a linear map, and let a product that is added to its weight learn."""
    linear.requires_grad_(False)
    parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, rank, scale, generator))


def adapted(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The linear maps that have a product, by name."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            yield name, module


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights as a model without LoRA has them: the tensors themselves, but for the sums."""
    state = {name: tensor for name, tensor in model.state_dict().items() if HIDDEN not in name}
    return state | {f"{name}.weight": module.weight for name, module in adapted(model)}  # pyright: ignore


def hidden_state(model: nn.Module) -> dict[str, Tensor]:
    """What the sums are made of, to go on training."""
    return {name: tensor for name, tensor in model.state_dict().items() if HIDDEN in name}


def merge(model: nn.Module) -> None:
    """Make the model an ordinary one that knows what was learned."""
    for _, module in list(adapted(model)):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    model.requires_grad_(True)
