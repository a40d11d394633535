"""Every intermediate of attention with its shape, with tokens as rows and with tokens as columns."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, relative_error, seeded
from pellucid.lab.panels import heatmap
from pellucid.layers import MultiHeadAttention
from pellucid.ops import attend
from pellucid.watching import watch

Shape = tuple[int, ...]


class ShapesSettings(NamedTuple):
    """Tokens, width and heads of the layer; the widths of the single head."""

    tokens: int = 5  # Number of tokens.
    column_tokens: int = 6  # Number of tokens where they are written as columns.
    width: int = 768  # Width of a token.
    heads: int = 12  # Number of heads.
    single_width: int = 256  # Width of the single head's tokens and values.
    key_width: int = 64  # Width of the single head's queries and keys.
    seed: int = 0  # Of tokens and weights.


class ShapesMeasurement(NamedTuple):
    rows: dict[str, Shape]  # of every intermediate, tokens as rows
    columns: dict[str, Shape]  # tokens as columns
    single_head: dict[str, Shape]
    weights: Tensor
    column_weights: dict[str, Tensor]  # softmax(KᵀQ/√d), the map, beside softmax(QKᵀ/√d)
    errors: dict[str, float]  # relative, of what each of the two gives
    mixing: dict[str, float]  # what other tokens get of a change of token 0's values
    refusal: str  # what attention says to queries and keys of different widths


def measure_shapes(p: ShapesSettings) -> ShapesMeasurement:
    """Run both layers, watched; then attention in column notation, as it is and as it is often written."""
    with seeded(p.seed), torch.no_grad():
        layer = MultiHeadAttention(p.width, p.heads)
        single = MultiHeadAttention(p.single_width, 1, key_width=p.key_width, value_width=p.single_width, out=False)
        with watch(layer) as seen:
            layer(torch.randn(1, p.tokens, p.width))
        q, k, v = torch.randn(3, p.column_tokens, p.width, dtype=torch.float64)
    truth = attend(q[None, None], k[None, None], v[None, None])[0, 0].T
    Q, K, V, beta = q.T, k.T, v.T, 1 / math.sqrt(p.width)  # tokens as columns
    P = (beta * K.T @ Q).softmax(0)  # keys × queries: a distribution over keys in every column
    F = (beta * Q @ K.T).softmax(-1)  # width × width
    changed = V.clone()
    changed[:, 0] += 1
    try:
        attend(q[None, None, :, : p.key_width], k[None, None, :, : p.single_width], v[None, None])
        refusal = "it ran"
    except ValueError as error:
        refusal = str(error)
    return ShapesMeasurement(
        rows={line.name: line.shape for line in seen.table()},
        columns={line.name: line.shape for line in seen.table(columns=True)},
        single_head={name: tuple(getattr(single, name).shape) for name in ("W_q", "W_k", "W_v")},
        weights=seen[""].weights().double(),
        column_weights={"KᵀQ": P, "QKᵀ": F},
        errors={"KᵀQ": relative_error(V @ P, truth), "QKᵀ": relative_error(F @ V, truth)},
        mixing={
            "KᵀQ": (changed @ P - V @ P)[:, 1:].abs().max().item(),
            "QKᵀ": (F @ changed - F @ V)[:, 1:].abs().max().item(),
        },
        refusal=refusal,
    )


def claim_shapes(p: ShapesSettings, m: ShapesMeasurement) -> Claims:
    n, w, k = p.column_tokens, p.single_width, p.key_width
    yield Thesis(
        "shapes.columns", f"With tokens as columns, QKᵀ is {p.width}×{p.width}, and softmax(QKᵀ/√d)·V is attention."
    ).false(
        at_most(1e-12, "relative distance of softmax(QKᵀ/√d)·V from attention", m.errors["QKᵀ"]),
        twin=("relative distance of V·softmax(KᵀQ/√d)", m.errors["KᵀQ"]),
        truth=f"The score matrix is KᵀQ, {n}×{n}; the output is V·softmax(KᵀQ/√d), {p.width}×{n}.",
        heard=True,
    )
    yield Thesis("shapes.features", f"A {p.width}×{p.width} matrix on the left of V mixes features, not tokens.").true(
        at_most(0.0, "change of other tokens' outputs when token 0's values change", m.mixing["QKᵀ"]),
        twin=("the same for V·P, which mixes tokens", m.mixing["KᵀQ"]),
    )
    k_width, v_width = m.single_head["W_k"][1], m.single_head["W_v"][1]
    yield Thesis(
        "shapes.single_head", f"In a single head with keys of {k} and values of {w}, W_v is {w}×{k} and W_k is {w}×{w}."
    ).false(
        at_most(0.0, "columns by which the layer's W_k and W_v differ from these", abs(v_width - k) + abs(k_width - w)),
        twin=("the same with the two exchanged", abs(k_width - k) + abs(v_width - w)),
        truth=f"It is the other way round: W_q and W_k are {w}×{k}, W_v is {w}×{w}. Otherwise there is no score "
        f"({m.refusal}).",
        heard=True,
    )
    tokens, map_ = (1, p.tokens, p.width), (1, p.heads, p.tokens, p.tokens)
    split = (1, p.tokens, p.heads, p.width // p.heads)
    names = ("tokens", "queries per head", "attention", "mixed heads", "output")
    shapes = dict(zip(names, (tokens, split, map_, split, tokens), strict=True))
    fewer = {name: tuple(p.heads - 1 if n == p.heads else n for n in shape) for name, shape in shapes.items()}
    yield Thesis(
        "shapes.multi_head",
        f"{p.tokens} tokens × {p.width} and {p.heads} heads give queries {list(split)}, attention {list(map_)} and an "
        f"output {list(tokens)}.",
    ).true(
        at_most(0.0, "intermediates of another shape", sum(m.rows[name] != shapes[name] for name in names)),
        twin=("of another shape than with one head fewer", sum(m.rows[name] != fewer[name] for name in names)),
    )
    yield Thesis("shapes.rows_sum_to_one", "Every row of the attention map sums to one.").true(
        at_most(1e-6, "largest distance of a row's sum from one", (m.weights.sum(-1) - 1).abs().max().item()),
        twin=("of a column's sum from one", (m.weights.sum(-2) - 1).abs().max().item()),
    )


def draw_shapes(p: ShapesSettings, m: ShapesMeasurement) -> Drawing:
    groups = {"rows": m.rows, "columns": m.columns, "single head": m.single_head}
    numbers = {f"{group}: {name}": str(list(s)) for group, shapes in groups.items() for name, s in shapes.items()}
    return numbers | {name: str(list(weights.shape)) for name, weights in m.column_weights.items()}, [
        heatmap("attention of head 0, rows are queries", m.weights[0, 0]),
        heatmap("softmax(KᵀQ/√d), columns are queries", m.column_weights["KᵀQ"], rows="key", columns="query"),
    ]


SHAPES = Experiment(
    name="shapes",
    title="Shapes, in rows and in columns",
    statement="Attention compares tokens with tokens: its map is tokens × tokens, whichever way tokens are written.",
    formula="rows: softmax(β·Q·Kᵀ)·V with Q = X·W_q; columns: V·softmax(β·Kᵀ·Q) with Q = W^Q·X",
    predict="X is 768×6, one token in each column. Which of QKᵀ and KᵀQ is the score matrix, and how large is it?",
    fails="A width × width matrix is not meaningless: it mixes features, as channel attention does. It is not "
    "attention over tokens.",
    functions=(measure_shapes, claim_shapes, draw_shapes),
    bounds={"column_tokens": (2, math.inf)},
)
