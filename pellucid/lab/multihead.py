"""Many heads beside a grouped convolution: what is alike, and what isn't."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import Bars
from pellucid.layers import MultiHeadAttention, watch


@dataclass(frozen=True)
class MultiHead:
    """Tokens, width, and heads or groups."""

    tokens: int = 6
    """Number of tokens."""
    width: int = 24
    """Width of a token."""
    heads: int = 4
    """Number of heads, and of groups."""
    seed: int = 0
    """Of tokens, weights and the kernel."""


def multihead(p: MultiHead) -> Result:
    """What head 0 reads, whether the layer is linear, and the rank of the map from all tokens to all outputs."""
    d = p.width // p.heads
    with seeded(p.seed), torch.no_grad():
        x = torch.randn(1, p.tokens, p.width, dtype=torch.float64)
        layer = MultiHeadAttention(p.width, p.heads, bias=False).double()
        kernel = torch.randn(p.width, d, 3, dtype=torch.float64)
        with watch(layer) as seen:
            layer(x)
    weights = seen[""].weights()[0]  # h q k

    def convolved(x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x.mT, kernel, padding=1, groups=p.heads).mT

    other = x.clone()
    other[..., d:] += 1  # the features that don't belong to head 0, or to group 0
    with torch.no_grad():
        reads = {
            "a group": worst(convolved(other)[..., :d], convolved(x)[..., :d]),
            "a head": worst(layer.v(other)[..., :d], layer.v(x)[..., :d]),
        }
        bent = {
            "convolution": relative(convolved(2 * x), 2 * convolved(x)),
            "attention": relative(layer(2 * x), 2 * layer(x)),
        }

    # With its weights held still a layer is Σ_h P_h ⊗ M_h: tokens by P_h, features by M_h = W_v·W_o of the head.
    values = rearrange(layer.W_v.detach(), "i (h d) -> h i d", h=p.heads)
    features = values @ rearrange(layer.W_o.detach(), "(h d) o -> h d o", h=p.heads)
    whole = einsum(weights, features, "h q k, h i o -> h q o k i")
    ranks = {n: rank(rearrange(whole[:n].sum(0), "q o k i -> (q o) (k i)")) for n in range(1, p.heads + 1)}
    mixtures = rank(rearrange(whole.sum(0), "q o k i -> (q k) (o i)"))
    full = p.tokens * p.width
    claims = (
        Claim(
            "multihead.slices",
            "A head reads its own slice of the features, as a group of a grouped convolution does.",
            "false",
            "≤",
            0.0,
            breaks=(Case("change of head 0's values when the other features change", reads["a head"]),),
            twin=Case("of group 0's output", reads["a group"]),
            truth="A head reads all features; only what it writes is a slice, which W_o mixes again.",
        ),
        Claim(
            "multihead.linear",
            "Attention is a linear layer, as convolution is.",
            "false",
            "≤",
            1e-12,
            breaks=(Case("relative difference of f(2x) and 2·f(x)", bent["attention"]),),
            twin=Case("of the convolution", bent["convolution"]),
            truth="It is linear in its values alone: its weights come from the tokens. A kernel's are the same for "
            "all.",
        ),
        Claim(
            "multihead.rank",
            f"One of {p.heads} heads has a map of rank {p.tokens * d} at most; all together reach the full {full}.",
            "true",
            "≥",
            full,
            holds=(Case("rank of all heads together", ranks[p.heads]),),
            twin=Case("of one head", ranks[1]),
        ),
        Claim(
            "multihead.mixtures",
            "A layer mixes tokens in as many independent ways as it has heads, as a convolution in as many as its "
            "kernel "
            "has places.",
            "true",
            "≤",
            0,
            holds=(
                Case(
                    "distance of the rank between token maps and feature maps from the number of heads",
                    abs(mixtures - p.heads),
                ),
            ),
            twin=Case("from one", abs(mixtures - 1)),
        ),
    )
    panels = (
        Bars(
            "rank of the map, by the number of heads",
            "rank",
            tuple(map(str, ranks)),
            (("", tuple(map(float, ranks.values()))),),
            line=("full rank", full),
        ),
        Bars(
            "what is alike, and what isn't",
            "measured",
            ("reads other slices", "f(2x) ≠ 2·f(x)"),
            (
                ("grouped convolution", (reads["a group"], bent["convolution"])),
                ("multi-head attention", (reads["a head"], bent["attention"])),
            ),
        ),
    )
    numbers = {f"rank of {n} head{'s' * (n > 1)}": r for n, r in ranks.items()} | {"independent mixtures": mixtures}
    return Result(numbers, panels, claims)


def rank(matrix: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-10))


EXPERIMENTS = (
    Experiment(
        name="multihead",
        title="Heads beside groups",
        statement="Heads are to attention what the places of a kernel are to a convolution, not what its groups are.",
        formula="Y = Σ_h P_h·X·W_v^h·W_o^h: a sum of h Kronecker products P_h ⊗ M_h, each of rank at most tokens × d/h",
        predict="6 tokens of width 24, 4 heads: what is the rank of one head's map from all tokens to all outputs?",
        fails="The weights are held still here. As a function of the tokens attention has no rank: it isn't linear.",
        parameters=MultiHead,
        run=multihead,
        shown=(rank,),
    ),
)
