"""W_Q, W_K and W_V out of PyTorch's packed in_proj_weight, right and wrong."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import bar_chart
from pellucid.layers import MultiHeadAttention


class PackedSettings(NamedTuple):
    """Size of the module."""

    tokens: int = 5  # Number of tokens.
    width: int = 64  # Width D of a token.
    heads: int = 4  # Number of heads.
    seed: int = 0  # Of tokens and weights.


class PackedMeasurement(NamedTuple):
    weight: Tensor  # in_proj_weight
    errors: dict[str, float]  # of attention from weights that were taken out, relative
    round_trip: float  # largest difference of the weights, put back
    thirds: float  # and of every third row, put below each other


def with_weights(module: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> MultiHeadAttention:
    """Our layer, with these matrices (out × in) and the rest of the module."""
    layer = MultiHeadAttention.from_torch(module)
    for linear, weight in ((layer.q, q), (layer.k, k), (layer.v, v)):
        linear.weight.copy_(weight)
    return layer


def measure_packed(p: PackedSettings) -> PackedMeasurement:
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
        errors = {name: relative_error(with_weights(module, *parts)(x), truth) for name, parts in ways.items()}
        back = MultiHeadAttention.from_torch(module).to_torch().in_proj_weight
    thirds = torch.cat(ways["every third row"])
    return PackedMeasurement(weight, errors, max_error(back, weight), max_error(thirds, weight))


def claim_packed(p: PackedSettings, m: PackedMeasurement) -> Claims:
    D, (right, exchanged, _, turned) = p.width, m.errors.values()
    yield Thesis("packed.row", "in_proj_weight.data[1] is W_K.").false(
        at_least(1.0, f"numbers in it, as a share of W_K's {D}×{D}", m.weight.data[1].numel() / D**2),
        twin=("numbers in rows D to 2D", m.weight[D : 2 * D].numel() / D**2),
        truth="That is one row, of W_Q. W_K is rows D to 2D.",
        heard=True,
    )
    yield Thesis("packed.thirds", "W_Q, W_K and W_V are rows 0 to D, D to 2D and 2D to 3D of in_proj_weight.").true(
        at_most(1e-6, "relative difference from the module's output", right),
        twin=("with keys and values exchanged", exchanged),
    )
    yield Thesis("packed.transposed", "With tokens as rows, K = X·W with W the rows D to 2D as they stand.").false(
        at_most(1e-6, "relative difference from the module's output", turned),
        twin=("with K = X·Wᵀ", right),
        truth="nn.Linear holds its matrix as out × in: K = X·Wᵀ.",
    )
    yield Thesis("packed.round_trip", "Put back, the weights are the same to the last bit.").true(
        at_most(0.0, "largest difference after from_torch and to_torch", m.round_trip),
        twin=("of the rows taken as every third", m.thirds),
    )


def draw_packed(p: PackedSettings, m: PackedMeasurement) -> Drawing:
    shapes = {
        "shape of in_proj_weight": str(list(m.weight.shape)),
        "shape of in_proj_weight.data[1]": str(list(m.weight[1].shape)),
    }
    errors = {f"relative difference, {name}": error for name, error in m.errors.items()}
    title, y = "attention from weights that were taken out", "relative difference from the module"
    return shapes | errors, [bar_chart(title, y, {"": m.errors}, log=True)]


PACKED = Experiment(
    name="packed",
    title="Three matrices in one",
    statement="PyTorch packs W_Q, W_K and W_V below each other into one matrix of 3D × D.",
    formula="in_proj_weight = [W_Q; W_K; W_V], each D × D, out × in: Q = X·in_proj_weight[0:D]ᵀ",
    predict="D = 64. What is in_proj_weight.data[1], and how many numbers does it hold?",
    fails="With kdim or vdim there is no in_proj_weight: the three are q_proj_weight, k_proj_weight and v_proj_weight.",
    functions=(measure_packed, claim_packed, draw_packed),
    helpers=(with_weights,),
)
