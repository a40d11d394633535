"""Attention can't see the order of its tokens, until somebody tells it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, relative_error, seeded
from pellucid.lab.panels import bar_chart
from pellucid.layers import LearnedPositions, MultiHeadAttention, SinusoidalPositions


class OrderSettings(NamedTuple):
    """Tokens, width and heads."""

    tokens: int = 12  # Number of tokens.
    width: int = 32  # Width of a token.
    heads: int = 4  # Number of heads.
    seed: int = 0  # Of tokens, weights and the permutation.


class OrderMeasurement(NamedTuple):
    equivariance: dict[str, float]  # f(P·X) beside P·f(X), relative difference, for each kind of positions
    invariance: dict[str, float]  # after mean pooling
    unpooled: float  # f(P·X) beside f(X), without positions


def measure_order(p: OrderSettings) -> OrderMeasurement:
    """Permute the tokens before the layer, or its outputs after it: is it the same?"""
    with seeded(p.seed):
        x = torch.randn(1, p.tokens, p.width, dtype=torch.float64)
        shuffled = torch.randperm(p.tokens)
        layer = MultiHeadAttention(p.width, p.heads).double()
        turning = MultiHeadAttention(p.width, p.heads, rotary=10_000.0).double()
        learned = LearnedPositions(p.tokens, p.width).double()
        torch.nn.init.normal_(learned.table)
    fixed = SinusoidalPositions(p.width)
    layers: dict[str, Callable[[Tensor], Tensor]] = {
        "no positions": layer,
        "sinusoidal": lambda x: layer(fixed(x)),
        "learned": lambda x: layer(learned(x)),
        "rotary": turning,
        "no positions, causal": lambda x: layer(x, causal=True),
    }
    with torch.no_grad():
        return OrderMeasurement(
            {name: relative_error(f(x[:, shuffled]), f(x)[:, shuffled]) for name, f in layers.items()},
            {name: relative_error(f(x[:, shuffled]).mean(1), f(x).mean(1)) for name, f in layers.items()},
            relative_error(layer(x[:, shuffled]), layer(x)),
        )


def claim_order(p: OrderSettings, m: OrderMeasurement) -> Claims:
    nothing, sinusoidal, learned, rotary, _ = m.equivariance.values()
    yield Thesis(
        "order.equivariant",
        "Self-attention without positions is equivariant: permuted tokens give the permuted output.",
    ).true(at_most(1e-12, "relative difference", nothing), twin=("with sinusoidal positions", sinusoidal))
    yield Thesis(
        "order.positions_break_it", "Sinusoidal, learned and rotary positions each take the equivariance away."
    ).true(
        at_least(0.01, "smallest relative difference of the three", min(sinusoidal, learned, rotary)),
        twin=("without positions", nothing),
    )
    pooled, causal = m.invariance["no positions"], m.invariance["no positions, causal"]
    yield Thesis(
        "order.invariant",
        "After mean pooling, the output of attention without positions doesn't depend on the order at all.",
    ).true(at_most(1e-12, "relative difference", pooled), twin=("without pooling", m.unpooled))
    yield Thesis(
        "order.blind", "Without a positional encoding, self-attention can't tell the order of its tokens."
    ).conditional(
        at_most(1e-12, "every token sees every other: relative difference after pooling", pooled),
        ("causal mask, no positions: relative difference after pooling", causal),
        truth="True without a mask. A causal mask tells it: the first token sees one key, the second two.",
    )


def draw_order(p: OrderSettings, m: OrderMeasurement) -> Drawing:
    numbers = {f"{name}: before pooling": value for name, value in m.equivariance.items()}
    numbers |= {f"{name}: pooled": value for name, value in m.invariance.items()}
    bars = {"before pooling": m.equivariance, "after mean pooling": m.invariance}
    return numbers, [bar_chart("what a permutation changes", "relative difference", bars, log=True)]


ORDER = Experiment(
    name="order",
    title="Permutations",
    statement="Attention without positions treats its tokens as a set; positions, and causal masks, make it a "
    "sequence.",
    formula="f(P·X) = P·f(X) for every permutation P; mean(P·f(X)) = mean(f(X))",
    predict="Which of these change when tokens are shuffled: no positions, sinusoidal, learned, rotary, a causal mask?",
    fails="Rotary positions of tokens that are all alike change nothing: there is nothing to put in order.",
    functions=(measure_order, claim_order, draw_order),
)
