"""Many heads beside a grouped convolution: what is alike, and what isn't."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import bar_chart
from pellucid.layers import MultiHeadAttention
from pellucid.watching import watch


class MultiHeadSettings(NamedTuple):
    """Tokens, width, and heads or groups."""

    tokens: int = 6  # Number of tokens.
    width: int = 24  # Width of a token.
    heads: int = 4  # Number of heads, and of groups.
    seed: int = 0  # Of tokens, weights and the kernel.


class MultiHeadMeasurement(NamedTuple):
    reads: dict[str, float]  # how group 0 and head 0 change with the features that aren't theirs
    bends: dict[str, float]  # relative difference of f(2x) and 2·f(x)
    ranks: dict[int, int]  # of the map from all tokens to all outputs, by the number of heads
    mixtures: int  # independent ways in which tokens are mixed


def measure_multihead(p: MultiHeadSettings) -> MultiHeadMeasurement:
    """What head 0 reads, whether the layer is linear, and the rank of the map from all tokens to all outputs."""
    d = p.width // p.heads
    with seeded(p.seed), torch.no_grad():
        x = torch.randn(1, p.tokens, p.width, dtype=torch.float64)
        layer = MultiHeadAttention(p.width, p.heads, bias=False).double()
        kernel = torch.randn(p.width, d, 3, dtype=torch.float64)
        with watch(layer) as seen:
            layer(x)

    def convolve(x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x.mT, kernel, padding=1, groups=p.heads).mT

    other = x.clone()
    other[..., d:] += 1  # the features that don't belong to head 0, or to group 0
    with torch.no_grad():
        functions = {"a group": convolve, "a head": layer.v}
        reads = {name: max_error(f(other)[..., :d], f(x)[..., :d]) for name, f in functions.items()}
        layers = {"convolution": convolve, "attention": layer}
        bends = {name: relative_error(f(2 * x), 2 * f(x)) for name, f in layers.items()}

    # With its weights held still a layer is Σ_h P_h ⊗ M_h: tokens by P_h, features by M_h = W_v·W_o of the head.
    values = rearrange(layer.W_v.detach(), "i (h d) -> h i d", h=p.heads)
    features = values @ rearrange(layer.W_o.detach(), "(h d) o -> h d o", h=p.heads)
    whole = einsum(seen[""].weights()[0], features, "h q k, h i o -> h q o k i")
    ranks = {n: rank(rearrange(whole[:n].sum(0), "q o k i -> (q o) (k i)")) for n in range(1, p.heads + 1)}
    return MultiHeadMeasurement(reads, bends, ranks, rank(rearrange(whole.sum(0), "q o k i -> (q k) (o i)")))


def rank(matrix: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-10))


def claim_multihead(p: MultiHeadSettings, m: MultiHeadMeasurement) -> Claims:
    full, part = p.tokens * p.width, p.tokens * (p.width // p.heads)
    yield Thesis(
        "multihead.slices", "A head reads its own slice of the features, as a group of a grouped convolution does."
    ).false(
        at_most(0.0, "change of head 0's values when the other features change", m.reads["a head"]),
        twin=("of group 0's output", m.reads["a group"]),
        truth="A head reads all features; only what it writes is a slice, which W_o mixes again.",
    )
    yield Thesis("multihead.linear", "Attention is a linear layer, as convolution is.").false(
        at_most(1e-12, "relative difference of f(2x) and 2·f(x)", m.bends["attention"]),
        twin=("of the convolution", m.bends["convolution"]),
        truth="It is linear in its values alone: its weights come from the tokens. A kernel's are the same for all.",
    )
    yield Thesis(
        "multihead.rank",
        f"One of {p.heads} heads has a map of rank {part} at most; all together reach the full {full}.",
    ).true(at_least(full, "rank of all heads together", m.ranks[p.heads]), twin=("of one head", m.ranks[1]))
    between = "distance of the rank between token maps and feature maps from the number of heads"
    yield Thesis(
        "multihead.mixtures",
        "A layer mixes tokens in as many independent ways as it has heads, as a convolution in as many as its kernel "
        "has places.",
    ).true(at_most(0, between, abs(m.mixtures - p.heads)), twin=("from one", abs(m.mixtures - 1)))


def draw_multihead(p: MultiHeadSettings, m: MultiHeadMeasurement) -> Drawing:
    numbers = {f"rank of {n} head{'s' * (n > 1)}": r for n, r in m.ranks.items()} | {"independent mixtures": m.mixtures}
    ranks = {str(n): float(r) for n, r in m.ranks.items()}
    pairs = zip(("grouped convolution", "multi-head attention"), m.reads.values(), m.bends.values(), strict=True)
    alike = {name: {"reads other slices": reads, "f(2x) ≠ 2·f(x)": bends} for name, reads, bends in pairs}
    line = ("full rank", p.tokens * p.width)
    return numbers, [
        bar_chart("rank of the map, by the number of heads", "rank", {"": ranks}, line=line),
        bar_chart("what is alike, and what isn't", "measured", alike),
    ]


MULTIHEAD = Experiment(
    name="multihead",
    title="Heads beside groups",
    statement="Heads are to attention what the places of a kernel are to a convolution, not what its groups are.",
    formula="Y = Σ_h P_h·X·W_v^h·W_o^h: a sum of h Kronecker products P_h ⊗ M_h, each of rank at most tokens × d/h",
    predict="6 tokens of width 24, 4 heads: what is the rank of one head's map from all tokens to all outputs?",
    fails="The weights are held still here. As a function of the tokens attention has no rank: it isn't linear.",
    functions=(measure_multihead, claim_multihead, draw_multihead),
    helpers=(rank,),
)
