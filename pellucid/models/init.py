"""Every initial value, in one place."""

import torch
from torch import nn

from pellucid.layers import LayerNorm, LearnedGrid, LearnedPositions, LearnedTokens, RMSNorm


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Set every parameter of the model. One that no line below speaks of is an error, not a leftover."""
    for name, module in model.named_modules():
        match module:
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case nn.Conv2d():
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
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
            case _:
                forgotten = [key for key, _ in module.named_parameters(recurse=False)]
                if forgotten:
                    raise TypeError(f"init.py sets no initial value for {', '.join(forgotten)} of {name or model}")
