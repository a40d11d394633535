"""Layers that are set, not learned: self-attention as the identity, as a permutation, as a pointwise linear map."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import heatmap
from pellucid.layers import MultiHeadAttention
from pellucid.watching import watch


class BuiltSettings(NamedTuple):
    """How many tokens of which content, and how sharply they are matched."""

    tokens: int = 8  # Number of tokens.
    content: int = 16  # Features of a token, beside its position.
    beta: float = 40.0  # Inverse temperature: the leak is about e^(−β).
    seed: int = 0  # Of tokens, the permutation and the linear map.


class BuiltMeasurement(NamedTuple):
    weights: dict[str, Tensor]  # of each layer
    errors: dict[str, dict[str, float]]  # the largest difference of each layer from each target
    relative_errors: dict[str, float]  # of each layer from a convolution of kernel 1


def set_attention(
    p: BuiltSettings, sources: Int[Tensor, " t"], linear: Float[Tensor, "content content"], beta: float
) -> MultiHeadAttention:
    """One head that reads, at token i, `linear` of the content of token sources[i].

    A token is its content, then a one-hot code of its position. The query of i is the code of i; the key of j is the
    code of the token that reads it. So the score is 1 for the wanted pair and 0 for every other.
    """
    n, c = p.tokens, p.content
    layer = MultiHeadAttention(c + n, heads=1, key_width=n, value_width=c, bias=False, beta=beta)
    with torch.no_grad():
        for weight in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
            weight.zero_()
        layer.W_q[c:] = torch.eye(n)
        layer.W_k[c:] = F.one_hot(sources, n).float().T  # row j: the codes of those that read token j
        layer.W_v[:c] = linear.T
        layer.W_o[:, :c] = torch.eye(c)
    return layer


def measure_built(p: BuiltSettings) -> BuiltMeasurement:
    """Set the weights, run the layer on random tokens, compare with what it should be."""
    n, c = p.tokens, p.content
    with seeded(p.seed):
        content, linear, shuffled = torch.randn(1, n, c), torch.randn(c, c) / c**0.5, torch.randperm(n)
    tokens = torch.cat([content, torch.eye(n)[None]], dim=-1)
    own, same = torch.arange(n), torch.eye(c)
    layers = {
        "identity": set_attention(p, own, same, p.beta),
        "permutation": set_attention(p, shuffled, same, p.beta),
        "pointwise linear": set_attention(p, own, linear, p.beta),
        "equal weights": set_attention(p, own, linear, 0.0),
    }
    pointwise, convolved = content @ linear.T, F.conv1d(content.mT, linear[:, :, None]).mT
    targets = {
        "identity": content,
        "permutation": content[:, shuffled],
        "pointwise linear": pointwise,
        "convolution": convolved,
        "mean": pointwise.mean(1, keepdim=True).expand(-1, n, -1),
    }
    weights, errors, relative_errors = {}, {}, {}
    for name, layer in layers.items():
        with torch.no_grad(), watch(layer) as seen:
            output = layer(tokens)[..., :c]
        weights[name] = seen[""].weights()[0, 0]
        errors[name] = {target: max_error(output, values) for target, values in targets.items()}
        relative_errors[name] = relative_error(output, convolved)
    return BuiltMeasurement(weights, errors, relative_errors)


def claim_built(p: BuiltSettings, m: BuiltMeasurement) -> Claims:
    identity, permutation, pointwise, equal = m.errors.values()
    yield Thesis("built.identity", "Self-attention can be the identity layer.").true(
        at_most(1e-6, "largest error", identity["identity"]),
        twin=("of the layer set to permute", permutation["identity"]),
    )
    yield Thesis("built.permutation", "Self-attention can be any permutation of its tokens.").true(
        at_most(1e-6, "largest error", permutation["permutation"]),
        twin=("of the identity layer", identity["permutation"]),
    )
    yield Thesis(
        "built.pointwise", "Self-attention whose map is the identity is a pointwise linear layer, a 1×1 convolution."
    ).true(
        at_most(1e-6, "largest difference from a convolution of kernel 1", pointwise["convolution"]),
        twin=("with equal weights", equal["convolution"]),
    )
    yield Thesis("built.equal_weights", "Equal attention weights make self-attention a running linear layer.").false(
        at_most(1e-6, "relative distance from the pointwise linear layer", m.relative_errors["equal weights"]),
        twin=("of attention = identity", m.relative_errors["pointwise linear"]),
        truth="Equal weights give every position the same mean; the pointwise linear layer is attention = identity.",
        heard=True,
    )
    yield Thesis(
        "built.mean", "Equal attention weights give every position the same output, the mapped mean of the tokens."
    ).true(
        at_most(1e-6, "largest distance from the mean", equal["mean"]),
        twin=("of the pointwise linear layer", pointwise["mean"]),
    )


def draw_built(p: BuiltSettings, m: BuiltMeasurement) -> Drawing:
    meant = {name: "pointwise linear" if name == "equal weights" else name for name in m.errors}
    numbers = {f"largest error, {name}": m.errors[name][target] for name, target in meant.items()}
    return numbers, [heatmap(name, weights) for name, weights in m.weights.items()]


BUILT = Experiment(
    name="built",
    title="Layers built by setting weights",
    statement="By its positions alone one head can copy tokens, permute them, or map each by the same linear map.",
    formula="qᵢ = eᵢ, kⱼ = e_{i: σ(i) = j}: softmax(β·qᵢ·kⱼ) → δ_{j,σ(i)}; output = W_v·x_{σ(i)}",
    predict="All weights equal, W_v some matrix. What does position 3 get, and what position 5?",
    fails="The leak is (n − 1)·e^(−β): with β = 1/√d there is no identity. Without positions no layer permutes: "
    "attention is equivariant.",
    functions=(measure_built, claim_built, draw_built),
    helpers=(set_attention,),
)
