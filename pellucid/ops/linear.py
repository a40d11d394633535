"""x·Wᵀ + b, as F.linear gives it, by the faster of the two libraries that multiply float32 on a CPU.

PyTorch sends these products to MKL. It carries oneDNN too, and that takes a fifth to a third less time on an AMD EPYC
for tokens times weights, and for gradients times weights. The weights' own gradients stay with MKL, which reads both of
its operands along the other axis without copying them first.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

MANY = 1 << 23  # multiplications below which the way into oneDNN takes longer than it saves
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(
    x: Float[Tensor, "... i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "... o"]:
    """Each row of x times the weights, plus the bias."""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():
        return _in_graphs(x, weight, bias)
    return _Product.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether it pays, and nobody asks for what it lacks here: other types, vmap, forward derivatives, exporting."""
    if x.device.type != "cpu" or x.numel() * weight.shape[0] < MANY or not HAS_ONEDNN:
        return False
    if not x.dtype == weight.dtype == torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    return not transformed and forward_ad._current_level < 0


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


def _gradients(ctx: Any, given: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    rows = given.reshape(-1, given.shape[-1])
    return (
        linear(given, weight.T) if ctx.needs_input_grad[0] else None,
        rows.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None,
        rows.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None,
    )


class _Product(torch.autograd.Function):
    forward, setup_context = staticmethod(_onednn), staticmethod(_keep)
    backward = staticmethod(_gradients)  # pyright: ignore[reportAssignmentType]


# A compiler must not look inside. Called eagerly, such an operator would first load the compiler: 1.3 s and 70 MB.
_in_graphs = torch.library.custom_op("pellucid::linear", _onednn, mutates_args=())
_in_graphs.register_fake(lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]))
_in_graphs.register_autograd(_gradients, setup_context=_keep)
