"""The feed-forward half of a block: each token by itself, through a wider hidden layer."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.layers.linear import Linear

Activation = Literal["relu", "gelu", "quick_gelu", "swiglu"]


class FeedForward(nn.Module):
    """inner → activation → outer. SwiGLU (Shazeer 2020) multiplies the inner layer by a SiLU gate of its own.

    "quick_gelu" is x·σ(1.702·x), with which OpenAI trained CLIP.

    >>> import torch
    >>> FeedForward(8, 32)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        if activation not in get_args(Activation):
            *others, last = map(repr, get_args(Activation))
            raise ValueError(f"activation is {activation!r}; expected {', '.join(others)} or {last}")
        hidden = 4 * width if hidden is None else hidden
        self.activation = activation
        self.inner = Linear(width, hidden, bias=bias)
        self.gate = Linear(width, hidden, bias=bias) if activation == "swiglu" else None
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.outer = Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if self.gate is not None:
            h = F.silu(self.gate(x)) * self.inner(x)
        elif self.activation == "relu":
            h = F.relu(self.inner(x))
        elif self.activation == "quick_gelu":
            h = self.inner(x)
            h = h * torch.sigmoid(1.702 * h)
        else:
            h = F.gelu(self.inner(x))
        return self.outer(self.dropout(h))
