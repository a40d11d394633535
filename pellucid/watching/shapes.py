"""Every intermediate of an attention, with its equation and its shape, in row or in column notation."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pellucid.layers.attention import MultiHeadAttention
from pellucid.layers.cache import KeysValues
from pellucid.ops.rules import Rule
from pellucid.watching.record import Record


@dataclass(frozen=True)
class ShapeLine:
    """One intermediate: `where` the attention is, its name, its equation, the legend of its axes and its shape."""

    where: str
    name: str
    equation: str
    axes: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ShapeTable:
    """Prints as a table; `lines` holds the same as data."""

    lines: tuple[ShapeLine, ...]

    def __iter__(self):
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    def __str__(self) -> str:
        cells = [("name", "equation", "axes", "shape")]
        cells += [(line.name, line.equation, line.axes, str(list(line.shape))) for line in self.lines]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        text = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in cells]
        blocks, previous = [text[0]], None
        for line, row in zip(self.lines, text[1:], strict=True):
            if line.where and line.where != previous:
                blocks.append(f"\n{line.where}")
            previous = line.where
            blocks.append(row)
        return "\n".join(blocks)


@dataclass(frozen=True)
class TokenShapes:
    """Shapes of the tokens that a module was called with; crossing: keys are made from other tokens than queries."""

    query: tuple[int, ...]
    context: tuple[int, ...] | None
    crossing: bool

    @classmethod
    def among(cls, inputs: list[Any]) -> "TokenShapes | None":
        """The tokens among a module's inputs, where they can be told."""
        tokens = [
            x for x in inputs if isinstance(x, Tensor) and x.ndim == 3 and x.is_floating_point() and not x.is_nested
        ]
        if not tokens:
            return None
        context = tuple(tokens[1].shape) if len(tokens) > 1 and tokens[1] is not tokens[0] else None
        return cls(
            tuple(tokens[0].shape), context, context is not None or any(isinstance(x, KeysValues) for x in inputs)
        )


def list_shapes(
    record: Record, module: nn.Module, tokens: TokenShapes | None, *, columns: bool = False
) -> list[ShapeLine]:
    """The lines of one attention. Columns: tokens are columns, Q = W·X, and a batch of one is not written."""
    b, h, n_q, d = record.q.shape
    g, n_k, e = record.k.shape[1], record.k.shape[2], record.v.shape[3]
    ours = module if isinstance(module, MultiHeadAttention) else None
    crossing = tokens is not None and tokens.crossing
    source = "C" if crossing else "X"
    beta = "1/√" + str(d) if math.isclose(record.beta, d**-0.5) else f"{record.beta:.4g}"
    lines: list[ShapeLine] = []

    def add(name: str, row: str, column: str, axes: str, shape: tuple[int, ...], batched: bool = True) -> None:
        """axes and shape are given for rows; in columns the token axis goes last and the feature axis before it."""
        if columns:
            names = axes.split()
            order = sorted(range(len(names)), key=lambda i: _COLUMN_ORDER.index(names[i]))
            axes, shape = " ".join(names[i] for i in order), tuple(shape[i] for i in order)
            if batched and shape[0] == 1:
                axes, shape = axes.removeprefix("b "), shape[1:]
        lines.append(ShapeLine(record.name, name, column if columns else row, axes, shape))

    batch_first = True
    if tokens is not None:
        batch_first = tokens.query[:2] == (b, n_q)
        add("tokens", "X", "X", "b t d" if batch_first else "t b d", tokens.query)
        if tokens.context is not None:
            add("context", "C", "C", "b s d" if batch_first else "s b d", tokens.context)
    if ours is not None:
        for name, weight in (("W_q", ours.W_q), ("W_k", ours.W_k), ("W_v", ours.W_v)):
            add(name, "learned", "learned", "in out", tuple(weight.shape), batched=False)
    key_axis = "s" if crossing else "t"
    parts = (("queries", "Q", "X", h, n_q, d, "t"), ("keys", "K", source, g, n_k, d, key_axis))
    parts += (("values", "V", source, g, n_k, e, key_axis),)
    for name, letter, origin, heads, n, width, axis in parts:
        projected = f"{letter} = {origin}·W_{letter.lower()}", f"{letter} = W^{letter}·{origin}"
        add(name, *projected, f"b {axis} hd", (b, n, heads * width))
        add(f"{name} per head", f"{letter}_h", f"{letter}_h", f"b {axis} h d", (b, n, heads, width))
    add("scores", f"S_h = β·Q_h·K_hᵀ, β = {beta}", f"S_h = β·K_hᵀ·Q_h, β = {beta}", "b h q k", (b, h, n_q, n_k))
    if record.causal:
        add("mask", "M: k ≤ q", "M: k ≤ q", "q k", (n_q, n_k), batched=False)
    if isinstance(record.mask, Rule):
        add("rule", repr(record.mask), repr(record.mask), "b h q k", (b, h, n_q, n_k))
    elif record.mask is not None:
        legend = " ".join("bhqk"[4 - record.mask.ndim :])
        add("mask", "M", "M", legend, tuple(record.mask.shape), batched=False)
    masked = record.causal or record.mask is not None
    softmax = "softmax(S_h where M)" if masked else "softmax(S_h)"
    add("attention", f"A_h = {softmax}, over k", f"A_h = {softmax}, over k", "b h q k", (b, h, n_q, n_k))
    add("mixed heads", "Z_h = A_h·V_h", "Z_h = V_h·A_h", "b t h d", (b, n_q, h, e))
    add("joined heads", "Z = [Z_1 … Z_h]", "Z = [Z_1; …; Z_h]", "b t hd", (b, n_q, h * e))
    if ours is not None and isinstance(ours.out, nn.Linear):
        add("W_o", "learned", "learned", "in out", tuple(ours.W_o.shape), batched=False)
    out = ours.width if ours is not None else getattr(module, "embed_dim", None)  # as nn.MultiheadAttention says it
    if isinstance(out, int):
        add("output", "Y = Z·W_o", "Y = W^O·Z", "b t d", (b, n_q, out))
    return lines


# In column notation: batch, heads, then features above tokens; matrices map from the right (out × in); the score
# matrix is keys × queries.
_COLUMN_ORDER = ("b", "h", "out", "in", "d", "hd", "k", "q", "t", "s")
