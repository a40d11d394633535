"""Where a sentence was read off."""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from pellucid.decode.search import Decodable
from pellucid.watching import watch


@torch.no_grad()
def cross_attention(
    model: Decodable, context: Tensor, tokens: Tensor, start: int, context_mask: Tensor | None = None
) -> Tensor:
    """The weights (b n layers heads t s) with which the decoder read the context (b s d) to say the tokens (b n t).

    Read from one more pass over the finished sentences: it gives the weights of the steps that said them.

    >>> import torch
    >>> from pellucid.models import Transformer, TransformerConfig
    >>> config = TransformerConfig(12, width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1)
    >>> model = Transformer(config).eval()
    >>> context = model.encode(torch.tensor([[3, 4, 5]]))
    >>> cross_attention(model, context, torch.tensor([[[6, 7]]]), start=1).shape  # b n layers heads words context
    torch.Size([1, 1, 1, 2, 2, 3])
    """
    if tokens.ndim != 3 or tokens.shape[0] != context.shape[0]:
        raise ValueError(
            f"axis b (batch): tokens have shape {list(tokens.shape)}, expected (b n t) with b = {context.shape[0]}"
        )
    assert isinstance(model, nn.Module)
    b, n, t = tokens.shape
    before = torch.cat([tokens.new_full((b, n, 1), start), tokens[..., :-1]], dim=-1)
    how: dict[str, Any] = {} if context_mask is None else {"source_mask": context_mask}
    with watch(model) as seen:
        model.decode(before.flatten(0, 1), context, mask=None, causal=True, positions=None, cache=None, **how)
    layers = [record.weights() for name, record in seen.items() if name.endswith("cross_attention")]
    return rearrange(torch.stack(layers), "layers b h (n t) s -> b n layers h t s", n=n, t=t)
