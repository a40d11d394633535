"""What a captioner says of pictures: sentences, how sure it is of each word, and where it looked as it said it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from pellucid.data.listings import Images
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import END, NEVER, START, CaptionTokenizer
from pellucid.decode.attention import cross_attention
from pellucid.decode.beam import beam_search
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.processes import Processes


@dataclass(frozen=True, eq=False)
class Caption:
    """One caption of one picture.

    log_prob: of the whole sentence, its end included. score: what it was chosen by. word_log_probs: of each word, its
    pieces together. tokens, token_log_probs: the pieces themselves; the end is left out, unless nothing else is said.
    attention (layers heads words rows columns): the weights of the patches as each word was said, the mean of its
    pieces; where the picture has other tokens too, they have the rest. expected: the share of its words that people
    would say, too, as held-out captions of such a score tell; None where that wasn't measured.
    """

    text: str
    words: tuple[str, ...]
    log_prob: float
    score: float
    word_log_probs: tuple[float, ...] = field(repr=False)
    tokens: Int[Tensor, " t"] = field(repr=False)
    token_log_probs: Float[Tensor, " t"] = field(repr=False)
    attention: Tensor | None = field(default=None, repr=False)
    expected: float | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Of each word, the words before it given."""
        return tuple(math.exp(log_prob) for log_prob in self.word_log_probs)

    @property
    def unsure(self) -> bool:
        """Whether most of its words are likely to be wrong."""
        return self.expected is not None and self.expected < 0.5

    def to_json(self) -> dict[str, Any]:
        """The probability of each word, and of the whole sentence with its end."""
        words = zip(self.words, self.probabilities, strict=True)
        return {
            "caption": self.text,
            "log_prob": self.log_prob,
            "score": self.score,
            "expected": self.expected,
            "unsure": self.unsure,
            "words": [{"word": word, "probability": share} for word, share in words],
        }


@torch.no_grad()
def write_captions(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    pixels: UInt8[Tensor, "b c y x"],
    *,
    beam: int = 5,
    n_best: int = 1,
    attention: bool = False,
) -> list[list[Caption]]:
    """The n best captions of each of the pictures, best first."""
    if beam < 1:
        raise ValueError(f"beam is {beam}; expected one or more")
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best is {n_best}; expected 1…{beam}, as many as the beam is wide at most")
    with evaluating(model):
        context = model.encode(PictureReader.of(model.config.encoder).prepare(pixels, model))
        if not context.isfinite().all():
            raise ValueError("what the model makes of the picture is no number; its weights are damaged")
        length = model.config.max_length - 1
        decoded = beam_search(
            model, context, start=START, end=END, length=length, beams=beam, keep=n_best, forbidden=NEVER
        )
        maps = cross_attention(model, context, decoded.tokens, START).float().cpu() if attention else None
    if not decoded.scores[:, 0].isfinite().all():
        raise ValueError("what the model says has no probability; its weights are damaged")
    tokens, log_probs, scores = decoded.tokens.cpu(), decoded.log_probs.cpu(), decoded.scores.double().cpu()
    return [
        [
            _caption(
                model, tokenizer, tokens[i, n], log_probs[i, n], scores[i, n], None if maps is None else maps[i, n]
            )
            for n in range(n_best)
            if scores[i, n].isfinite()  # few words can't be put together in many ways
        ]
        for i in range(len(pixels))
    ]


def caption_all(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    images: Images,
    *,
    beam: int = 5,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
    processes: Processes | None = None,
    known: Mapping[int, str] | None = None,
    keep: Callable[[list[int], list[str]], None] | None = None,
) -> list[str]:
    """The best caption of every image; progress is told how many are done, of how many. processes: share the work.

    known: captions that are there already, by the places of the images; keep: is told of the others as they come. Both
    are the first process's.
    """
    processes = processes or Processes()
    texts = dict(processes.gather(known or {})[0])

    def write(part: Tensor) -> tuple[list[int], list[str]]:
        written = write_captions(model, tokenizer, images.read(part), beam=beam)
        return part.tolist(), [best.text for best, *_ in written]

    parts = [part for part in torch.arange(len(images)).split(batch) if any(i not in texts for i in part.tolist())]
    for places, part in processes.share_work(parts, write):  # the same batches as ever
        new = {place: text for place, text in zip(places, part, strict=True) if place not in texts}
        texts |= new
        if keep is not None:
            keep(list(new), list(new.values()))
        if progress is not None:
            progress(len(texts), len(images))
    return [texts[place] for place in range(len(images))]


def maps_of_words(
    model: Captioner, words: Sequence[tuple[str, slice]], attention: Float[Tensor, "layers heads t s"]
) -> Float[Tensor, "layers heads words rows columns"]:
    """The patches' part of the weights over the picture's tokens, the pieces of a word together."""
    patches = attention[..., model.config.encoder.registers :]
    maps = [patches[:, :, pieces].mean(2) for _, pieces in words]
    stacked = torch.stack(maps, 2) if maps else patches[:, :, :0]
    return stacked.unflatten(-1, model.grid)


def _caption(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    tokens: Int[Tensor, " t"],
    log_probs: Float[Tensor, " t"],
    score: Tensor,
    attention: Tensor | None,
) -> Caption:
    words = tokenizer.words(tokens)
    ends = (tokens == END).nonzero().flatten().tolist()
    length = max(1, ends[0]) if ends else len(tokens)
    return Caption(
        text=" ".join(word for word, _ in words),
        words=tuple(word for word, _ in words),
        log_prob=float(log_probs.double().sum()),
        score=float(score),
        word_log_probs=tuple(float(log_probs[pieces].double().sum()) for _, pieces in words),
        tokens=tokens[:length],
        token_log_probs=log_probs[:length],
        attention=None if attention is None else maps_of_words(model, words, attention),
    )
