"""What watching could not record: named, with the reason."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Missed:
    """One attention that was not recorded.

    >>> print(Missed("layers.0.linear_attention", (1, 8, 64, 64), "no product of queries and keys").reason)
    no product of queries and keys
    """

    module: str
    shape: tuple[int, ...]
    """Of its weights, where they are known; else of what the kernel was given."""
    reason: str


class MissedAttention(UserWarning):
    """An attention ran inside the block that could not be recorded.

    >>> issubclass(MissedAttention, UserWarning)
    True
    """


class ChangedOutput(UserWarning):
    """Something ran otherwise because it was watched, so that the output may differ in its last bits.

    >>> issubclass(ChangedOutput, UserWarning)
    True
    """


def say_missed(model: nn.Module, missed: Sequence[Missed], recorded: int) -> str:
    """One sentence for what was not recorded."""
    kind = type(model).__name__
    if not missed:
        return (
            f"watch saw no attention in {kind}: inside the block nothing in it called pellucid.ops.attend, an "
            "attention of PyTorch's, or took a softmax of a product of queries and keys"
        )
    first = missed[0]
    number = len(missed)
    how_many = f"{number} of {number + recorded} attentions of {kind} could not be recorded"
    where = f"{'the first' if number > 1 else 'it'} is in {first.module or kind!r}: {first.reason}"
    return f"{how_many}; {where}" + ("; seen.missed names them all" if number > 1 else "")


def list_scripted(model: nn.Module) -> list[Missed]:
    """Attentions inside TorchScript, where no Python function is called that could be watched."""
    missed, inside = [], ()
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and not name.startswith(inside):
            inside = (*inside, f"{name}.")
            text = str(getattr(module, "inlined_graph", ""))
            times = text.count("aten::softmax") + text.count("aten::scaled_dot_product_attention")
            reason = "it is TorchScript, which runs outside Python; watch the module that was scripted"
            missed += [Missed(name, (), reason)] * times
    return missed


def attends(graph: str) -> bool:
    """Whether a function of TorchScript has an attention of PyTorch's, or a softmax and a product of two tensors."""
    products = ("aten::matmul", "aten::bmm", "aten::baddbmm", "aten::einsum")
    return "aten::scaled_dot_product_attention" in graph or (
        "aten::softmax" in graph and any(product in graph for product in products)
    )


def list_outside(model: nn.Module, seen: Iterable[str]) -> list[Missed]:
    """Hugging Face's modules whose attention runs where no function of PyTorch's can be watched."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    if any(True for _ in seen):
        return []
    if "flash" in kind:
        return [Missed("", (), f"{kind} is no kernel of PyTorch's; load the model with attn_implementation='sdpa'")]
    return []
