"""Every initial value, in one place."""

import torch
from torch import nn

from pellucid.layers import (
    FeedForward,
    LayerNorm,
    LayerScale,
    LearnedGrid,
    LearnedPositions,
    LearnedTokens,
    MultiHeadAttention,
    RMSNorm,
)


@torch.no_grad()
def initialise(model: nn.Module, *, zero_branches: bool = False) -> None:
    """Set every parameter of the model. One that no line below speaks of is an error, not a leftover.

    zero_branches: the last layer of every residual branch starts at zero, so that every block starts as the identity.
    """
    for name, module in model.named_modules():
        match module:
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Conv2d():
                nn.init.kaiming_normal_(module.weight, mode="fan_out" if module.groups == 1 else "fan_in")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Embedding():
                # TokenEmbedding multiplies by √width: the tokens enter with variance one, and tied logits do too.
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            case LayerNorm() | RMSNorm():
                nn.init.ones_(module.weight)
                if isinstance(module, LayerNorm) and module.bias is not None:
                    nn.init.zeros_(module.bias)
            case LearnedPositions() | LearnedGrid():
                nn.init.trunc_normal_(module.table, std=0.02)
            case LearnedTokens():
                nn.init.trunc_normal_(module.tokens, std=0.02)
            case LayerScale():
                nn.init.constant_(module.factor, module.initial)
            case _:
                forgotten = [key for key, _ in module.named_parameters(recurse=False)]
                if forgotten:
                    raise TypeError(f"init.py sets no initial value for {', '.join(forgotten)} of {name or model}")
    if zero_branches:
        for module in model.modules():
            if isinstance(module, MultiHeadAttention) and isinstance(module.out, nn.Linear):
                nn.init.zeros_(module.out.weight)
            elif isinstance(module, FeedForward):
                nn.init.zeros_(module.outer.weight)
