"""One token after the other, never taken back: the likeliest, or one drawn by chance."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.decode.decoded import Decoded
from pellucid.decode.search import Decodable, Search, run_search


def greedy(
    model: Decodable,
    context: Tensor,
    *,
    start: int,
    end: int,
    length: int,
    forbidden: tuple[int, ...] = (),
    context_mask: Tensor | None = None,
) -> Decoded:
    """The likeliest token at every step, `length` times at most.

    context (b s d): what `model.encode` gave. A sequence that has said `end` goes on saying it; when all have, decoding
    stops. forbidden: tokens that are never said. context_mask (b 1 1 s): which tokens of each context exist.

    >>> import torch
    >>> from pellucid.models import Transformer, TransformerConfig
    >>> config = TransformerConfig(12, width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1)
    >>> model = Transformer(config).eval()
    >>> said = greedy(model, model.encode(torch.tensor([[3, 4, 5]])), start=1, end=2, length=4)
    >>> said.tokens.shape[:2]
    torch.Size([1, 1])
    """
    options = {"start": start, "end": end, "length": length, "forbidden": tuple(forbidden)}
    inputs = (context,) if context_mask is None else (context, context_mask)
    return run_search(_Greedy, model, *inputs, **options)


def sample(
    model: Decodable,
    context: Tensor,
    *,
    start: int,
    end: int,
    length: int,
    count: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    forbidden: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    context_mask: Tensor | None = None,
) -> Decoded:
    """`count` sequences for each context, each token drawn with its probability.

    temperature: logits are divided by it before the draw; below one the likely become likelier.
    top_k: only the k likeliest tokens. top_p: only the likeliest whose probabilities sum to p, as few as that takes.
    log_probs and scores are the model's own, whatever was drawn from. context_mask: as for `greedy`.

    >>> import torch
    >>> from pellucid.models import Transformer, TransformerConfig
    >>> config = TransformerConfig(12, width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1)
    >>> model = Transformer(config).eval()
    >>> said = sample(model, model.encode(torch.tensor([[3, 4, 5]])), start=1, end=2, length=4, count=5)
    >>> said.tokens.shape[:2]
    torch.Size([1, 5])
    """
    if count < 1:
        raise ValueError(f"count is {count}; expected one or more")
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; expected more than zero, or use greedy")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; expected one or more")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}; expected a share in (0, 1]")
    where = context.device if generator is None else generator.device
    draws = torch.rand(context.shape[0] * count, max(length, 0), generator=generator, device=where).to(context.device)
    options = {"start": start, "end": end, "length": length, "forbidden": tuple(forbidden), "rows": count}
    options |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    inputs = (context, draws) if context_mask is None else (context, draws, context_mask)
    return run_search(_Sample, model, *inputs, **options, keep=count)


class _Greedy(Search):
    def advance(self, model: Decodable) -> None:
        log_prob, token = self._log_probs(model).max(-1)
        self._say(token, log_prob)


class _Sample(Search):
    def __init__(
        self,
        model: Decodable,
        context: Tensor,
        draws: Float[Tensor, "n length"],
        context_mask: Tensor | None = None,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        **options: Any,
    ):
        super().__init__(model, context, context_mask, **options)
        self.draws, self.temperature, self.top_k, self.top_p = draws, temperature, top_k, top_p

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.context, self.draws, *super().inputs[1:])

    def narrow(self, stays: Bool[Tensor, " b"]) -> None:
        super().narrow(stays)
        self.draws = self.draws[stays.repeat_interleave(self.rows)]

    def advance(self, model: Decodable) -> None:
        log_probs = self._log_probs(model)
        token = draw_tokens(
            log_probs / self.temperature, self.draws.index_select(1, self.place), self.top_k, self.top_p
        )
        self._say(token, log_probs.gather(-1, token[..., None])[..., 0])


def draw_tokens(
    logits: Float[Tensor, "n k v"], draws: Float[Tensor, "n k"], top_k: int | None, top_p: float | None
) -> Int[Tensor, "n k"]:
    """The token at which the cumulated probabilities pass a number drawn from [0, 1)."""
    order = None
    if top_k is not None or top_p is not None:
        v = logits.shape[-1]
        logits, order = logits.topk(min(top_k or v, v), dim=-1)  # likeliest first
    weights = logits.double().softmax(-1)
    if top_p is not None:
        weights = weights.masked_fill(weights.cumsum(-1) - weights >= top_p, 0.0)
    passed = weights.cumsum(-1)
    # A float32 below one is at most 1 − 2⁻²⁴: times the sum it stays below the sum, so some token passes it, and one of
    # weight zero, at which nothing rises, is never the first.
    token = (passed <= draws.double()[..., None] * passed[..., -1:]).sum(-1, keepdim=True)
    return (token if order is None else order.gather(-1, token))[..., 0]
