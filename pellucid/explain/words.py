"""Why a captioner said each of its words: through the decoder's attention, and back through the encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import END, START, UNKNOWN, CaptionTokenizer
from pellucid.decode.captions import write_captions
from pellucid.explain import chains
from pellucid.explain.chains import WhichHead
from pellucid.explain.flow import flow_decoder
from pellucid.explain.maps import (
    METHODS,
    Map,
    Method,
    input_gradient,
    needs_gradient,
    pick_layer,
    pixels_of,
    random_map,
)
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.watching import watch
from pellucid.watching.record import Record


@dataclass(frozen=True, eq=False)
class WordLook:
    """One watched pass of a captioner over images and what was said of them, the words before each word given.

    >>> import torch, pellucid
    >>> speaker = pellucid.load("captioner-scenes")
    >>> maps = explain_caption(speaker.model, speaker.tokenizer, torch.zeros(3, 48, 48, dtype=torch.uint8), "raw")
    >>> maps[0].word, maps[0].target == speaker.caption(torch.zeros(3, 48, 48, dtype=torch.uint8))[0].words[0]
    (0, True)
    """

    encoder: tuple[Record, ...]
    decoder: tuple[tuple[Record, Record], ...]
    """Of each layer, the words' own attention and that to the image."""
    pixels: Float[Tensor, "b c y x"]
    grid: tuple[int, int]
    scores: Float[Tensor, "b t"]
    """The logit of each word that was said."""

    @classmethod
    def of(
        cls, model: Captioner, pixels: Float[Tensor, "b c y x"], said: Int[Tensor, "b t"], *, gradients: bool = True
    ) -> "WordLook":
        """Watch the model, which is not training; said: tokens without the start."""
        pixels = pixels.detach()
        if gradients:
            pixels = pixels.clone().requires_grad_()
        read = torch.cat([said.new_full((len(said), 1), START), said[:, :-1]], dim=1)
        with torch.set_grad_enabled(gradients), watch(model, gradients=gradients) as seen:
            scores = model(pixels, read).gather(2, said[..., None])[..., 0]
        encoder = tuple(record for name, record in seen.items() if name.startswith("encoder."))
        decoder = tuple(
            (seen[f"decoder.blocks.{i}.attention"], seen[f"decoder.blocks.{i}.cross_attention"])
            for i in range(len(model.decoder.blocks))
        )
        return cls(encoder, decoder, pixels, model.encoder.embed.grid(*pixels.shape[-2:]), scores)

    @torch.enable_grad()
    def map(
        self, method: Method, word: int, *, layer: int = -1, head: WhichHead = "mean", seed: int = 0, last: bool = False
    ) -> Float[Tensor, "b s"]:
        """How much each token of the image counts for one word.

        layer, head: of the raw attention to the image. seed: of the random numbers. last: no more gradients will be
        asked for.
        """
        cross = [record for _, record in self.decoder]
        match method:
            case "raw":
                return chains.raw(pick_layer(cross, layer), word, head=head)
            case "rollout":
                return chains.rollout_decoder(self.decoder, self.encoder, word)[0]
            case "flow":
                return flow_decoder(self.decoder, self.encoder, word)
            case "gradient":
                own = [record for record, _ in self.decoder]
                chains.backward(self.scores[:, word].sum(), [*self.encoder, *own, *cross], keep_graph=not last)
                return chains.gradient_weighted_decoder(self.decoder, self.encoder, word)
            case "input gradient":
                tokens = cross[0].k.shape[2]
                return input_gradient(self.scores[:, word].sum(), self.pixels, tokens, self.grid, keep_graph=not last)
            case "random":
                return random_map(cross[0], seed + word)
        raise ValueError(f"method is {method!r}; expected one of {', '.join(METHODS)}")


def explain_caption(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    image: UInt8[Tensor, "c y x"],
    method: Method = "gradient",
    *,
    caption: str | None = None,
    beam: int = 5,
    layer: int = -1,
    head: WhichHead = "mean",
    seed: int = 0,
) -> tuple[Map, ...]:
    """How much each token of the image counts for each word that the model says, or would say of the given caption.

    A word that is spelled in pieces has a map for each. layer, head: of the raw attention. seed: of random numbers.

    >>> import torch, pellucid
    >>> speaker = pellucid.load("captioner-scenes")
    >>> picture = torch.zeros(3, 48, 48, dtype=torch.uint8)
    >>> [one.target for one in explain_caption(speaker.model, speaker.tokenizer, picture, "raw", caption="a red ring")]
    ['a', 'red', 'ring']
    """
    with evaluating(model):
        pixels = pixels_of(image[None], model.encoder)
        if caption is None:
            tokens = write_captions(model, tokenizer, image[None], beam=beam)[0][0].tokens[None]
        else:
            tokens = _tokens_of(caption, tokenizer, model)
        look = WordLook.of(model, pixels, tokens.to(pixels.device), gradients=needs_gradient([method]))
        labels = piece_labels(tokenizer, tokens[0].tolist())
        how = {"layer": layer, "head": head, "seed": seed}
        end = len(labels) - 1
        maps = [look.map(method, word, **how, last=word == end)[0] for word in range(len(labels))]
    return tuple(Map(method, label, word, maps[word]) for word, label in enumerate(labels))


@dataclass(frozen=True, eq=False)
class Unsaid:
    """A word that a captioner needn't have said of a picture, at the place of its caption where it would be likeliest.

    after: the words before that place. probability: of the word there. blank: of the same words and a picture without
    content: what the sentence alone suggests.

    >>> import torch
    >>> Unsaid("dog", ("a",), 0.2, 0.1, Map("gradient", "dog", 1, torch.ones(4))).gain
    2.0
    """

    word: str
    after: tuple[str, ...]
    probability: float
    blank: float
    map: Map
    """Where it would look for the word."""

    @property
    def gain(self) -> float:
        """How many times likelier the picture makes it; less than one, and the picture speaks against it."""
        return self.probability / max(self.blank, 1e-12)

    def to_json(self) -> dict[str, Any]:
        """All of it but the map, as JSON has it."""
        return {name: getattr(self, name) for name in ("word", "after", "probability", "blank", "gain")}


def explain_word(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    image: UInt8[Tensor, "c y x"],
    word: str,
    method: Method = "gradient",
    *,
    caption: str | None = None,
    beam: int = 5,
) -> Unsaid:
    """Where a captioner would look for a word that it didn't say, at the place of its caption where that fits best.

    caption: to be read instead of its own. A word in pieces has the mean of their maps.

    >>> import torch, pellucid
    >>> speaker = pellucid.load("captioner-scenes")
    >>> unsaid = explain_word(speaker.model, speaker.tokenizer, torch.zeros(3, 48, 48, dtype=torch.uint8), "ring")
    >>> unsaid.word, 0 < unsaid.probability < 1, len(unsaid.map.values)
    ('ring', True, 64)
    """
    forced = spell(word, tokenizer)
    with evaluating(model):
        reader = PictureReader.of(model.config.encoder)
        pixels = pixels_of(image[None], model.encoder)
        if caption is None:
            said = write_captions(model, tokenizer, image[None], beam=beam)[0][0].tokens
        else:
            said = _tokens_of(caption, tokenizer, model)[0]
        said = said[said != END][: model.config.max_length - 1 - len(forced)].cpu()
        with torch.no_grad():
            context = model.encode(torch.cat([pixels, reader.prepare(reader.blank()[None], model).to(pixels)]))
            rows = [torch.cat([said.new_tensor([START]), said[:place], forced]) for place in range(len(said) + 1)]
            log_probs = torch.stack([_force(model, context, row, len(forced)) for row in rows])
        place = int(log_probs[:, 0].argmax())
        tokens = torch.cat([said[:place], forced])[None].to(pixels.device)
        look = WordLook.of(model, pixels, tokens, gradients=needs_gradient([method]))
        maps = [look.map(method, place + i, last=i == len(forced) - 1)[0] for i in range(len(forced))]
    after = tuple(before for before, _ in tokenizer.words(said[:place]))
    seen, blank = (float(value) for value in log_probs[place].exp())
    return Unsaid(word, after, seen, blank, Map(method, word, place, torch.stack(maps).mean(0)))


def spell(word: str, tokenizer: CaptionTokenizer) -> Int[Tensor, " t"]:
    """The pieces of one word that the captioner can say; a sentence for any other."""
    pieces = tokenizer.encode(word)
    if UNKNOWN in pieces or len(tokenizer.words(pieces)) != 1:
        raise ValueError(f"{word!r} is no word that this captioner knows; {_name_near(word, tokenizer)}")
    return torch.tensor(pieces)


def _force(
    model: Captioner, context: Float[Tensor, "b s d"], row: Int[Tensor, " t"], count: int
) -> Float[Tensor, " b"]:
    """The log-probability of the last tokens of a row, all that is before them given, for each context."""
    read = row[:-1].to(context.device).expand(len(context), -1)
    log_probs = model.decode(read, context)[:, -count:].float().log_softmax(-1)
    return log_probs.gather(2, row[-count:].to(context.device).expand(len(context), -1)[..., None]).sum((1, 2))


def _name_near(word: str, tokenizer: CaptionTokenizer) -> str:
    """Words that are spelled alike, or how many there are."""
    known = [each for each in tokenizer.tokenizer.get_vocab() if not each.startswith("<")]
    near = get_close_matches(word.lower(), known, 3)
    return f"it knows {', '.join(near)}" if near else f"it knows {len(known):,} others, and none like it"


def piece_labels(tokenizer: CaptionTokenizer, tokens: Sequence[int]) -> tuple[str, ...]:
    """Tokens as they are read: words, or the pieces that spell them."""
    return tuple((tokenizer.tokenizer.id_to_token(token) or "?").removesuffix("</w>") for token in tokens)


def _tokens_of(caption: str, tokenizer: CaptionTokenizer, model: Captioner) -> Int[Tensor, "1 t"]:
    tokens = tokenizer.encode(caption)
    if not 1 <= len(tokens) <= model.config.max_length:
        raise ValueError(f"{caption!r} has {len(tokens)} tokens; expected 1…{model.config.max_length}")
    return torch.tensor([tokens])
