"""Pure functions: attention, its summaries without the map, masks and positions."""

from pellucid.ops import masks, positions
from pellucid.ops.attention import attend
from pellucid.ops.exact import attention_weights, scores
from pellucid.ops.positions import offset_rotation
from pellucid.ops.summaries import (
    TopK,
    apply,
    apply_transposed,
    column_mass,
    entropy,
    mean_distance,
    rollout,
    row,
    rows,
    topk,
    weights,
)

__all__ = [
    "TopK",
    "apply",
    "apply_transposed",
    "attend",
    "attention_weights",
    "column_mass",
    "entropy",
    "masks",
    "mean_distance",
    "offset_rotation",
    "positions",
    "rollout",
    "row",
    "rows",
    "scores",
    "topk",
    "weights",
]
