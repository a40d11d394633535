"""One watched forward pass as data: what the model saw, what it said, and everything its attention follows from.

A trace keeps queries and keys and no map: any row of any head, under any β, is a softmax away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxtyping import UInt8
from torch import Tensor

from pellucid.data.tokenizer import END, SPECIAL_NAMES, START, CaptionTokenizer
from pellucid.decode.captions import Caption, write_captions
from pellucid.explain.classes import class_names, look_at, target_of
from pellucid.explain.layers import Layer as Layer
from pellucid.explain.layers import layer_of
from pellucid.explain.maps import Map as Map
from pellucid.explain.maps import Method, needs_gradient, pixels_of
from pellucid.explain.words import WordLook, piece_labels
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.models.vit import ViT

StreamKind = Literal["text", "patches", "frames", "tokens"]
USUAL_METHODS: tuple[Method, ...] = ("rollout", "gradient")


@dataclass(frozen=True, eq=False)
class Stream:
    """A row of tokens that attend or are attended to.

    >>> Stream("image", "patches", tuple("abcde"), special=(0,), grid=(2, 2), first=1).grid
    (2, 2)
    """

    name: str
    """"image", "words", "text", "source", …"""
    kind: StreamKind
    labels: tuple[str, ...]
    """Of text what it says, of patches their places, of frames their times; of generated text what was read."""
    special: tuple[int, ...] = ()
    """Places of tokens that stand for nothing that was given: class token, registers, [SEP], <s>."""
    grid: tuple[int, int] | None = None
    """Rows and columns of patches."""
    first: int = 0
    """Which token is the first patch; rows·columns of them follow each other, row by row."""
    picture: int | None = None
    """Which of the trace's pictures the patches are of."""
    seconds: float | None = None
    """How long a frame is."""
    prompt: int | None = None
    """Of text that was generated: so many tokens were given. Word j was said by the query at prompt − 1 + j."""

    @classmethod
    def patches(cls, name: str, labels: Sequence[str], grid: tuple[int, int], picture: int | None = 0) -> "Stream":
        """Patches that are the last of their tokens, as they are behind a class token and registers.

        >>> Stream.patches("image", ("class", "patch 0,0", "patch 0,1"), (1, 2)).first
        1
        """
        first = len(labels) - grid[0] * grid[1]
        return cls(name, "patches", tuple(labels), tuple(range(first)), grid, first, picture)


@dataclass(frozen=True, eq=False)
class SeenPicture:
    """A picture as the model saw it, before normalisation.

    >>> import torch
    >>> SeenPicture("ship.png", torch.zeros(3, 8, 8, dtype=torch.uint8)).name
    'ship.png'
    """

    name: str
    pixels: UInt8[Tensor, "c y x"]


@dataclass(frozen=True)
class Likely:
    """What was likely at one place of a text: after a token, or instead of a masked one."""

    stream: str
    position: int
    answers: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """One watched forward pass of one input.

    >>> import torch, pellucid
    >>> seen = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    >>> seen.kind, seen.streams[0].grid, seen.layers[0].q.shape
    ('classifier', (8, 8), torch.Size([4, 64, 64]))
    """

    model: str
    """Name to show."""
    kind: str
    """classifier, captioner, translator, language, encoder, or another word to show."""
    streams: tuple[Stream, ...]
    pictures: tuple[SeenPicture, ...]
    layers: tuple[Layer, ...]
    answers: tuple[tuple[str, float], ...]
    """Classes, or the next token, with their probabilities, best first."""
    words: tuple[tuple[str, float], ...]
    """What was generated with log-probabilities, in order; the stream that has a prompt says where."""
    maps: tuple[Map, ...]
    steps: tuple[Likely, ...] = ()
    missed: tuple[tuple[str, str], ...] = ()
    """Attentions that ran and that the trace doesn't hold, each with the reason."""

    def stream(self, name: str) -> Stream:
        """The stream of this name."""
        return next(each for each in self.streams if each.name == name)

    @property
    def said(self) -> str:
        """The words as a sentence: pieces of words bring their own spaces, whole words don't; its end isn't written."""
        words = [word for word, _ in self.words if word != SPECIAL_NAMES[END]]
        return ("" if any(word.startswith(" ") for word in words) else " ").join(words).strip()


def trace(
    model: ViT,
    image: UInt8[Tensor, "c y x"],
    *,
    labels: Sequence[str] | None = None,
    name: str = "",
    methods: Sequence[Method] = USUAL_METHODS,
    target: int | str | None = None,
    top: int = 5,
) -> Trace:
    """Watch a vision transformer look at one image.

    labels: names of the classes; the model's own unless given. target: the class that the maps explain, by number or
    name; the likeliest unless given. top: how many answers are kept.

    >>> import torch, pellucid
    >>> model = pellucid.load("vit-cifar10").model
    >>> seen = trace(model, torch.zeros(3, 32, 32, dtype=torch.uint8), methods=["rollout"], top=2)
    >>> len(seen.layers) == model.config.depth, len(seen.answers), seen.maps[0].method
    (True, 2, 'rollout')
    """
    if top < 1:
        raise ValueError(f"top is {top}; expected one or more")
    names = class_names(model, labels)
    wanted = target_of(target, names)
    with evaluating(model):
        pixels = pixels_of(image[None], model)
        grid = model.embed.grid(*pixels.shape[-2:])
        look = look_at(model, pixels, wanted, gradients=needs_gradient(methods))
        shares, places = look.output.detach()[0].float().softmax(-1).topk(min(top, len(names)))
        answer = names[int(look.output[0].argmax()) if wanted is None else wanted]
        maps = tuple(Map(method, answer, None, look.map(method)[0].cpu()) for method in methods)
    return Trace(
        model=name,
        kind="classifier",
        streams=(image_tokens(model, grid),),
        pictures=(SeenPicture("image", image.cpu()),),
        layers=tuple(layer_of(record, "image", "image") for record in look.records),
        answers=tuple((names[place], share) for place, share in zip(places.tolist(), shares.tolist(), strict=True)),
        words=(),
        maps=maps,
    )


def trace_caption(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    image: UInt8[Tensor, "c y x"],
    *,
    caption: Caption | None = None,
    beam: int = 5,
    methods: Sequence[Method] = USUAL_METHODS,
    name: str = "",
) -> Trace:
    """Watch a captioner say what it sees in one image; each map explains one word.

    caption: what it said already; it is searched for, with this beam, unless given.

    >>> import torch, pellucid
    >>> speaker = pellucid.load("captioner-scenes")
    >>> picture = torch.zeros(3, 48, 48, dtype=torch.uint8)
    >>> seen = trace_caption(speaker.model, speaker.tokenizer, picture, methods=["raw"])
    >>> len(seen.words) == len(seen.maps)
    True
    """
    caption = caption or write_captions(model, tokenizer, image[None], beam=beam)[0][0]
    with evaluating(model):
        pixels = pixels_of(image[None], model.encoder)
        look = WordLook.of(model, pixels, caption.tokens[None].to(pixels.device), gradients=needs_gradient(methods))
        labels = piece_labels(tokenizer, caption.tokens.tolist())
        maps = tuple(
            Map(method, label, word, look.map(method, word)[0].cpu())
            for method in methods
            for word, label in enumerate(labels)
        )
    image_row = image_tokens(model.encoder, look.grid)
    words_row = Stream("words", "text", (SPECIAL_NAMES[START], *labels[:-1]), special=(0,), prompt=1)
    own = [layer_of(record, "words", "words") for record, _ in look.decoder if record is not None]
    cross = [layer_of(record, "words", "image") for _, record in look.decoder]
    decoder = [layer for pair in zip(own, cross, strict=True) for layer in pair]
    return Trace(
        model=name,
        kind="captioner",
        streams=(image_row, words_row),
        pictures=(SeenPicture("image", image.cpu()),),
        layers=(*(layer_of(record, "image", "image") for record in look.encoder), *decoder),
        answers=(),
        words=tuple(zip(labels, caption.token_log_probs.tolist(), strict=True)),
        maps=maps,
    )


def image_tokens(model: ViT, grid: tuple[int, int]) -> Stream:
    """The tokens of an image in their order: class token, registers, patches row by row."""
    first = ["class"] if model.class_token is not None else []
    registers = [f"register {i + 1}" for i in range(model.config.registers)]
    patches = [f"patch {row},{column}" for row in range(grid[0]) for column in range(grid[1])]
    return Stream.patches("image", (*first, *registers, *patches), grid)
