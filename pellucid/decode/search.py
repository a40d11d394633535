"""One step of decoding, and the loop around it.

Greedy decoding, sampling and beam search differ in how they choose. What they share: n rows (one or more for each
context) of k beams. The beams of a row are not k sequences but one, which grows by k tokens at each step, and a table
says which of them a beam descends from. So when beams are reordered, only that table is: tokens, keys and values stay
where they were written, and those of the context are shared by all.

On CUDA every step does the same work on the same tensors, without asking the device for an answer: it is captured as a
graph, once for each shape, and replayed, and the table becomes a mask over all the places there will be. On the CPU a
step attends to the places that are written, and a beam to those it descends from, and contexts that are done leave.
"""

import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from pellucid.decode.decoded import Decoded
from pellucid.layers import DecoderCache, KVCache, ListedCache, PlacedCache
from pellucid.ops.attention import has_observers

LOOKS_EVERY = 8  # steps between two looks at whether all is said: on CUDA each look waits for the device
CAPTURED = 4  # graphs kept for each model
LEAVE = 4  # as soon as one of so many contexts is done, those that are leave: what stays is copied for it
ROOM = 16  # tokens of a beam that there is room for at first: scores are computed for all the room


class Decodable(Protocol):
    """What can be decoded: a Captioner, a Transformer. One whose contexts are padded takes a `source_mask`, too."""

    def decode(
        self,
        tokens: Tensor,
        context: Tensor,
        /,
        *,
        mask: Tensor | None,
        causal: bool,
        positions: Tensor | None,
        cache: list[DecoderCache] | None,
    ) -> Tensor: ...

    def cache(self, length: int | None = None) -> list[DecoderCache]: ...


class Search(ABC):
    """The state of decoding, changed in place by `begin` and `advance`. The model is not part of it.

    context_mask: which tokens of each context exist. rows: for each context. beams: of each row. keep: sequences that
    are wanted of each context. forbidden: tokens that are never said. static: every step is the same work on the same
    tensors.
    """

    def __init__(
        self,
        model: Decodable,
        context: Float[Tensor, "b s d"],
        context_mask: Bool[Tensor, "b 1 1 s"] | None = None,
        *,
        start: int,
        end: int,
        length: int,
        forbidden: tuple[int, ...] = (),
        rows: int = 1,
        beams: int = 1,
        keep: int = 1,
        static: bool = False,
    ):
        if length < 1:
            raise ValueError(f"length is {length}; expected one token or more")
        n, k, device = context.shape[0] * rows, beams, context.device
        self.context, self.context_mask = context, context_mask
        self.start, self.end, self.length, self.static = start, end, length, static
        self.rows, self.keep = rows, keep
        self.forbidden = torch.tensor(forbidden, dtype=torch.long, device=device)
        self.own = torch.arange(k, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)  # of the token said last
        self.places = self.own.clone()  # where its keys and values go
        self.cache = model.cache(length)
        for each in self.cache:
            each.tokens = self._empty()
        self.token = torch.zeros(n, k, dtype=torch.long, device=device)
        self.ancestors = torch.zeros(n, k, length, dtype=torch.long, device=device)
        self.tokens = torch.zeros(n, k, length, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(n, k, length, dtype=_at_least_float32(context), device=device)
        self.sums = torch.zeros(n, k, dtype=self.log_probs.dtype, device=device)
        self.lengths = torch.zeros(n, k, dtype=torch.long, device=device)
        self.ended = torch.zeros(n, k, dtype=torch.bool, device=device)

    def _empty(self) -> KVCache:
        k = len(self.own)
        if self.static:
            return PlacedCache(self.length * k, self.places)
        return KVCache(self.length) if k == 1 else ListedCache(k * min(self.length, ROOM))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What another call with the same shapes brings anew."""
        return (self.context,) if self.context_mask is None else (self.context, self.context_mask)

    def begin(self) -> None:
        """Nothing is said, and the context not yet read."""
        self.token.fill_(self.start)
        self.places.copy_(self.own)
        self.ancestors.fill_(-1)
        self.tokens.fill_(self.end)
        for state in (self.place, self.log_probs, self.sums, self.lengths, self.ended):
            state.zero_()
        for each in self.cache:
            each.context = None
            each.tokens.clear()

    @abstractmethod
    def advance(self, model: Decodable) -> None:
        """Say one more token in each beam."""

    def done(self) -> Bool[Tensor, " b"]:
        """For which contexts more tokens would change nothing."""
        return self.ended.view(-1, self.rows * len(self.own)).all(1)

    def narrow(self, stays: Bool[Tensor, " b"]) -> None:
        """Go on with these contexts alone."""
        rows = stays.repeat_interleave(self.rows)
        self.context = self.context[stays]
        self.context_mask = None if self.context_mask is None else self.context_mask[stays]
        self.token, self.ancestors, self.tokens = self.token[rows], self.ancestors[rows], self.tokens[rows]
        self.log_probs, self.sums = self.log_probs[rows], self.sums[rows]
        self.lengths, self.ended = self.lengths[rows], self.ended[rows]
        for each in self.cache:
            each.narrow(stays, rows)

    def scores(self) -> Float[Tensor, "n k"]:
        return self.sums / self.lengths

    def result(self) -> Decoded:
        """The best for each context, as many as are wanted, cut where the longest ends."""
        scores, tokens, log_probs, lengths = (
            x.unflatten(0, (-1, self.rows)).flatten(1, 2)
            for x in (self.scores(), self._past(self.tokens), self._past(self.log_probs), self.lengths)
        )
        scores, best = scores.sort(dim=1, descending=True, stable=True)
        best = best[:, : self.keep]
        lengths = lengths.gather(1, best)
        each = best[..., None].expand(-1, -1, int(lengths.max()))
        return Decoded(tokens.gather(1, each), log_probs.gather(1, each), lengths, scores[:, : self.keep].clone())

    def _past(self, values: Shaped[Tensor, "n k length"]) -> Shaped[Tensor, "n k length"]:
        """What each beam descends from: a token lies where the step after it found it, the last one where it is."""
        beam = self.ancestors.roll(-1, dims=2)
        beam[..., -1] = -1
        return values.gather(1, torch.where(beam < 0, self.own[:, None], beam))

    def _log_probs(self, model: Decodable) -> Float[Tensor, "n k v"]:
        """Of the next tokens, as the model sees them; −∞ for what is forbidden, without more for the others."""
        k = len(self.own)
        self.ancestors.index_copy_(2, self.place, self.own[:, None].expand(len(self.token), k, 1))
        mask = None
        if self.static:  # a place nobody wrote has the ancestor −1, who is nobody
            mask = (self.ancestors[..., None] == self.own).flatten(-2)[:, None]
        elif k > 1:
            steps = torch.arange(0, len(self.cache[0].tokens) + k, k, device=self.place.device)
            listed = self.ancestors[:, :, : len(steps)] + steps
            for each in self.cache:
                each.tokens.listed = listed
        positions = self.place.expand(k)
        how: dict[str, Any] = {} if self.context_mask is None else {"source_mask": self.context_mask}
        logits = model.decode(
            self.token, self.context, mask=mask, causal=False, positions=positions, cache=self.cache, **how
        ).to(self.sums.dtype)
        return logits.log_softmax(-1).index_fill_(-1, self.forbidden, -torch.inf)

    def _say(self, token: Int[Tensor, "n k"], log_prob: Float[Tensor, "n k"]) -> None:
        """Add a token to each beam; one that has ended goes on saying the end."""
        log_prob = log_prob.masked_fill(self.ended, 0.0)
        token = token.masked_fill(self.ended, self.end)
        self.tokens.index_copy_(2, self.place, token[..., None])
        self.log_probs.index_copy_(2, self.place, log_prob[..., None])
        self.sums += log_prob
        self.lengths += ~self.ended
        self.ended |= token == self.end
        self.token.copy_(token)
        self.place += 1
        self.places += len(self.own)


@torch.no_grad()
def run_search(kind: type[Search], model: Decodable, *inputs: Tensor, **options: Any) -> Decoded:
    """What the search of this kind finds."""
    if inputs[0].is_cuda and not has_observers():
        return _captured(kind, model, inputs, options).run(inputs).result()
    with torch.inference_mode():  # a twentieth of a small model's time goes into what it leaves out
        search = kind(model, *inputs, **options)
        leaving = not has_observers()  # whose records are of one batch, from the first step to the last
        search.begin()
        places, found = torch.arange(len(inputs[0])), []
        for _ in range(search.length):
            search.advance(model)
            if not bool(search.ended.any()):
                continue
            done = search.done()
            if bool(done.all()):
                break
            if leaving and LEAVE * int(done.sum()) >= len(done):
                found.append((places[done.cpu()], search.result().of(done)))
                search.narrow(~done)
                places = places[~done.cpu()]
        found.append((places, search.result()))
    return _join(found, search.end)


def _join(found: list[tuple[Tensor, Decoded]], end: int) -> Decoded:
    """Parts of a batch, each with its places there, as one."""
    order = torch.cat([places for places, _ in found]).argsort()
    parts = [part for _, part in found]
    longest = max(part.tokens.shape[-1] for part in parts)
    tokens = [F.pad(part.tokens, (0, longest - part.tokens.shape[-1]), value=end) for part in parts]
    log_probs = [F.pad(part.log_probs, (0, longest - part.log_probs.shape[-1])) for part in parts]
    lengths, scores = [part.lengths for part in parts], [part.scores for part in parts]
    return Decoded(*(torch.cat(each)[order.to(each[0].device)] for each in (tokens, log_probs, lengths, scores)))


class _Captured:
    """A search whose first step and whose every other step are CUDA graphs."""

    def __init__(self, model: Decodable, search: Search):
        self.search = search
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), _uncached_autocast():  # libraries set themselves up when they are first called
            for _ in range(2):
                search.begin()
                search.advance(model)
        torch.cuda.current_stream().wait_stream(aside)
        self.first, self.next = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _uncached_autocast():
            with torch.cuda.graph(self.first, capture_error_mode="thread_local"):
                search.begin()
                search.advance(model)
            with torch.cuda.graph(self.next, pool=self.first.pool(), capture_error_mode="thread_local"):
                search.advance(model)

    def run(self, inputs: tuple[Tensor, ...]) -> Search:
        for ours, new in zip(self.search.inputs, inputs, strict=True):
            ours.copy_(new)
        self.first.replay()
        for i in range(1, self.search.length):
            if i % LOOKS_EVERY == 0 and bool(self.search.done().all()):
                break
            self.next.replay()
        return self.search


_graphs: "weakref.WeakKeyDictionary[Any, OrderedDict[Any, _Captured]]" = weakref.WeakKeyDictionary()


def _captured(kind: type[Search], model: Decodable, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> _Captured:
    """The graphs of such a search, from before if nothing they hold on to has moved."""
    assert isinstance(model, nn.Module)
    shapes = tuple((x.shape, x.dtype, x.device) for x in inputs)
    how = (model.training, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
    weights = tuple(p.data_ptr() for p in model.parameters())
    key = (kind, tuple(sorted(options.items())), shapes, how, weights)
    graphs = _graphs.setdefault(model, OrderedDict())
    if key not in graphs:
        while len(graphs) >= CAPTURED:
            graphs.popitem(last=False)
        graphs[key] = _Captured(model, kind(model, *(x.clone() for x in inputs), **options, static=True))
    graphs.move_to_end(key)
    return graphs[key]


def _uncached_autocast() -> torch.autocast:
    """Autocast as it is around us, but without its memory of cast weights, which a graph must not share."""
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False)


def _at_least_float32(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
