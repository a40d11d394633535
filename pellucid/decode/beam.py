"""Beam search: several sentences at once, the worse ones given up for the better ones' continuations."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.decode.decoded import Decoded
from pellucid.decode.search import Decodable, Search, run_search


def beam_search(
    model: Decodable,
    context: Tensor,
    *,
    start: int,
    end: int,
    length: int,
    beams: int = 5,
    keep: int = 1,
    length_penalty: float = 1.0,
    forbidden: tuple[int, ...] = (),
    context_mask: Tensor | None = None,
) -> Decoded:
    """The `keep` best of `beams` sequences for each context, by Σ log p / length**length_penalty.

    At each step the likeliest continuations of all beams become the beams. One that has said `end` keeps its place, so
    that as many are searched for as are asked for, and one beam is greedy decoding. An image is done when all its beams
    have ended, or when no running one can come among the `keep` best: its sum can only fall, so that its score stays
    below sum / length**length_penalty. What has not ended after `length` tokens counts as it is.

    context_mask (b 1 1 s): which tokens of each context exist, as `ops.masks.padding(lengths)`.

    >>> import torch
    >>> from pellucid.models import Transformer, TransformerConfig
    >>> config = TransformerConfig(12, width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1)
    >>> model = Transformer(config).eval()
    >>> context = model.encode(torch.tensor([[3, 4, 5]]))
    >>> said = beam_search(model, context, start=1, end=2, length=4, beams=3, keep=2)
    >>> said.tokens.shape[:2], bool(said.scores[0, 0] >= said.scores[0, 1])
    (torch.Size([1, 2]), True)
    """
    if beams < 1:
        raise ValueError(f"beams is {beams}; expected one or more")
    if not 1 <= keep <= beams:
        raise ValueError(f"keep is {keep}; expected 1 to {beams}, the number of beams")
    if not 0.0 <= length_penalty < float("inf"):
        raise ValueError(f"length_penalty is {length_penalty}; expected zero or more")
    options = {"start": start, "end": end, "length": length, "forbidden": tuple(forbidden), "beams": beams}
    inputs = (context,) if context_mask is None else (context, context_mask)
    return run_search(_Beam, model, *inputs, keep=keep, penalty=length_penalty, **options).result(keep)


class _Beam(Search):
    def __init__(self, model: Decodable, *inputs: Tensor, keep: int, penalty: float, **options: Any):
        super().__init__(model, *inputs, **options)
        self.keep, self.penalty = keep, penalty

    def begin(self) -> None:
        super().begin()
        self.sums[:, 1:].fill_(-torch.inf)  # all beams start alike: only the first counts

    def advance(self, model: Decodable) -> None:
        log_probs = self._log_probs(model)
        k, v = log_probs.shape[1:]
        # A beam can have no more than k among the best k. In which order is asked when all is said.
        log_prob, token = log_probs.topk(min(k, v), dim=-1, sorted=False)
        sums = log_prob + self.sums[..., None]
        # One that has ended is its own only continuation, and before all others.
        sums.masked_fill_(self.ended[..., None], -torch.inf)
        sums[..., 0].masked_fill_(self.ended, torch.inf)
        best, chosen = sums.flatten(1).topk(k, sorted=False)
        parents = chosen.div(sums.shape[-1], rounding_mode="floor")
        for state in (self.sums, self.lengths, self.ended):
            state.copy_(state.gather(1, parents))
        self.ancestors.copy_(self.ancestors.gather(1, parents[..., None].expand(-1, -1, self.length)))
        self.sums.masked_fill_(best == -torch.inf, -torch.inf)  # there were fewer continuations than beams
        self._say(token.flatten(1).gather(1, chosen), log_prob.flatten(1).gather(1, chosen))
        self.ended &= self.sums > -torch.inf

    def scores(self) -> Float[Tensor, "n k"]:
        return self.sums / self.lengths.to(self.sums.dtype) ** self.penalty

    def done(self) -> Bool[Tensor, ""]:
        kept = torch.where(self.ended, self.scores(), -torch.inf).topk(self.keep).values[:, -1]
        possible = self.sums.masked_fill(self.ended, -torch.inf).amax(1) / self.length**self.penalty
        return (possible <= kept).all()
