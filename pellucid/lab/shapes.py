"""Every intermediate of attention with its shape, with tokens as rows and with tokens as columns."""

import math
from dataclasses import dataclass

import torch

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded
from pellucid.lab.panels import matrix
from pellucid.layers import MultiHeadAttention, watch
from pellucid.ops import attend


@dataclass(frozen=True)
class Shapes:
    """Tokens, width and heads of the layer; the widths of the single head."""

    tokens: int = 5
    """Number of tokens."""
    column_tokens: int = 6
    """Number of tokens where they are written as columns."""
    width: int = 768
    """Width of a token."""
    heads: int = 12
    """Number of heads."""
    single_width: int = 256
    """Width of the single head's tokens and values."""
    key_width: int = 64
    """Width of the single head's queries and keys."""
    seed: int = 0
    """Of tokens and weights."""


def shapes(p: Shapes) -> Result:
    """Run both layers, watched; then attention in column notation, as it is and as it is often written."""
    with seeded(p.seed), torch.no_grad():
        layer = MultiHeadAttention(p.width, p.heads)
        single = MultiHeadAttention(p.single_width, 1, key_width=p.key_width, value_width=p.single_width, out=False)
        with watch(layer) as seen:
            layer(torch.randn(1, p.tokens, p.width))
        lines = [*seen.table(), *seen.table(columns=True)]
        q, k, v = torch.randn(3, p.column_tokens, p.width, dtype=torch.float64)
    head = p.width // p.heads
    said = {
        "tokens": (1, p.tokens, p.width),
        "queries per head": (1, p.tokens, p.heads, head),
        "attention": (1, p.heads, p.tokens, p.tokens),
        "mixed heads": (1, p.tokens, p.heads, head),
        "output": (1, p.tokens, p.width),
    }
    rows = {line.name: line.shape for line in seen.table()}
    weights = seen[""].weights().double()

    truth = attend(q[None, None], k[None, None], v[None, None])[0, 0]
    Q, K, V, beta = q.T, k.T, v.T, 1 / math.sqrt(p.width)  # tokens as columns
    P = (beta * K.T @ Q).softmax(0)  # keys × queries: a distribution over keys in every column
    features = (beta * Q @ K.T).softmax(-1)  # width × width
    changed = V.clone()
    changed[:, 0] += 1
    try:
        attend(q[None, None, :, : p.key_width], k[None, None, :, : p.single_width], v[None, None])
        refused = "it ran"
    except ValueError as error:
        refused = str(error)

    numbers = {
        f"{'columns' if i >= len(lines) // 2 else 'rows'}: {x.name}": str(list(x.shape)) for i, x in enumerate(lines)
    }
    numbers |= {"single head: W_q": str(list(single.W_q.shape)), "single head: W_k": str(list(single.W_k.shape))}
    numbers |= {
        "single head: W_v": str(list(single.W_v.shape)),
        "KᵀQ": str(list(P.shape)),
        "QKᵀ": str(list(features.shape)),
    }
    claims = (
        Claim(
            "shapes.columns",
            f"With tokens as columns, QKᵀ is {p.width}×{p.width}, and softmax(QKᵀ/√d)·V is attention.",
            "false",
            "≤",
            1e-12,
            breaks=(Case("relative distance of softmax(QKᵀ/√d)·V from attention", relative(features @ V, truth.T)),),
            twin=Case("relative distance of V·softmax(KᵀQ/√d)", relative(V @ P, truth.T)),
            truth=f"The score matrix is KᵀQ, {p.column_tokens}×{p.column_tokens}; the output is V·softmax(KᵀQ/√d), "
            f"{p.width}×{p.column_tokens}.",
            heard=True,
        ),
        Claim(
            "shapes.features",
            f"A {p.width}×{p.width} matrix on the left of V mixes features, not tokens.",
            "true",
            "≤",
            0.0,
            holds=(
                Case(
                    "change of other tokens' outputs when token 0's values change",
                    (features @ changed - features @ V)[:, 1:].abs().max().item(),
                ),
            ),
            twin=Case("the same for V·P, which mixes tokens", (changed @ P - V @ P)[:, 1:].abs().max().item()),
        ),
        Claim(
            "shapes.single_head",
            f"In a single head with keys of {p.key_width} and values of {p.single_width}, "
            f"W_v is {p.single_width}×{p.key_width} and W_k is {p.single_width}×{p.single_width}.",
            "false",
            "≤",
            0.0,
            breaks=(
                Case(
                    "columns by which the layer's W_k and W_v differ from these",
                    abs(single.W_v.shape[1] - p.key_width) + abs(single.W_k.shape[1] - p.single_width),
                ),
            ),
            twin=Case(
                "the same with the two exchanged",
                abs(single.W_k.shape[1] - p.key_width) + abs(single.W_v.shape[1] - p.single_width),
            ),
            truth=f"It is the other way round: W_q and W_k are {p.single_width}×{p.key_width}, W_v is "
            f"{p.single_width}×{p.single_width}. Otherwise there is no score ({refused}).",
            heard=True,
        ),
        Claim(
            "shapes.multi_head",
            f"{p.tokens} tokens × {p.width} and {p.heads} heads give queries {list(said['queries per head'])}, "
            f"attention {list(said['attention'])} and an output {list(said['output'])}.",
            "true",
            "≤",
            0.0,
            holds=(Case("intermediates of another shape", sum(rows[name] != shape for name, shape in said.items())),),
            twin=Case(
                "of another shape than with one head fewer",
                sum(
                    rows[name] != tuple(p.heads - 1 if n == p.heads else n for n in shape)
                    for name, shape in said.items()
                ),
            ),
        ),
        Claim(
            "shapes.rows_sum_to_one",
            "Every row of the attention map sums to one.",
            "true",
            "≤",
            1e-6,
            holds=(Case("largest distance of a row's sum from one", (weights.sum(-1) - 1).abs().max().item()),),
            twin=Case("of a column's sum from one", (weights.sum(-2) - 1).abs().max().item()),
        ),
    )
    panels = (
        matrix("attention of head 0, rows are queries", weights[0, 0]),
        matrix("softmax(KᵀQ/√d), columns are queries", P, rows="key", columns="query"),
    )
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="shapes",
        title="Shapes, in rows and in columns",
        statement="Attention compares tokens with tokens: its map is tokens × tokens, whichever way tokens are "
        "written.",
        formula="rows: softmax(β·Q·Kᵀ)·V with Q = X·W_q; columns: V·softmax(β·Kᵀ·Q) with Q = W^Q·X",
        predict="X is 768×6, one token in each column. Which of QKᵀ and KᵀQ is the score matrix, and how large is it?",
        fails="A width × width matrix is not meaningless: it mixes features, as channel attention does. It is not "
        "attention over tokens.",
        parameters=Shapes,
        run=shapes,
    ),
)
