"""One watched forward pass as data: what the model saw, what it said, and everything its attention follows from.

A trace keeps queries and keys and no map: any row of any head, under any β, is a softmax away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from pellucid.data.tokenizer import SPECIAL_NAMES, START, CaptionTokenizer
from pellucid.decode.captions import Caption, write_captions
from pellucid.explain.classes import class_names, look_at, target_of
from pellucid.explain.maps import Map as Map
from pellucid.explain.maps import Method, needs_gradient, pixels_of
from pellucid.explain.words import WordLook, piece_labels
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.models.vit import ViT
from pellucid.ops.exact import share_heads
from pellucid.ops.rules import Rule
from pellucid.watching.record import Record

USUAL_METHODS: tuple[Method, ...] = ("rollout", "gradient")


@dataclass(frozen=True, eq=False)
class Tokens:
    """A row of tokens that attends or is attended to."""

    name: str
    """"image" or "words"."""
    labels: tuple[str, ...]
    """"class", "register 1", "patch 0,0", …; or the words that were read, the start token first."""
    grid: tuple[int, int] | None
    """Rows and columns of patches, which are the last rows·columns tokens; None for words."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention: everything that its map softmax(β·qkᵀ) follows from."""

    name: str
    """As `watch` names it."""
    queries: str
    """Name of the tokens that ask."""
    keys: str
    """Name of the tokens that answer."""
    q: Float[Tensor, "h q d"]
    """Positions and norms are in q and k."""
    k: Float[Tensor, "h k d"]
    beta: float
    causal: bool
    mask: Bool[Tensor, "q k"] | None
    values: Float[Tensor, "h k"]
    """Length of each value: a weight on a short one moves little."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One watched forward pass of one image."""

    model: str
    """Name to show."""
    kind: Literal["classifier", "captioner"]
    image: UInt8[Tensor, "c y x"]
    """As the model saw it, before normalisation."""
    tokens: tuple[Tokens, ...]
    layers: tuple[Layer, ...]
    answers: tuple[tuple[str, float], ...]
    """Of a classifier: classes with their probabilities, best first."""
    words: tuple[tuple[str, float], ...]
    """Of a captioner: what it said with log-probabilities, in order. Query i of a layer of words said word i."""
    maps: tuple[Map, ...]


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
        image=image.cpu(),
        tokens=(image_tokens(model, grid),),
        layers=tuple(_layer(record, "image", "image") for record in look.records),
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
    words_row = Tokens("words", (SPECIAL_NAMES[START], *labels[:-1]), None)
    own = [_layer(record, "words", "words") for record, _ in look.decoder if record is not None]
    cross = [_layer(record, "words", "image") for _, record in look.decoder]
    decoder = [layer for pair in zip(own, cross, strict=True) for layer in pair]
    return Trace(
        model=name,
        kind="captioner",
        image=image.cpu(),
        tokens=(image_row, words_row),
        layers=(*(_layer(record, "image", "image") for record in look.encoder), *decoder),
        answers=(),
        words=tuple(zip(labels, caption.token_log_probs.tolist(), strict=True)),
        maps=maps,
    )


def image_tokens(model: ViT, grid: tuple[int, int]) -> Tokens:
    """The tokens of an image in their order: class token, registers, patches row by row."""
    first = ["class"] if model.class_token is not None else []
    registers = [f"register {i + 1}" for i in range(model.config.registers)]
    patches = [f"patch {row},{column}" for row in range(grid[0]) for column in range(grid[1])]
    return Tokens("image", (*first, *registers, *patches), grid)


def _layer(record: Record, queries: str, keys: str) -> Layer:
    if isinstance(record.mask, Rule):
        raise ValueError(f"a trace holds masks and biases alone, and {record.name!r} has {record.mask!r}")
    heads = record.q.shape[1]
    k, v = share_heads(record.k, heads)[0], share_heads(record.v, heads)[0]
    q, k = (x.detach().cpu().contiguous() for x in (record.q[0], k))
    values = v.to(torch.promote_types(v.dtype, torch.float32)).norm(dim=-1).cpu()
    return Layer(record.name, queries, keys, q, k, record.beta, record.causal, record.mask, values)
