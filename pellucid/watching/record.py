"""What was seen of one attention: O(tokens · width) numbers, from which every other one follows exactly."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.ops import summaries
from pellucid.ops.exact import share_heads, weight_blocks
from pellucid.ops.rules import Fill, Rule
from pellucid.ops.summaries import Selection, TopK, Transposed
from pellucid.watching.streams import Reading
from pellucid.watching.trails import version

RecordPart = Literal["q", "k", "v", "output"]
RECORD_PARTS: tuple[RecordPart, ...] = ("q", "k", "v", "output")
# The tensors as the model holds them, and how their gradient is brought into the record's shape.
Live = dict[RecordPart, tuple[Tensor, Callable[[Tensor], Tensor]]]
Versions = dict[str, Any]  # of each of them, and of the mask: how often it was written to
WHY_NOT = {
    "cross": "is cross-attention, whose keys are other tokens than its queries",
    "windows": "attends within windows, which lie in its batch, so that its rows aren't those of the whole",
    "channels": "attends to channels and not to tokens",
}


@dataclass(frozen=True)
class Written:
    """How a model that writes its softmax out came to its weights, and how far the record's are from them."""

    dtype: torch.dtype
    """What it holds its scores in, where they are the coarsest."""
    error: float
    """The largest difference of a weight from the model's own, in the rows that were compared: all of up to 16
    queries, else eight from first to last, and some whose keys all lie far below."""
    miss: float
    """How far the output is from the record's for that, at most, as `check` counts it: rounding that no precision of
    its own can take back. A row all of whose keys are pushed down by 10⁹ has lost its scores."""


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """One attention as it ran: output = softmax(β·qkᵀ + mask)·v, heads split, positions already in q and k.

    The tensors are the model's own unless they were copied. If one has been written to since, it says so when asked.

    >>> import torch
    >>> from torch import nn
    >>> from pellucid.watching import watch
    >>> model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with torch.no_grad(), watch(model) as seen:
    ...     _ = model(x, x, x)
    >>> record = seen[""]
    >>> record.weights().shape, record.row(2).shape, record.check() < 1e-5
    (torch.Size([1, 4, 5, 5]), torch.Size([1, 4, 5]), True)
    """

    name: str
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    mask: Tensor | Rule | None
    """Boolean, True = may attend; a bias; or a rule, where more than that stands before or after the softmax."""
    beta: float
    causal: bool
    dropout: float
    output: Float[Tensor, "b h q e"]
    live: Live | None = None
    written: Written | None = None
    """Of a model that writes its softmax out; a kernel sums its scores in float32 or better, and shows no weights."""
    reading: Reading | None = None
    """Which tokens are its queries and its keys, where that could be followed."""
    steer: Callable[[str, int, Mapping[str, Any]], None] | None = None
    versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self._versions())

    def __getstate__(self) -> dict[str, Any]:
        """What was written to since goes along; how often doesn't, for a copy's tensors count anew."""
        return {**self.__dict__, "versions": self._list_written(("q", "k", "v", "mask", "output"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        written = dict.fromkeys(state["versions"])
        object.__setattr__(self, "versions", {**self._versions(), **written})

    def weights(self, heads: Selection = None, queries: Selection = None) -> Float[Tensor, "b heads queries k"]:
        """The map, or a block of it: the chosen heads and queries against every key."""
        return summaries.weights(self.q, self.k, **self._how, heads=heads, queries=queries)

    def row(self, i: int) -> Float[Tensor, "b h k"]:
        """How query i spreads its attention over the keys."""
        return summaries.row(self.q, self.k, i, **self._how)

    def rows(self, index: Sequence[int] | Tensor) -> Float[Tensor, "b h n k"]:
        """The rows of the chosen queries."""
        return summaries.rows(self.q, self.k, index, **self._how)

    def column_mass(self, *, impl: Transposed = "blocks") -> Float[Tensor, "b h k"]:
        """How much attention each key receives from all queries together."""
        return summaries.column_mass(self.q, self.k, **self._how, impl=impl)

    def entropy(self) -> Float[Tensor, "b h q"]:
        """−Σ P·ln P of each row, in nats."""
        return summaries.entropy(self.q, self.k, **self._how)

    def mean_distance(self, keys_at: Tensor, queries_at: Tensor | None = None) -> Float[Tensor, "b h q"]:
        """How far each query looks, given the keys' (and queries') coordinates."""
        return summaries.mean_distance(self.q, self.k, keys_at, **self._how, queries_at=queries_at)

    def topk(self, n: int) -> TopK:
        """The n keys each query attends to most, with their weights."""
        return summaries.topk(self.q, self.k, n, **self._how)

    def apply(self, x: Tensor) -> Float[Tensor, "b h q e"]:
        """P·x: other values, mixed as these were."""
        return summaries.apply(self.q, self.k, x, **self._how)

    def apply_transposed(self, x: Tensor, *, impl: Transposed = "blocks") -> Float[Tensor, "b h k e"]:
        """Pᵀ·x: what each key hands back when every query sends out its x."""
        return summaries.apply_transposed(self.q, self.k, x, **self._how, impl=impl)

    def gradient(self, of: RecordPart) -> Tensor:
        """The gradient that the last backward pass left on q, k, v or the output."""
        if self.live is None:
            raise ValueError(f"{self._who} keeps no gradients; use watch(model, gradients=True)")
        if of not in self.live:
            raise ValueError(f"{self._who} has no part {of!r}; expected one of {', '.join(self.live)}")
        tensor, shaped = self.live[of]
        if tensor.grad is None:
            raise ValueError(f"{self._who} has no gradient of {of} yet; call backward() on something made from it")
        return shaped(tensor.grad)

    def weights_gradient(
        self, heads: Selection = None, queries: Selection = None
    ) -> Float[Tensor, "b heads queries k"]:
        """The gradient of the map, dO·vᵀ, or a block of it: what a little more of each weight would have done."""
        out, v = self.gradient("output"), share_heads(self.v, self.q.shape[1])
        dtype = torch.promote_types(out.dtype, torch.float32)
        if heads is not None:
            out, v = out[:, heads], v[:, heads]
        if queries is not None:
            out = out[:, :, queries]
        return out.to(dtype) @ v.to(dtype).mT

    def replace(self, **change: Any) -> None:
        """Change this attention from the next forward on, inside the block; see `Change` for beta, mask, keys, off.

        A module that attends several times is changed each time. Nothing given: as it was.
        """
        if self.steer is None:
            raise ValueError(f"{self._who} was made by hand; records that `watch` gives can be changed in their block")
        self.steer(self.name, self.q.shape[1], change)

    def check_follows(self, before: "Record | None") -> None:
        """ValueError unless this is a self-attention that goes on with the tokens of the one before it."""
        reading = self.reading
        if reading is None:
            return
        why = WHY_NOT.get(reading.kind)
        if why is not None:
            raise ValueError(f"{self._who} {why}: no chain of self-attentions goes through it")
        other = None if before is None else before.reading
        if before is None or other is None:
            return
        apart = reading.tokens and other.tokens and reading.tokens != other.tokens
        if apart or not reading.queries >> other.number & 1:
            raise ValueError(
                f"{self._who} doesn't go on with the tokens of {before.name!r}: a chain stays in one tower, and "
                "seen.towers lists them"
            )

    def check(self) -> float:
        """Compute softmax(β·qkᵀ)·v anew, in float64, and compare: the error if it is rounding, ValueError if not.

        The error is that of the worst row, relative to the root mean square of the rows.
        """
        for part in RECORD_PARTS:
            self._check_finite(part, getattr(self, part))
        error, allowed = self._error(), self._rounding()
        if error <= allowed:
            return error
        if self.dropout > 0:
            reason = f"weights were dropped with probability {self.dropout}; watch the model in eval()"
        elif written := self._list_written(("q", "k", "v", "mask", "output")):
            reason = f"{_say_written(written)}; use watch(model, copy=True)"
        else:
            reason = "q, k, v, mask and β are not what made this output"
        raise ValueError(
            f"{self._who}: softmax(β·qkᵀ)·v misses the output by {error:.1e} in the worst row, "
            f"expected at most {allowed:.1e}: {reason}"
        )

    def _check_unwritten(self, parts: Sequence[str]) -> None:
        """ValueError if the model has written into one of these tensors since, unless nothing that counts has changed.

        A cache that grows in place is written behind what was recorded: then the output still follows from the rest.
        """
        written = self._list_written(parts)
        if not written:
            return
        if self.dropout or self._list_written(("output",)) or not self._error() <= self._rounding():
            raise ValueError(
                f"{self._who} no longer says what happened: {_say_written(written)}; use watch(model, copy=True)"
            )
        object.__setattr__(self, "versions", self._versions())

    def _list_written(self, parts: Sequence[str]) -> list[str]:
        now = self._versions()
        return [part for part in parts if self.versions[part] != now[part]]

    def __repr__(self) -> str:
        b, h, n_queries, _ = self.q.shape
        return f"Record({self.name!r}, b={b}, h={h}, q={n_queries}, k={self.k.shape[2]}, beta={self.beta:.4g})"

    @property
    def _who(self) -> str:
        return f"record {self.name!r}"

    @property
    def _how(self) -> dict:
        self._check_unwritten(("q", "k", "mask"))
        return {"mask": self.mask, "beta": self.beta, "causal": self.causal}

    def _versions(self) -> Versions:
        return read_versions(self.q, self.k, self.v, self.mask, self.output)

    def _check_finite(self, part: str, tensor: Tensor) -> None:
        bad = ~tensor.isfinite()
        if bad.any():
            axes = {"q": "bhqd", "k": "bhkd", "v": "bhke", "output": "bhqe"}[part]
            where = ", ".join(f"{axis}={i}" for axis, i in zip(axes, bad.nonzero()[0].tolist(), strict=True))
            raise ValueError(
                f"{self._who}: {part} holds {int(bad.sum())} numbers that are NaN or infinite, the first at {where}; "
                "expected finite ones"
            )

    def _error(self) -> float:
        """The worst row's distance from the truth, over the root mean square length of a row."""
        # Hard attention jumps at near-ties, so it is compared in the precision it was computed in.
        dtype = None if math.isinf(self.beta) or self.q.device.type == "mps" else torch.float64
        worst, squares = 0.0, 0.0
        v = share_heads(self.v, self.q.shape[1])
        for rows, p in weight_blocks(self.q, self.k, self.mask, self.beta, self.causal, dtype):
            truth = p @ v.to(p.dtype)
            miss = (self.output[:, :, rows].to(p.dtype) - truth).norm(dim=-1)
            worst = max(worst, miss.max().item())
            squares += truth.square().sum().item()
        n_rows = math.prod(self.q.shape[:3])
        return worst / max(math.sqrt(squares / max(n_rows, 1)), 1e-30) if worst else 0.0

    def _rounding(self) -> float:
        """How much a right kernel may miss by: rounded weights and output, and scores summed in float32 or float64."""
        summed = torch.promote_types(self.q.dtype, torch.float32)
        unit = torch.finfo(self.written.dtype if self.written else summed).eps
        if self.q.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
            unit = max(unit, 2.0**-11)  # TF32 keeps ten bits
        longest = [x.to(summed).norm(dim=-1).amax().item() if x.numel() else 0.0 for x in (self.q, self.k)]
        size = 1.0 if math.isinf(self.beta) else abs(self.beta) * math.prod(longest)
        parts = self.mask.tensors() if isinstance(self.mask, Rule) else [self.mask] if self.mask is not None else []
        if isinstance(self.mask, Rule):
            parts += [torch.tensor([step.value]) for step in self.mask.before if isinstance(step, Fill)]
        for part in parts:
            if part.dtype != torch.bool:
                # A bias of −10⁴ costs the scores beside it four digits; what lies far below leaves no trace of them.
                felt = part[part > -1e5]
                largest = felt.abs().amax().item() if felt.numel() else 0.0
                size = size * max(1.0, largest) + largest if isinstance(self.mask, Rule) else size + largest
        rounded = min(self.output.dtype, self.v.dtype, key=lambda d: torch.finfo(d).bits)
        known = 4 * self.written.miss if self.written else 0.0  # of rows that were not compared, too
        return 8 * torch.finfo(rounded).eps + 32 * unit * (1 + size) + known


def read_versions(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Rule | None, output: Tensor) -> Versions:
    """How often each tensor of an attention has been written to."""
    masks = mask.tensors() if isinstance(mask, Rule) else [] if mask is None else [mask]
    return {
        "q": version(q),
        "k": version(k),
        "v": version(v),
        "mask": [version(x) for x in masks],
        "output": version(output),
    }


def _say_written(parts: list[str]) -> str:
    return f"{' and '.join(parts)} {'was' if len(parts) == 1 else 'were'} changed in place after it was recorded"
