"""Layers that are set, not learned: self-attention as the identity, as a permutation, as a pointwise linear map."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import matrix
from pellucid.layers import MultiHeadAttention, watch


@dataclass(frozen=True)
class Built:
    """How many tokens of which content, and how sharply they are matched."""

    tokens: int = 8
    """Number of tokens."""
    content: int = 16
    """Features of a token, beside its position."""
    beta: float = 40.0
    """Inverse temperature: the leak is about e^(−β)."""
    seed: int = 0
    """Of tokens, the permutation and the linear map."""


def set_attention(
    p: Built, sources: Int[Tensor, " t"], linear: Float[Tensor, "content content"], beta: float
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


def built(p: Built) -> Result:
    """Set the weights, run the layer on random tokens, compare with what it should be."""
    n, c = p.tokens, p.content
    with seeded(p.seed):
        content, linear, shuffled = torch.randn(1, n, c), torch.randn(c, c) / c**0.5, torch.randperm(n)
    tokens = torch.cat([content, torch.eye(n)[None]], dim=-1)
    own, same = torch.arange(n), torch.eye(c)
    wanted = {
        "identity": (own, same, p.beta, content),
        "permutation": (shuffled, same, p.beta, content[:, shuffled]),
        "pointwise linear": (own, linear, p.beta, content @ linear.T),
        "equal weights": (own, linear, 0.0, content @ linear.T),
    }
    maps, found = {}, {}
    with torch.no_grad():
        for name, (sources, map_, beta, _) in wanted.items():
            layer = set_attention(p, sources, map_, beta)
            with watch(layer) as seen:
                found[name] = layer(tokens)[..., :c]
            maps[name] = seen[""].weights()[0, 0]
    errors = {name: worst(found[name], target) for name, (*_, target) in wanted.items()}
    convolved = F.conv1d(content.mT, linear[:, :, None]).mT
    mean = (content @ linear.T).mean(1, keepdim=True).expand(-1, n, -1)
    claims = (
        Claim(
            "built.identity",
            "Self-attention can be the identity layer.",
            "true",
            "≤",
            1e-6,
            holds=(Case("largest error", errors["identity"]),),
            twin=Case("of the layer set to permute", worst(found["permutation"], content)),
        ),
        Claim(
            "built.permutation",
            "Self-attention can be any permutation of its tokens.",
            "true",
            "≤",
            1e-6,
            holds=(Case("largest error", errors["permutation"]),),
            twin=Case("of the identity layer", worst(found["identity"], content[:, shuffled])),
        ),
        Claim(
            "built.pointwise",
            "Self-attention whose map is the identity is a pointwise linear layer, a 1×1 convolution.",
            "true",
            "≤",
            1e-6,
            holds=(
                Case("largest difference from a convolution of kernel 1", worst(found["pointwise linear"], convolved)),
            ),
            twin=Case("with equal weights", worst(found["equal weights"], convolved)),
        ),
        Claim(
            "built.equal_weights",
            "Equal attention weights make self-attention a running linear layer.",
            "false",
            "≤",
            1e-6,
            breaks=(
                Case("relative distance from the pointwise linear layer", relative(found["equal weights"], convolved)),
            ),
            twin=Case("of attention = identity", relative(found["pointwise linear"], convolved)),
            truth="Equal weights give every position the same mean; the pointwise linear layer is attention = "
            "identity.",
            heard=True,
        ),
        Claim(
            "built.mean",
            "Equal attention weights give every position the same output, the mapped mean of the tokens.",
            "true",
            "≤",
            1e-6,
            holds=(Case("largest distance from the mean", worst(found["equal weights"], mean)),),
            twin=Case("of the pointwise linear layer", worst(found["pointwise linear"], mean)),
        ),
    )
    panels = tuple(matrix(name, maps[name]) for name in wanted)
    return Result({f"largest error, {name}": error for name, error in errors.items()}, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="built",
        title="Layers built by setting weights",
        statement="By its positions alone one head can copy tokens, permute them, or map each by the same linear map.",
        formula="qᵢ = eᵢ, kⱼ = e_{i: σ(i) = j}: softmax(β·qᵢ·kⱼ) → δ_{j,σ(i)}; output = W_v·x_{σ(i)}",
        predict="All weights equal, W_v some matrix. What does position 3 get, and what position 5?",
        fails="The leak is (n − 1)·e^(−β): with β = 1/√d there is no identity. Without positions no layer permutes: "
        "attention is equivariant.",
        parameters=Built,
        run=built,
        shown=(set_attention,),
    ),
)
