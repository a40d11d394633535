"""pellucid shapes: run one attention, watched, and tell every shape in it."""

import torch

from pellucid.cli.verbs import ShapesOptions
from pellucid.layers import MultiHeadAttention
from pellucid.ops import masks
from pellucid.views.figures import attention_figure, check_path, save_figure
from pellucid.watching import watch

MOST_TOKENS = 1024  # a cell of the matrix would be smaller than a pixel


def shapes(options: ShapesOptions) -> None:
    """Print the table and, if wanted, draw the figure."""
    for name in ("tokens", "width", "heads"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is {getattr(options, name)}; expected one or more")
    if not 0 <= options.head < options.heads:
        raise ValueError(f"--head is {options.head}; expected 0…{options.heads - 1}")
    if options.figure is not None:
        check_path(options.figure)
        if options.tokens > MOST_TOKENS:
            raise ValueError(f"a figure shows at most {MOST_TOKENS} tokens; got --tokens {options.tokens}")
    torch.manual_seed(options.seed)
    attention = MultiHeadAttention(
        options.width, options.heads, key_width=options.key_width, value_width=options.value_width
    ).eval()
    with torch.no_grad(), watch(attention) as seen:
        attention(torch.randn(1, options.tokens, options.width), causal=options.causal)
    print(seen.table(columns=options.columns))
    if options.figure is not None:
        weights = seen[""].weights(heads=[options.head])[0, 0]
        mask = masks.causal(options.tokens) if options.causal else None
        title = f"attention of head {options.head}"
        save_figure(attention_figure(weights, mask, title=title, columns=options.columns), options.figure)
        print(f"\nfigure: {options.figure}")
