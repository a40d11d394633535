"""What a captioner says of pictures: sentences, how sure it is of each word, and where it looked as it said it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from pellucid.data.augment import Normalise, normalised
from pellucid.data.listings import Images
from pellucid.data.tokenizer import END, NEVER, START, CaptionTokenizer
from pellucid.decode import beam_search, cross_attention
from pellucid.models.captioner import Captioner


@dataclass(frozen=True, eq=False)
class Said:
    """One caption of one picture.

    log_prob: of the whole sentence, its end included. score: what it was chosen by. word_log_probs: of each word, its
    pieces together. attention (layers heads words rows columns): the weights of the patches as each word was said, the
    mean of its pieces; where the picture has other tokens too, they have the rest.
    """

    caption: str
    words: tuple[str, ...]
    log_prob: float
    score: float
    word_log_probs: tuple[float, ...]
    attention: Tensor | None = None


@torch.no_grad()
def describe(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    pixels: Tensor,
    normalise: Normalise,
    *,
    beam: int = 5,
    n_best: int = 1,
    attention: bool = False,
) -> list[list[Said]]:
    """The n best captions of each of the pictures, uint8 (b c y x), best first."""
    if beam < 1:
        raise ValueError(f"beam is {beam}; expected one or more")
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best is {n_best}; expected 1…{beam}, as many as the beam is wide at most")
    was_training = model.training
    model.eval()
    context = model.encode(normalised(pixels.to(_device(model)), normalise))
    if not context.isfinite().all():
        raise ValueError("what the model makes of the picture is no number; its weights are damaged")
    found = beam_search(
        model,
        context,
        start=START,
        end=END,
        length=model.config.max_length - 1,
        beams=beam,
        keep=n_best,
        forbidden=NEVER,
    )
    maps = cross_attention(model, context, found.tokens, START).float().cpu() if attention else None
    model.train(was_training)
    if not found.scores[:, 0].isfinite().all():
        raise ValueError("what the model says has no probability; its weights are damaged")
    tokens, log_probs, scores = found.tokens.cpu(), found.log_probs.double().cpu(), found.scores.double().cpu()
    return [
        [
            _said(
                model,
                tokenizer,
                tokens[i, n],
                log_probs[i, n],
                float(scores[i, n]),
                None if maps is None else maps[i, n],
            )
            for n in range(n_best)
            if scores[i, n].isfinite()  # few words can't be put together in many ways
        ]
        for i in range(len(pixels))
    ]


def captions_of(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    images: Images,
    normalise: Normalise,
    *,
    beam: int = 5,
    batch: int = 64,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """The best caption of every image; progress is told how many are done."""
    found: list[str] = []
    for part in torch.arange(len(images)).split(batch):
        found += [best.caption for best, *_ in describe(model, tokenizer, images.read(part), normalise, beam=beam)]
        if progress is not None:
            progress(len(found))
    return found


def blank_picture(model: Captioner, normalise: Normalise) -> UInt8[Tensor, "1 c y x"]:
    """A picture without content: the mean colour of the training images, everywhere."""
    colour = torch.tensor(normalise.mean).mul(255).round().to(torch.uint8)
    return colour[None, :, None, None].expand(-1, -1, *model.config.encoder.image).contiguous()


def by_word(
    model: Captioner, words: list[tuple[str, slice]], attention: Float[Tensor, "layers heads t s"]
) -> Float[Tensor, "layers heads words rows columns"]:
    """The patches' part of the weights over the picture's tokens, the pieces of a word together."""
    patches = attention[..., model.config.encoder.registers :]
    maps = [patches[:, :, pieces].mean(2) for _, pieces in words]
    found = torch.stack(maps, 2) if maps else patches[:, :, :0]
    return found.unflatten(-1, model.grid)


def _said(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    tokens: Tensor,
    log_probs: Tensor,
    score: float,
    attention: Tensor | None,
) -> Said:
    words = tokenizer.words(tokens)
    return Said(
        caption=" ".join(word for word, _ in words),
        words=tuple(word for word, _ in words),
        log_prob=float(log_probs.sum()),
        score=score,
        word_log_probs=tuple(float(log_probs[pieces].sum()) for _, pieces in words),
        attention=None if attention is None else by_word(model, words, attention),
    )


def _device(model: Captioner) -> torch.device:
    return next(model.parameters()).device
