"""From where an answer was drawn: vectors that walk back through watched attentions, never a map or a product of maps.

The functions take records as `watch` keeps them, of our models or of anybody's, from the first layer to the last, and
`start`: the token that is read after the last layer, or weights (b t) over the tokens, as 1/t for a mean. Maps are met
a few rows at a time, so memory grows with the number of tokens and not with its square.

Gradient-weighted attention follows Chefer, Gur and Wolf (2021), "Generic Attention-model Explainability": of each map P
with the gradient ∇P of the answer, only what speaks for the answer is kept, Ā = mean_h (∇P ⊙ P)⁺. Give `backward` the
answer first, so that the records know the gradient.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.ops import tiled
from pellucid.ops.exact import weight_blocks
from pellucid.ops.summaries import check_chain, rollout
from pellucid.watching.record import Record

Records = Iterable[Record] | Mapping[str, Record]
WhichHead = int | Literal["mean", "max"]
Start = int | Tensor  # a token, or weights (b t)
# The decoder's layers: attention of the words to each other (None where there is none), and to the context.
DecoderRecords = Sequence[tuple[Record | None, Record]]

__all__ = [
    "backward",
    "check_decoder",
    "check_self",
    "gradient_weighted",
    "gradient_weighted_decoder",
    "list_records",
    "raw",
    "rollout",
    "rollout_decoder",
    "weigh_start",
]


def backward(answer: Float[Tensor, ""], records: Records, *, keep_graph: bool = False) -> None:
    """Leave the gradient of the answer on the records' outputs, and nowhere else: no parameter gets one.

    Gradients of an earlier answer are forgotten. keep_graph: another answer will be asked for.
    """
    outputs = []
    for record in list_records(records):
        if record.live is None:
            raise ValueError(f"record {record.name!r} keeps no gradients; use watch(model, gradients=True)")
        for tensor, _ in record.live.values():
            tensor.grad = None
        outputs.append(record.live["output"][0])
    answer.backward(inputs=outputs, retain_graph=keep_graph)


def raw(record: Record, start: Start, *, head: WhichHead = "mean") -> Float[Tensor, "b k"]:
    """The attention of one layer: how what is read spreads over the keys, in one head, their mean or their maximum."""
    if isinstance(start, int):
        spread = record.row(_token(start, record))
    else:
        spread = record.apply_transposed(start[:, None, :, None])[..., 0]
    if head == "mean":
        return spread.mean(1)
    if head == "max":
        return spread.amax(1)
    if not isinstance(head, int) or not -spread.shape[1] <= head < spread.shape[1]:
        raise ValueError(f"head is {head!r}; expected 'mean', 'max' or one of the heads 0…{spread.shape[1] - 1}")
    return spread[:, head]


def rollout_decoder(
    decoder: DecoderRecords, encoder: Records, start: Start, *, residual: float = 0.5
) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b t"]]:
    """Rollout of an encoder–decoder: the shares that were drawn from the encoder's input and from the words read.

    Both together sum to one. Each attention of the decoder passes `residual` by, as each of the encoder does.
    """
    if not 0.0 <= residual <= 1.0:
        raise ValueError(f"residual is {residual}; expected a share between 0 and 1")
    check_decoder(decoder, encoder := list_records(encoder))
    words = weigh_start(start, decoder[-1][1])
    context: Tensor | None = None
    for own, cross in reversed(decoder):
        part = (1 - residual) * _mean_transposed(cross, words)
        context = part if context is None else context + part
        words = residual * words
        if own is not None:
            words = residual * words + (1 - residual) * _mean_transposed(own, words)
    assert context is not None
    return (rollout(encoder, context, residual=residual) if encoder else context), words


def gradient_weighted(records: Records, start: Start) -> Float[Tensor, "b t"]:
    """What is read of R − 1, where R = (1 + Ā_L)·…·(1 + Ā_1): a vector that walks back, r ← r + Āᵀ·r.

    The identity is left out. It says that what is read is read, in units that have nothing to do with those of Ā; with
    a class token it lies on that token alone.
    """
    records = list_records(records)
    if not records:
        raise ValueError("gradient-weighted attention needs at least one record; got none")
    check_self(records, records[-1].q.shape[2])
    return _walk_back(records, weigh_start(start, records[-1]))


def gradient_weighted_decoder(decoder: DecoderRecords, encoder: Records, start: Start) -> Float[Tensor, "b s"]:
    """The relevance of the encoder's input to a token of the decoder, or of a context nobody encoded to a query.

    Each cross-attention adds R̄_wordsᵀ·Ā·R̄_context, and the words' own attention mixes what was added before (equations
    6, 7 and 10 of the paper). R̄ is what attention has added to the identity, each row divided by its sum, and the
    identity; a row to which nothing was added is the identity's.
    """
    check_decoder(decoder, encoder := list_records(encoder))
    words = weigh_start(start, decoder[-1][1])
    own = [record for record, _ in decoder]
    context: Tensor | None = None
    for layer in reversed(range(len(decoder))):
        before = [record for record in own[: layer + 1] if record is not None]
        part = _relevance(decoder[layer][1], _normalised(before, words), transposed=True)
        context = part if context is None else context + part
        if (record := own[layer]) is not None:
            words = words + _relevance(record, words, transposed=True)
    assert context is not None
    if not encoder:
        return context
    return context + _walk_back(encoder, _share(context, _walk_on(encoder, torch.ones_like(context))))


def _walk_back(records: Sequence[Record], x: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """(Rᵀ − 1)·x: what the layers have added to the identity. Subtracting the identity later would round it away."""
    added = torch.zeros_like(x)
    for record in reversed(records):
        added = added + _relevance(record, x + added, transposed=True)
    return added


def _walk_on(records: Sequence[Record], x: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """(R − 1)·x."""
    added = torch.zeros_like(x)
    for record in records:
        added = added + _relevance(record, x + added)
    return added


def _normalised(records: Sequence[Record], x: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """R̄·x."""
    return x + _share(_walk_on(records, x), _walk_on(records, torch.ones_like(x)))


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.where(whole > 0, 1.0), 0.0)


def _relevance(record: Record, x: Float[Tensor, "b n"], *, transposed: bool = False) -> Float[Tensor, "b m"]:
    """Ā·x or Āᵀ·x, by a kernel where one takes it, else a few rows of Ā at a time."""
    q, k, mask, beta, gate = record.q, record.k, record.mask, record.beta, (record.gradient("output"), record.v)
    if tiled.takes("auto", q, k, mask, beta, *gate):
        return tiled.apply_gated(q, k, x, gate, mask, beta, record.causal, transposed=transposed).to(x.dtype)
    size = record.k.shape[2] if transposed else record.q.shape[2]
    relevance = x.new_zeros(x.shape[0], size)
    for rows, p in weight_blocks(record.q, record.k, record.mask, record.beta, record.causal):
        support = record.weights_gradient(queries=rows).mul_(p).clamp_(min=0).mean(1).to(x.dtype)
        if transposed:
            relevance += (x[:, None, rows] @ support)[:, 0]
        else:
            relevance[:, rows] = (support @ x[..., None])[..., 0]
    return relevance


def _mean_transposed(record: Record, x: Float[Tensor, "b q"]) -> Float[Tensor, "b k"]:
    return record.apply_transposed(x[:, None, :, None])[..., 0].mean(1).to(x.dtype)


def weigh_start(start: Start, record: Record) -> Float[Tensor, "b t"]:
    """What is read after this record, as weights over its queries."""
    b, _, tokens, _ = record.q.shape
    dtype = torch.promote_types(record.q.dtype, torch.float32)
    if isinstance(start, int):
        weights = torch.zeros(b, tokens, dtype=dtype, device=record.q.device)
        weights[:, _token(start, record)] = 1.0
        return weights
    if start.shape != (b, tokens):
        raise ValueError(f"start has shape {list(start.shape)}, expected (b t) = [{b}, {tokens}]")
    return start.to(dtype)


def _token(start: int, record: Record) -> int:
    tokens = record.q.shape[2]
    if not -tokens <= start < tokens:
        raise ValueError(f"start is {start}; expected a token in 0…{tokens - 1}")
    return start % tokens


def check_self(records: Sequence[Record], tokens: int) -> None:
    """Self-attentions over so many tokens, each of which reads the one before, or a sentence."""
    check_chain(records)
    for record in records:
        n_queries, n_keys = record.q.shape[2], record.k.shape[2]
        if not n_queries == n_keys == tokens:
            raise ValueError(
                f"record {record.name!r} has {n_queries} queries and {n_keys} keys, expected {tokens} of both: "
                "it is no self-attention of this row"
            )


def check_decoder(decoder: DecoderRecords, encoder: Sequence[Record]) -> None:
    """Layers whose words and context are the same throughout, or a sentence."""
    if not decoder:
        raise ValueError("the decoder needs at least one layer; got none")
    words, context = decoder[-1][1].q.shape[2], decoder[-1][1].k.shape[2]
    check_self([own for own, _ in decoder if own is not None], words)
    check_self(encoder, context)
    for _, cross in decoder:
        if (cross.q.shape[2], cross.k.shape[2]) != (words, context):
            raise ValueError(
                f"record {cross.name!r} has {cross.q.shape[2]} queries and {cross.k.shape[2]} keys, expected {words} "
                f"and {context}"
            )


def list_records(records: Records) -> list[Record]:
    """Records as given, or as `watch` has seen them."""
    return list(records.values() if isinstance(records, Mapping) else records)
