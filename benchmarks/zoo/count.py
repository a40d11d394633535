"""Count attentions below PyTorch's dispatcher, where nothing of `pellucid` stands: a second opinion on the tables.

An attention is a call of one of PyTorch's fused kernels, or a softmax whose result is multiplied into something. A
softmax is followed through what only reshapes, casts, drops, rescales or picks from it. So the router of a mixture of
experts counts too where its weights multiply the experts, and no softmax that is only returned.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KERNELS = ("_scaled_dot_product", "_transformer_encoder_layer_fwd", "_native_multi_head_attention")
_SOFTMAXES = ("softmax", "_softmax", "_safe_softmax", "_masked_softmax")
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mul", "convolution", "native_batch_norm", "grid_sampler_2d")


def count_attentions(model: nn.Module, inputs: dict[str, Any]) -> int:
    """How many attentions one forward pass computes, as far as operators tell."""
    with torch.compiler.set_stance("force_eager"), _Counter() as counter, torch.no_grad():
        model(**inputs)
    return counter.kernels + len(counter.multiplied)


class _Counter(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.softmaxes = 0
        self.multiplied: set[int] = set()  # which softmaxes met a product
        self._from: dict[int, tuple[Tensor, set[int]]] = {}  # by id, with the tensor so that no id is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "overloadpacket", func).__name__
        if name.startswith(_KERNELS) or name == "flex_attention":
            self.kernels += 1
            return out
        if name in _SOFTMAXES:
            self.softmaxes += 1
            self._from[id(out)] = (out, {self.softmaxes})
            return out
        tensors = list(_tensors(args))
        origins = set().union(*(self._from[id(x)][1] for x in tensors if id(x) in self._from))
        if origins:
            others = [x for x in tensors if id(x) not in self._from and x.ndim]
            if name in _PRODUCTS and others:
                self.multiplied |= origins
            else:
                self._from |= {id(x): (x, origins) for x in _tensors(out) if x.is_floating_point()}
        return out


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor))
