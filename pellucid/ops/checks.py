"""What may enter attention. Every complaint names the axis, what came and what was expected.

Axes: b batch, h heads, q query token, k key token, d width of queries and keys, e width of values.
"""

import math

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch.nn import Parameter

from pellucid.ops.rules import Rule


def check_attention(q: Tensor, k: Tensor, v: Tensor | None = None, mask: Tensor | Rule | None = None) -> None:
    """Raise ValueError unless q (b h q d), k (b g k d), v (b g k e) and mask fit together, with h a multiple of g."""
    if v is not None and _alike(q, k, v):
        if mask is not None:
            check_mask(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), q.device)
        return
    axes = {"q": (q, "b h q d"), "k": (k, "b h k d"), "v": (v, "b h k e")}
    for name, (tensor, legend) in axes.items():
        if tensor is not None and tensor.ndim != 4:
            raise ValueError(f"{name} must have 4 axes ({legend}); got shape {list(tensor.shape)}")
        if tensor is not None and not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers; got {tensor.dtype}")
    (b, h, n_queries, d), (b_k, g, n_keys, d_k) = q.shape, k.shape
    _same("b (batch)", "k", b_k, "q", b)
    _same("d (width of queries and keys)", "k", d_k, "q", d)
    if g == 0 or h % g:
        raise ValueError(f"axis h (heads): {h} query heads can't be shared by {g} key heads; expected a divisor of {h}")
    _same_kind("k", k, q)
    if v is not None:
        _same("b (batch)", "v", v.shape[0], "q", b)
        _same("h (heads)", "v", v.shape[1], "k", g)
        _same("k (key tokens)", "v", v.shape[2], "k", n_keys)
        _same_kind("v", v, q)
    if mask is not None:
        check_mask(mask, (b, h, n_queries, n_keys), q.device)


def check_mask(mask: Tensor | Rule, expected: tuple[int, int, int, int], device: torch.device) -> None:
    """Raise ValueError unless the mask is boolean or a float bias, broadcasts to (b h q k) and is where q is."""
    if isinstance(mask, Rule):
        return
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device}, expected {device} as q")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"mask must be boolean (True = may attend) or a float bias that is added to the scores; got {mask.dtype}"
        )
    if mask.ndim > 4:
        raise ValueError(f"mask must have at most 4 axes (b h q k); got shape {list(mask.shape)}")
    for axis, came, size in zip("kqhb", reversed(mask.shape), reversed(expected), strict=False):
        if came not in (1, size):
            raise ValueError(
                f"mask axis {axis}: got {came}, expected {size} or 1 "
                f"(mask {list(mask.shape)} must broadcast to (b h q k) = {list(expected)})"
            )


def check_list(listed: Tensor, q: Tensor) -> None:
    """Raise ValueError unless it names keys for each query: (b q s), where q is."""
    if listed.device != q.device:
        raise ValueError(f"listed is on {listed.device}, expected {q.device} as q")
    if listed.dtype != torch.long:
        raise ValueError(f"listed holds {listed.dtype}; expected the numbers of keys, torch.int64")
    if listed.ndim != 3 or listed.shape[:2] != (q.shape[0], q.shape[2]):
        raise ValueError(
            f"listed must have 3 axes (b q s), with {q.shape[0]} for b and {q.shape[2]} for q; "
            f"got shape {list(listed.shape)}"
        )


def resolve_beta(beta: float | None, width: int) -> float:
    """The inverse temperature as a float: 1/√d unless the caller chose one."""
    if beta is None:
        return 1.0 / math.sqrt(width)
    if math.isnan(beta):
        raise ValueError("beta is NaN; expected a number, or None for 1/√d")
    return float(beta)


def is_learned(*tensors: Tensor) -> bool:
    """Whether a gradient is to flow back into any of these."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _alike(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Nearly every call, told quickly: a GPU waits for these lines."""
    same_shape = q.ndim == 4 and q.shape == k.shape == v.shape
    return same_shape and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device and q.is_floating_point()


def _same(axis: str, name: str, came: int, other: str, expected: int) -> None:
    if came != expected:
        raise ValueError(f"axis {axis}: {name} has {came}, expected {expected} as in {other}")


def _same_kind(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise ValueError(f"{name} is on {tensor.device}, expected {q.device} as q")
    if tensor.dtype != q.dtype and not torch.is_autocast_enabled(q.device.type):
        raise ValueError(f"{name} is {tensor.dtype}, expected {q.dtype} as q")


def stands_for_others(x: Tensor) -> bool:
    """Whether it isn't what its numbers are: under vmap or another transform, without data, or of somebody's own kind.

    >>> stands_for_others(torch.zeros(2)), torch.vmap(lambda x: torch.tensor(stands_for_others(x)))(torch.zeros(2))[0]
    (False, tensor(True))
    """
    return type(x) not in (Tensor, Parameter) or is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x)
