"""Normalisation of one token across its features. (Across the batch it would be batch norm.)"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

NormKind = Literal["layer", "rms"]


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + ε) · weight + bias, over the features of each token.

    >>> import torch
    >>> LayerNorm(4)(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().abs().item() < 1e-6
    True
    """

    def __init__(self, width: int, *, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / √(mean of x² + ε) · weight: layer norm without the mean and the bias (Zhang and Sennrich 2019).

    >>> import torch
    >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).square().mean().sqrt().round(decimals=4).item()
    1.0
    """

    def __init__(self, width: int, *, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def make_norm(kind: NormKind, width: int, *, eps: float | None = None) -> nn.Module:
    if kind == "layer":
        return LayerNorm(width, eps=1e-5 if eps is None else eps)
    if kind == "rms":
        return RMSNorm(width, eps=1e-6 if eps is None else eps)
    raise ValueError(f"norm kind is {kind!r}; expected 'layer' or 'rms'")
