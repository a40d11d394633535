"""What a translator says of sentences: translations, how sure it is of each word, and which words it read for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.tokenizer import END, NEVER, PAD, START
from pellucid.decode.attention import cross_attention
from pellucid.decode.beam import beam_search
from pellucid.decode.decoded import Decoded
from pellucid.decode.rows import sample
from pellucid.layers.modes import evaluating
from pellucid.models.transformer import Transformer
from pellucid.ops import masks

ROOM = 16  # sources are filled up to a multiple of it, so that there are few shapes to capture graphs of
SLACK = 16  # pieces that a translation may have beyond twice those of its source


@dataclass(frozen=True)
class Sampling:
    """Translations drawn by chance instead of searched for. Fields as in `decode.sample`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Translation:
    """One translation of one sentence.

    log_prob: of the whole, its end included. score: what it was chosen by. word_log_probs: of each word, its pieces
    together. attention (layers heads words source_words): the weights of the source's words as each word was said, a
    word's pieces together; the end of the source, and the language that was asked for, have the rest.
    """

    text: str
    source: str
    log_prob: float
    score: float
    words: tuple[str, ...] = field(repr=False)
    source_words: tuple[str, ...] = field(repr=False)
    word_log_probs: tuple[float, ...] = field(repr=False)
    tokens: Int[Tensor, " t"] = field(repr=False)
    attention: Tensor | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of each word, the words before it given."""
        return tuple(math.exp(log_prob) for log_prob in self.word_log_probs)

    def to_json(self) -> dict[str, Any]:
        words = zip(self.words, self.probabilities, strict=True)
        return {
            "source": self.source,
            "translation": self.text,
            "log_prob": self.log_prob,
            "score": self.score,
            "words": [{"word": word, "probability": share} for word, share in words],
        }


@torch.no_grad()
def translate_all(
    model: Transformer,
    tokenizer: SubwordTokenizer,
    sentences: Sequence[str],
    *,
    language: str | None = None,
    beam: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    sampling: Sampling | None = None,
    attention: bool = False,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Translation]]:
    """The n best translations of each sentence, best first; sentences of about one length are translated together.

    language: which one, if the model speaks several. beam: 1 is greedy. sampling: draw n_best instead of searching.
    progress: is told how many are done, of how many.
    """
    if beam < 1:
        raise ValueError(f"beam is {beam}; expected one or more")
    if n_best < 1 or (sampling is None and n_best > beam):
        raise ValueError(f"n_best is {n_best}; expected 1…{beam}, as many as the beam is wide at most")
    sources = [tokenizer.source(sentence, language) for sentence in sentences]
    _check_lengths(sources, model.config.max_length)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    translations: list[list[Translation]] = [[] for _ in sentences]
    done = 0
    with evaluating(model):
        for first in range(0, len(order), batch):
            places = order[first : first + batch]
            source, exists = _padded([sources[i] for i in places], model)
            context = model.encode(source, exists)
            if not context.isfinite().all():
                raise ValueError("what the model makes of the sentence is no number; its weights are damaged")
            decoded = _decode(model, context, exists, beam, n_best, length_penalty, sampling)
            if not decoded.scores[:, 0].isfinite().all():
                raise ValueError("what the model says has no probability; its weights are damaged")
            maps = cross_attention(model, context, decoded.tokens, START, exists) if attention else None
            for place, several in zip(
                places, _translations_of(tokenizer, sentences, sources, places, decoded, maps), strict=True
            ):
                translations[place] = several
            done += len(places)
            if progress is not None:
                progress(done, len(sentences))
    return translations


def _decode(
    model: Transformer,
    context: Float[Tensor, "b s d"],
    exists: Tensor,
    beam: int,
    n_best: int,
    length_penalty: float,
    sampling: Sampling | None,
) -> Decoded:
    how: dict[str, Any] = {
        "start": START, "end": END, "forbidden": NEVER, "context_mask": exists,
        "length": min(model.config.max_length, 2 * context.shape[1] + SLACK),
    }  # fmt: skip
    if sampling is None:
        return beam_search(model, context, beams=beam, keep=n_best, length_penalty=length_penalty, **how)
    generator = torch.Generator().manual_seed(sampling.seed)
    chosen = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    return sample(model, context, count=n_best, generator=generator, **chosen, **how)


def _translations_of(
    tokenizer: SubwordTokenizer,
    sentences: Sequence[str],
    sources: Sequence[Sequence[int]],
    places: Sequence[int],
    decoded: Decoded,
    maps: Tensor | None,
) -> list[list[Translation]]:
    tokens, log_probs, scores = decoded.tokens.cpu(), decoded.log_probs.cpu(), decoded.scores.double().cpu()
    maps = None if maps is None else maps.float().cpu()
    translations = []
    for row, place in enumerate(places):
        read = tokenizer.words(sources[place])
        several = []
        for n in range(tokens.shape[1]):
            if not scores[row, n].isfinite():
                continue  # few pieces can't be put together in many ways
            said = tokenizer.words(tokens[row, n])
            several.append(
                Translation(
                    text=tokenizer.decode(tokens[row, n]),
                    source=sentences[place],
                    log_prob=float(log_probs[row, n].double().sum()),
                    score=float(scores[row, n]),
                    words=tuple(word for word, _ in said),
                    source_words=tuple(word for word, _ in read),
                    word_log_probs=tuple(float(log_probs[row, n][pieces].double().sum()) for _, pieces in said),
                    tokens=tokens[row, n, : int(decoded.lengths[row, n])],
                    attention=None if maps is None else map_words(maps[row, n], said, read),
                )
            )
        translations.append(several)
    return translations


def map_words(
    weights: Float[Tensor, "*maps t s"], said: Sequence[tuple[str, slice]], read: Sequence[tuple[str, slice]]
) -> Float[Tensor, "*maps words source_words"]:
    """Of words, not pieces: what a word's pieces read on average, and of a source word all that its pieces got."""
    rows = [weights[..., pieces, :].mean(-2) for _, pieces in said]
    by_word = torch.stack(rows, -2) if rows else weights[..., :0, :]
    columns = [by_word[..., pieces].sum(-1) for _, pieces in read]
    return torch.stack(columns, -1) if columns else by_word[..., :0]


def _padded(sources: Sequence[Sequence[int]], model: Transformer) -> tuple[Int[Tensor, "b s"], Tensor]:
    device = next(model.parameters()).device
    lengths = torch.tensor([len(source) for source in sources])
    longest = min(-(-int(lengths.max()) // ROOM) * ROOM, max(model.config.max_length, int(lengths.max())))
    rows = torch.full((len(sources), longest), PAD)
    for row, source in zip(rows, sources, strict=True):
        row[: len(source)] = torch.tensor(source)
    return rows.to(device), masks.padding(lengths, longest).to(device)


def _check_lengths(sources: Sequence[Sequence[int]], most: int) -> None:
    for number, source in enumerate(sources, 1):
        if len(source) > most:
            raise ValueError(
                f"sentence {number} has {len(source)} pieces; expected up to {most}, as the model was made"
            )
