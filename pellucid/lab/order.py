"""Attention can't see the order of its tokens, until somebody tells it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded
from pellucid.lab.panels import Bars
from pellucid.layers import LearnedPositions, MultiHeadAttention, SinusoidalPositions


@dataclass(frozen=True)
class Order:
    """Tokens, width and heads."""

    tokens: int = 12
    """Number of tokens."""
    width: int = 32
    """Width of a token."""
    heads: int = 4
    """Number of heads."""
    seed: int = 0
    """Of tokens, weights and the permutation."""


def order(p: Order) -> Result:
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
        lost = {name: relative(f(x[:, shuffled]), f(x)[:, shuffled]) for name, f in layers.items()}
        pooled = {name: relative(f(x[:, shuffled]).mean(1), f(x).mean(1)) for name, f in layers.items()}
        unpooled = relative(layer(x[:, shuffled]), layer(x))
    told = min(lost[name] for name in ("sinusoidal", "learned", "rotary"))
    claims = (
        Claim(
            "order.equivariant",
            "Self-attention without positions is equivariant: permuted tokens give the permuted output.",
            "true",
            "≤",
            1e-12,
            holds=(Case("relative difference", lost["no positions"]),),
            twin=Case("with sinusoidal positions", lost["sinusoidal"]),
        ),
        Claim(
            "order.positions_break_it",
            "Sinusoidal, learned and rotary positions each take the equivariance away.",
            "true",
            "≥",
            0.01,
            holds=(Case("smallest relative difference of the three", told),),
            twin=Case("without positions", lost["no positions"]),
        ),
        Claim(
            "order.invariant",
            "After mean pooling, the output of attention without positions doesn't depend on the order at all.",
            "true",
            "≤",
            1e-12,
            holds=(Case("relative difference", pooled["no positions"]),),
            twin=Case("without pooling", unpooled),
        ),
        Claim(
            "order.blind",
            "Without a positional encoding, self-attention can't tell the order of its tokens.",
            "conditional",
            "≤",
            1e-12,
            holds=(Case("every token sees every other: relative difference after pooling", pooled["no positions"]),),
            breaks=(
                Case("causal mask, no positions: relative difference after pooling", pooled["no positions, causal"]),
            ),
            truth="True without a mask. A causal mask tells it: the first token sees one key, the second two.",
        ),
    )
    bars = (("before pooling", tuple(lost.values())), ("after mean pooling", tuple(pooled.values())))
    panels = (Bars("what a permutation changes", "relative difference", tuple(lost), bars, log=True),)
    numbers = {
        f"{name}: {when}": v
        for when, found in (("before pooling", lost), ("pooled", pooled))
        for name, v in found.items()
    }
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="order",
        title="Permutations",
        statement="Attention without positions treats its tokens as a set; positions, and causal masks, make it a "
        "sequence.",
        formula="f(P·X) = P·f(X) for every permutation P; mean(P·f(X)) = mean(f(X))",
        predict="Which of these change when tokens are shuffled: no positions, sinusoidal, learned, rotary, a causal "
        "mask?",
        fails="Rotary positions of tokens that are all alike change nothing: there is nothing to put in order.",
        parameters=Order,
        run=order,
    ),
)
