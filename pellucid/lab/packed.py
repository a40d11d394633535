"""W_Q, W_K and W_V out of PyTorch's packed in_proj_weight, right and wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import Bars
from pellucid.layers import MultiHeadAttention


@dataclass(frozen=True)
class Packed:
    """Size of the module."""

    tokens: int = 5
    """Number of tokens."""
    width: int = 64
    """Width D of a token."""
    heads: int = 4
    """Number of heads."""
    seed: int = 0
    """Of tokens and weights."""


def packed(p: Packed) -> Result:
    """Take the three matrices out in several ways, build attention from each, and compare with the module."""
    if p.width % p.heads:
        raise ValueError(f"width {p.width} can't be split into {p.heads} heads; expected a multiple of {p.heads}")
    D = p.width
    with seeded(p.seed):
        module = nn.MultiheadAttention(D, p.heads, batch_first=True).double()
        x = torch.randn(1, p.tokens, D, dtype=torch.float64)
    weight = module.in_proj_weight.detach()
    first, second, third = weight[:D], weight[D : 2 * D], weight[2 * D :]
    ways = {
        "rows 0…D, D…2D, 2D…3D": (first, second, third),
        "keys and values exchanged": (first, third, second),
        "every third row": tuple(weight[i::3] for i in range(3)),
        "not transposed": (first.T, second.T, third.T),
    }
    with torch.no_grad():
        truth = module(x, x, x)[0]
        errors = {name: relative(with_weights(module, *parts)(x), truth) for name, parts in ways.items()}
        ours = MultiHeadAttention.from_torch(module)
        back = ours.to_torch()
        returned = worst(back.in_proj_weight, weight)
    right, swapped, _, turned = errors.values()
    claims = (
        Claim(
            "packed.row",
            "in_proj_weight.data[1] is W_K.",
            "false",
            "≥",
            1.0,
            breaks=(Case(f"numbers in it, as a share of W_K's {D}×{D}", weight.data[1].numel() / D**2),),
            twin=Case("numbers in rows D to 2D", second.numel() / D**2),
            truth="That is one row, of W_Q. W_K is rows D to 2D.",
            heard=True,
        ),
        Claim(
            "packed.thirds",
            "W_Q, W_K and W_V are rows 0 to D, D to 2D and 2D to 3D of in_proj_weight.",
            "true",
            "≤",
            1e-6,
            holds=(Case("relative difference from the module's output", right),),
            twin=Case("with keys and values exchanged", swapped),
        ),
        Claim(
            "packed.transposed",
            "With tokens as rows, K = X·W with W the rows D to 2D as they stand.",
            "false",
            "≤",
            1e-6,
            breaks=(Case("relative difference from the module's output", turned),),
            twin=Case("with K = X·Wᵀ", right),
            truth="nn.Linear holds its matrix as out × in: K = X·Wᵀ.",
        ),
        Claim(
            "packed.round_trip",
            "Put back, the weights are the same to the last bit.",
            "true",
            "≤",
            0.0,
            holds=(Case("largest difference after from_torch and to_torch", returned),),
            twin=Case("of the rows taken as every third", worst(torch.cat(ways["every third row"]), weight)),
        ),
    )
    panels = (
        Bars(
            "attention from weights that were taken out",
            "relative difference from the module",
            tuple(errors),
            (("", tuple(errors.values())),),
            log=True,
        ),
    )
    numbers = {
        "shape of in_proj_weight": str(list(weight.shape)),
        "shape of in_proj_weight.data[1]": str(list(weight[1].shape)),
    }
    return Result(numbers | {f"relative difference, {name}": error for name, error in errors.items()}, panels, claims)


def with_weights(module: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> MultiHeadAttention:
    """Our layer, with these matrices (out × in) and the rest of the module."""
    layer = MultiHeadAttention.from_torch(module)
    for linear, weight in ((layer.q, q), (layer.k, k), (layer.v, v)):
        linear.weight.copy_(weight)
    return layer


EXPERIMENTS = (
    Experiment(
        name="packed",
        title="Three matrices in one",
        statement="PyTorch packs W_Q, W_K and W_V below each other into one matrix of 3D × D.",
        formula="in_proj_weight = [W_Q; W_K; W_V], each D × D, out × in: Q = X·in_proj_weight[0:D]ᵀ",
        predict="D = 64. What is in_proj_weight.data[1], and how many numbers does it hold?",
        fails="With kdim or vdim there is no in_proj_weight: the three are q_proj_weight, k_proj_weight and "
        "v_proj_weight.",
        parameters=Packed,
        run=packed,
        shown=(with_weights,),
    ),
)
