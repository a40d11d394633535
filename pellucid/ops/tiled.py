"""Summaries by our kernels, which go through a map tile by tile at the speed of attention: what they take, and how.

They are chosen on CUDA for everything they know: half precision and float32, heads up to 256 wide, masks and biases,
any finite β. What they don't is computed in exact blocks of rows, and so is what a gradient is to flow through.
"""

import importlib.util
import math
import os
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.kernels.totals import Totals
from pellucid.ops.checks import is_learned, stands_for_others
from pellucid.ops.rules import Rule

Summing = Literal["auto", "blocks", "triton"]
TakenMask = Any  # a mask that `takes` has let through: a tensor or None, no rule
WIDEST_HEAD = 256
MOST_TOP, MOST_AXES = 16, 3  # beyond these a kernel's registers are full
HAS_TRITON = importlib.util.find_spec("triton") is not None


def takes(impl: str, q: Tensor, k: Tensor, mask: Tensor | Rule | None, beta: float, *others: Tensor) -> bool:
    """Whether the kernels compute a summary of this attention; ValueError if they were asked for and can't.

    others: what else goes in, that a gradient might be wanted of.
    """
    if impl not in ("auto", "blocks", "triton"):
        raise ValueError(f"impl is {impl!r}; expected 'auto', 'blocks' or 'triton'")
    if impl == "blocks":
        return False
    reason = _why_not(q, k, mask, beta, others)
    if impl == "triton" and reason is not None:
        raise ValueError(f"impl='triton' {reason}; use impl='blocks'")
    return reason is None


def _why_not(q: Tensor, k: Tensor, mask: Tensor | Rule | None, beta: float, others: tuple[Tensor, ...]) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # then kernels run on the CPU, and slowly
    if not (q.is_cuda or interpreted):
        return f"needs tensors on CUDA, these are on {q.device}"
    if not HAS_TRITON:
        return "needs Triton, which isn't installed"
    if any(map(stands_for_others, (q, k, *_tensors(mask)))):
        return "takes plain tensors alone, none that stand for others"  # as under vmap, or without data
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"takes float32, bfloat16 and float16, not {q.dtype}"
    if interpreted and q.dtype == torch.bfloat16:
        return "can't be interpreted in bfloat16"  # its products would be wrong, in silence
    if isinstance(mask, Rule):
        return f"knows masks and biases alone, not {mask!r}"
    if math.isinf(beta):
        return "can't do beta=inf"
    if q.shape[-1] > WIDEST_HEAD:
        return f"takes heads up to {WIDEST_HEAD} wide, not {q.shape[-1]}"
    if not all(q.shape) or not all(k.shape):
        return "takes no empty tensors"
    if is_learned(q, k, *([] if mask is None else [mask]), *others):
        return "gives no gradients"
    if torch.compiler.is_compiling():
        return "can't be compiled into a graph"
    return None


def _tensors(mask: TakenMask) -> tuple[Tensor, ...]:
    return (mask,) if isinstance(mask, Tensor) else ()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: TakenMask, beta: float, causal: bool) -> Float[Tensor, "b h q e"]:
    """Attention that reads only what the mask shows; v is up to WIDEST_HEAD wide."""
    from pellucid.kernels.masked import attend_masked

    with _on(q):
        return attend_masked(q, k, v, mask, beta, causal)[0]


def total_rows(q: Tensor, k: Tensor, mask: TakenMask, beta: float, causal: bool) -> Totals:
    """What every other pass needs to know of the rows."""
    from pellucid.kernels.row_sums import sum_rows

    with _on(q):
        return sum_rows(q, k, mask, beta, causal)[0]


def from_log_sum_exp(log_sums: Float[Tensor, "b h q"]) -> Totals:
    """The totals from the logarithms of Σ exp(score), as PyTorch's kernels keep them where no row is dead."""
    return Totals(log_sums * math.log2(math.e), torch.ones_like(log_sums))


def entropy(q: Tensor, k: Tensor, mask: TakenMask, beta: float, causal: bool) -> Float[Tensor, "b h q"]:
    from pellucid.kernels.row_sums import sum_rows

    with _on(q):
        return sum_rows(q, k, mask, beta, causal, entropy=True)[1]


def mean_distance(
    q: Tensor, k: Tensor, queries_at: Tensor, keys_at: Tensor, mask: TakenMask, beta: float, causal: bool
) -> Float[Tensor, "b h q"]:
    """queries_at, keys_at: coordinates around zero, where float32 tells near places apart."""
    from pellucid.kernels.distance import average_distance

    with _on(q):
        return average_distance(q, k, queries_at, keys_at, mask, beta, causal)


def topk(
    q: Tensor, k: Tensor, n: int, mask: TakenMask, beta: float, causal: bool, totals: Totals | None
) -> tuple[Tensor, Tensor]:
    """The weights and the keys (b h q n), for n up to MOST_TOP."""
    from pellucid.kernels.top import find_top

    with _on(q):
        return find_top(q, k, n, totals, mask, beta, causal)


def apply_transposed(
    q: Tensor, k: Tensor, x: Tensor, mask: TakenMask, beta: float, causal: bool, totals: Totals | None
) -> Float[Tensor, "b h k e"]:
    from pellucid.kernels.spread import spread
    from pellucid.kernels.weighed import weigh_sums

    totals = totals or total_rows(q, k, mask, beta, causal)
    with _on(q):
        if x.shape[-1] == 1:
            return weigh_sums(q, k, x[..., 0], totals, mask, beta, causal, by_keys=True)[..., None]
        x = x if x.dtype == q.dtype else x.float()
        return torch.cat([spread(q, k, part, totals, mask, beta, causal) for part in x.split(WIDEST_HEAD, -1)], -1)


def apply_gated(
    q: Tensor,
    k: Tensor,
    x: Float[Tensor, "b n"],
    gate: tuple[Float[Tensor, "b h q e"], Float[Tensor, "b g k e"]],
    mask: TakenMask,
    beta: float,
    causal: bool,
    *,
    transposed: bool,
) -> Float[Tensor, "b m"]:
    """Ā·x or Āᵀ·x for Ā = mean_h (P ⊙ dO·vᵀ)⁺, the gate being dO and v."""
    from pellucid.kernels.weighed import weigh_sums

    totals = total_rows(q, k, mask, beta, causal)
    x = x[:, None].expand(-1, q.shape[1], -1)
    dtype = torch.promote_types(gate[0].dtype, gate[1].dtype)
    gate = gate[0].to(dtype), gate[1].to(dtype)
    with _on(q):
        return weigh_sums(q, k, x, totals, mask, beta, causal, by_keys=transposed, gate=gate).mean(1)


def _on(q: Tensor) -> torch.cuda.device:
    """Triton launches where the current device is."""
    return torch.cuda.device(q.device if q.is_cuda else -1)
