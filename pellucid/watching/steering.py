"""Change an attention and see what becomes of it: another β, other keys, a mask, a head switched off.

The changed attention is computed by the formula, a few rows at a time, and takes the place of what the kernel gave; its
record is of the changed one and checks itself as any other.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

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
    """What is to be different in one attention; the rest stays as it is.

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

    def __post_init__(self) -> None:
        if self.beta is not None and (not isinstance(self.beta, (int, float)) or math.isnan(self.beta)):
            raise ValueError(f"beta is {self.beta!r}; expected a number")
        if not isinstance(self.off, Sequence) or not all(isinstance(head, int) for head in self.off):
            raise ValueError(f"off is {self.off!r}; expected a list of heads, as [3]")
        if self.keys is not None and not callable(self.keys) and not isinstance(self.keys, Mapping):
            raise ValueError(f"keys is {self.keys!r}; expected key numbers to vectors or factors, or a function")

    def apply(self, call: Call) -> Call:
        """The call with what is different."""
        if call.dropout:
            raise ValueError("an attention that drops weights can't be steered; call model.eval() first")
        heads = call.q.shape[1]
        k = call.k if self.keys is None else _exchange(call.k, self.keys)
        return replace(
            call,
            beta=call.beta if self.beta is None else self.beta,
            mask=call.mask if self.mask is None else _combine(call.mask, self.mask),
            k=k
            if not self.off
            else share_heads(k, heads),  # heads of one group, of which some are off, have own values
            v=call.v if not self.off else _silence(call.v, heads, self.off),
        )


Changes = Change | Mapping[str, Change] | Callable[[str], Change | None]


class Steering:
    """The changes of one block: what `watch` was given, and what records ask for inside it."""

    def __init__(self, changes: Changes | None, modules: Mapping[str, str]):
        """modules: the name by which each module is recorded, by every name that the model has for it."""
        self.changes = changes
        self.replaced: dict[str, Change] = {}
        self.over = False
        self._unused: dict[str, str] = {}  # what was asked for and hasn't been done: by name, as it was put
        if changes is None:
            return
        if isinstance(changes, Mapping):
            for name, change in changes.items():
                module = str(name).partition("#")[0]
                if module not in modules:
                    raise ValueError(f"change: the model has no module {module!r}{_say_near(module, modules)}")
                if modules[module] != module:
                    raise ValueError(
                        f"change: {module!r} is the same module as {modules[module]!r}, by which it is recorded"
                    )
                _check_change(change)
                self._unused[str(name)] = f"change={{{str(name)!r}: …}}"
        elif not callable(changes):
            _check_change(changes)

    def __bool__(self) -> bool:
        return self.changes is not None or bool(self.replaced)

    def find(self, module: str, name: str) -> Change | None:
        """The change for an attention: what its record asked for, or what was given by its name or its module's."""
        if (change := self.replaced.get(module)) is not None:
            self._unused.pop(module, None)
            return change
        if self.changes is None or isinstance(self.changes, Change):
            return self.changes
        if not isinstance(self.changes, Mapping):
            change = self.changes(name)
            return change if change is None else _check_change(change)
        key = name if name in self.changes else module
        self._unused.pop(key, None)
        return self.changes.get(key)

    def replace(self, name: str, heads: int, change: Mapping[str, Any]) -> None:
        """Change an attention from now on; with nothing given it is as it was."""
        if self.over:
            raise ValueError(f"record {name!r} belongs to a block that is over; use watch(model, change=…)")
        module = name.partition("#")[0]
        self._unused.pop(module, None)
        self.replaced.pop(module, None)
        if not change:
            return
        known = [field.name for field in fields(Change)]
        for key in change:
            if key not in known:
                raise ValueError(f"replace takes no {key!r}{_say_near(key, known)}; expected {', '.join(known)}")
        self.replaced[module] = Change(**change)
        _check_heads(self.replaced[module].off, heads)
        self._unused[module] = f"seen[{name!r}].replace(…)"

    def finish(self, seen: Iterable[str], ran: bool) -> None:
        """The block is over. ValueError if a change was never used, so that nothing is as it was asked for."""
        self.over = True
        unused = self._unused if ran else {}
        for name, text in unused.items():
            if text.startswith("seen"):
                raise ValueError(
                    f"{text} changed nothing: no forward ran after it; run the model once more in the block"
                )
            known = list(seen)
            raise ValueError(f"{text} changed nothing: no attention of that name ran{_say_near(name, known)}")


def _check_change(change: object) -> Change:
    if not isinstance(change, Change):
        raise ValueError(f"a change is {change!r}; expected a Change, as Change(off=[3])")
    return change


def _say_near(name: str, known: Iterable[str]) -> str:
    """Names that were perhaps meant: those like it, or those that have it in them or stand below it."""
    known = [one for one in known if one]
    near = difflib.get_close_matches(name, known, 3)
    near = near or [one for one in known if name and (name in one or one in name)][:3] or known[:3]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


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


def _check_heads(off: Sequence[int], heads: int) -> None:
    for head in off:
        if not -heads <= head < heads:
            raise ValueError(f"head {head} is asked for; expected one of 0…{heads - 1}")


def _silence(v: Tensor, heads: int, off: Sequence[int]) -> Tensor:
    _check_heads(off, heads)
    v = share_heads(v, heads)
    on = torch.ones(heads, dtype=v.dtype, device=v.device)
    on[[head % heads for head in off]] = 0.0
    return v * on[:, None, None]
