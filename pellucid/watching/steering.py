"""Change an attention and see what becomes of it: another β, other keys, a mask, a head switched off.

The changed attention is computed by the formula, a few rows at a time, and takes the place of what the kernel gave; its
record is of the changed one and checks itself as any other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pellucid.ops import masks
from pellucid.ops.checks import check_attention
from pellucid.ops.exact import share_heads, weight_blocks
from pellucid.ops.rules import Fill, Rule
from pellucid.watching.kernels import Call

Keys = Mapping[int, Tensor | float] | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Change:
    """What is to be different; the rest stays as it is.

    >>> Change(off=[3]).apply(Call(*[torch.randn(1, 4, 5, 8)] * 3, None, 0.35, False, 0.0, None)).v[:, 3].abs().sum()
    tensor(0.)
    """

    beta: float | None = None
    """Another inverse temperature: 0 is the plain mean, math.inf hard attention."""
    mask: Tensor | None = None
    """(b h q k) or what broadcasts to it: boolean, and only what it allows as well stays allowed; or a bias, added."""
    off: Sequence[int] = ()
    """Heads that give nothing."""
    keys: Keys | None = None
    """Key number to another vector (d) or to a factor; or a function of all keys (b g k d)."""

    def apply(self, call: Call) -> Call:
        """The call with what is different."""
        if call.dropout:
            raise ValueError("an attention that drops weights can't be steered; call model.eval() first")
        return replace(
            call,
            beta=call.beta if self.beta is None else self.beta,
            mask=call.mask if self.mask is None else _combine(call.mask, self.mask),
            k=call.k if self.keys is None else _exchange(call.k, self.keys),
            v=call.v if not self.off else _silence(call.v, call.q.shape[1], self.off),
        )


Changes = Change | Mapping[str, Change] | Callable[[str], Change | None]


def find_change(changes: Changes | None, name: str) -> Change | None:
    """The change for an attention by its name; that of a module holds for each time that it attends."""
    if changes is None or isinstance(changes, Change):
        return changes
    if isinstance(changes, Mapping):
        return changes.get(name) or changes.get(name.partition("#")[0])
    return changes(name)


def run(call: Call) -> Tensor:
    """softmax(β·qkᵀ)·v by the formula, differentiable, rounded to what the values are."""
    check_attention(call.q, call.k, call.v, call.mask)
    v = share_heads(call.v, call.q.shape[1])
    blocks = weight_blocks(call.q, call.k, call.mask, call.beta, call.causal)
    return torch.cat([(p @ v.to(p.dtype)).to(v.dtype) for _, p in blocks], dim=2)


def _combine(mask: Tensor | Rule | None, other: Tensor) -> Tensor | Rule:
    if isinstance(mask, Rule):
        if other.dtype != torch.bool:
            raise ValueError(f"a bias can't be added to {mask!r}; give a boolean mask")
        return replace(mask, before=(*mask.before, Fill(~other, -torch.inf)))
    return masks.combine(mask, other)


def _exchange(k: Tensor, keys: Keys) -> Tensor:
    if callable(keys):
        other = keys(k)
        if other.shape != k.shape:
            raise ValueError(f"keys have shape {list(other.shape)}, expected (b g k d) = {list(k.shape)}")
        return other
    k = k.clone()
    for i, what in keys.items():
        if not -k.shape[2] <= i < k.shape[2]:
            raise ValueError(f"key {i} is asked for; expected one of 0…{k.shape[2] - 1}")
        k[:, :, i] = what.to(k.dtype) if isinstance(what, Tensor) else what * k[:, :, i]
    return k


def _silence(v: Tensor, heads: int, off: Sequence[int]) -> Tensor:
    for head in off:
        if not -heads <= head < heads:
            raise ValueError(f"head {head} is asked for; expected one of 0…{heads - 1}")
    v = share_heads(v, heads)
    on = torch.ones(heads, dtype=v.dtype, device=v.device)
    on[[head % heads for head in off]] = 0.0
    return v * on[:, None, None]
