"""x·Wᵀ + b, as F.linear gives it, by the faster of the two libraries that multiply float32 on a CPU.

PyTorch sends such products to MKL, which leaves half of an AMD processor idle since Zen 5: 118 GFLOP/s a core, where
oneDNN has 230 to 260. PyTorch carries oneDNN too, for tensors in a layout of its own (`to_mkldnn`), and brings them
there and back at the speed of a copy. Elsewhere MKL is as fast, and the way there would only cost.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pellucid.devices import cpu_family
from pellucid.ops.checks import stands_for_others

MANY = 1 << 23  # multiplications below which the way into oneDNN takes longer than it saves
PART = 1 << 20  # numbers of a result that are brought back at once: larger pieces come page by page from the system
ZEN_5 = ("AuthenticAMD", 26)
PAYS = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and (cpu_family()[0] == ZEN_5[0] and cpu_family()[1] >= ZEN_5[1])
)


def linear(
    x: Float[Tensor, "*rows i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None
) -> Float[Tensor, "*rows o"]:
    """Each row of x times the weights, plus the bias.

    >>> linear(torch.ones(2, 3), torch.ones(4, 3)).tolist()
    [[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
    """
    if not (PAYS and _suits(x, weight)) or (bias is not None and stands_for_others(bias)):
        return F.linear(x, weight, bias)
    if has_torch_function((x, weight)):  # a mode that looks at PyTorch's calls sees this one and not its insides
        return handle_torch_function(linear, (x, weight), x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    product = _product if torch.is_inference_mode_enabled() else _Product.apply  # 15 µs less, where nobody derives
    return product(rows, weight, bias).view(*x.shape[:-1], len(weight))


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Whether it is long enough, of the one type that oneDNN is asked for, and nobody else looks at what is called."""
    long = x.device.type == "cpu" and x.numel() * weight.shape[0] >= MANY and x.shape[-1] == weight.shape[1]
    if not long or not x.dtype == weight.dtype == torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return False
    return not (is_in_torch_dispatch_mode() or stands_for_others(x) or stands_for_others(weight))


def _product(x: Float[Tensor, "n i"], weight: Float[Tensor, "o i"], bias: Tensor | None) -> Float[Tensor, "n o"]:
    n, o = len(x), len(weight)
    bias = None if bias is None else bias.contiguous()  # oneDNN reads it without its stride
    if n * o <= PART:
        return F.linear(x.to_mkldnn(), weight, bias).to_dense()
    out = x.new_empty(n, o)
    size = max(1, PART // o)
    for part, room in zip(x.split(size), out.split(size), strict=True):
        room.copy_(F.linear(part.to_mkldnn(), weight, bias).to_dense())
    return out


class _Product(torch.autograd.Function):
    """With its gradients by oneDNN, too. What is to be differentiated again, or otherwise, is PyTorch's own."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, _), (of_out,), asked = ctx.saved_tensors, given, ctx.needs_input_grad
        if torch.is_grad_enabled() or stands_for_others(of_out):
            of_x, of_weight, of_bias = asked
            gradients = (of_out @ weight if of_x else None, of_out.T @ x if of_weight else None)
            return *gradients, of_out.sum(0) if of_bias else None
        of_x, *others = torch.ops.aten.mkldnn_linear_backward(x.to_mkldnn(), of_out.to_mkldnn(), weight, asked)
        gradients = (of_x.to_dense() if asked[0] else None, *others)
        return tuple(each if needed else None for each, needed in zip(gradients, asked, strict=True))

    @staticmethod
    def jvp(ctx: Any, *moving: Tensor | None) -> Tensor:
        (x, weight, _), (of_x, of_weight, of_bias) = ctx.saved_tensors, moving
        parts = (
            None if of_x is None else F.linear(of_x, weight),
            None if of_weight is None else F.linear(x, of_weight),
            of_bias,
        )
        return sum(part for part in parts if part is not None)  # pyright: ignore[reportReturnType]
