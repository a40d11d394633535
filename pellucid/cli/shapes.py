"""pellucid shapes: run one attention, watched, and tell every shape in it."""

import torch

from pellucid.cli.verbs import Shapes
from pellucid.layers import MultiHeadAttention, watch
from pellucid.ops import masks
from pellucid.views.figures import attention_figure, check_path, save_figure

MOST_TOKENS = 1024  # a cell of the matrix would be smaller than a pixel


def shapes(asked: Shapes) -> None:
    """Print the table and, if asked for, draw the figure."""
    for name in ("tokens", "width", "heads"):
        if getattr(asked, name) < 1:
            raise ValueError(f"--{name} is {getattr(asked, name)}; expected one or more")
    if not 0 <= asked.head < asked.heads:
        raise ValueError(f"--head is {asked.head}; expected 0…{asked.heads - 1}")
    if asked.figure is not None:
        check_path(asked.figure)
        if asked.tokens > MOST_TOKENS:
            raise ValueError(f"a figure shows at most {MOST_TOKENS} tokens; got --tokens {asked.tokens}")
    torch.manual_seed(asked.seed)
    attention = MultiHeadAttention(
        asked.width, asked.heads, key_width=asked.key_width, value_width=asked.value_width
    ).eval()
    with torch.no_grad(), watch(attention) as seen:
        attention(torch.randn(1, asked.tokens, asked.width), causal=asked.causal)
    print(seen.table(columns=asked.columns))
    if asked.figure is not None:
        weights = seen[""].weights(heads=[asked.head])[0, 0]
        mask = masks.causal(asked.tokens) if asked.causal else None
        title = f"attention of head {asked.head}"
        save_figure(attention_figure(weights, mask, title=title, columns=asked.columns), asked.figure)
        print(f"\nfigure: {asked.figure}")
