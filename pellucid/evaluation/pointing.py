"""Does it look at what it names? The pointing game (Zhang et al. 2016) with a captioner's attention.

A word that names an object points at the centre of the patch with the largest weight. It is a hit if that point lies
inside one of the boxes of the objects that the word names (y0 ≤ y < y1, x0 ≤ x < x1). That is the figure to report.
The game's authors allow a margin around the box; with a margin of half a patch a hit is a peak whose patch overlaps
the box, and that is counted apart, as tolerant. Chance is what a patch drawn at random would hit, under the same rule.
Where several patches share the largest weight, the share of them that hits counts: a map without a peak points by
chance.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.data.listings import Images
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import START, CaptionTokenizer
from pellucid.decode import cross_attention
from pellucid.decode.captions import maps_of_words, write_captions
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.watching import watch
from pellucid.watching.record import Record

Region = tuple[float, float, float, float]  # (y0, x0, y1, x1) in pixels, ends exclusive
Boxes = Sequence[Sequence[Region]]  # of each word; none for words that name no object
PointingMap = tuple[
    int | None, int | None
]  # layer, head; the mean of a layer's heads without a head, of all without both
Looked = tuple[tuple[str, ...], Tensor]  # words, and their maps (layers heads words rows columns)


@dataclass(frozen=True)
class Pointing:
    """How many of `words` words were hits, by each map: the mean of all, of each layer's heads, and each head's own.

    chance: a share.
    """

    hits: dict[PointingMap, float]
    tolerant_hits: dict[PointingMap, float]
    words: int
    chance: float
    tolerant_chance: float

    def share(self, which: PointingMap, *, tolerant: bool = False) -> float | None:
        """The share of hits of one map; None if there were no words."""
        return (self.tolerant_hits if tolerant else self.hits)[which] / self.words if self.words else None

    @property
    def best(self) -> PointingMap:
        """The map with the most hits. Choose it on other images than those it is scored on."""
        return max(self.hits, key=self.hits.__getitem__)


def pointing(attention: Sequence[Tensor], boxes: Sequence[Boxes], size: tuple[int, int]) -> Pointing:
    """The game over pictures of `size` (height, width): for each one its maps and the boxes of each of its words.

    attention: (layers heads words rows columns) of each picture. boxes[i][w]: those of word w, or none.

    >>> maps = torch.zeros(1, 1, 2, 2, 2)
    >>> maps[..., 0, 1, 1] = 1.0                                    # the first word looks at the lower right
    >>> game = pointing([maps], [[[(5, 5, 8, 8)], []]], (8, 8))    # the second names nothing
    >>> game.share(game.best), game.words, game.chance
    (1.0, 1, 0.25)
    """
    if len(attention) != len(boxes):
        raise ValueError(f"there are maps of {len(attention)} pictures and boxes of {len(boxes)}; expected as many")
    if not attention:
        raise ValueError("there are no pictures to point at")
    layers, heads = (range(n) for n in attention[0].shape[:2])
    names: list[PointingMap] = [(None, None), *((layer, None) for layer in layers), *itertools.product(layers, heads)]
    totals = torch.zeros(2, len(names), dtype=torch.float64)  # by the rule and the tolerant one
    chances, words = torch.zeros(2, dtype=torch.float64), 0
    for maps, named in zip(attention, boxes, strict=True):
        if maps.dim() != 5 or maps.shape[2] != len(named):
            raise ValueError(
                f"maps are {tuple(maps.shape)}, expected (layers heads words rows columns) with {len(named)} words"
            )
        for w in (w for w, of_word in enumerate(named) if of_word):
            mine = maps[:, :, w].double().cpu()
            inside = _inside(named[w], (mine.shape[-2], mine.shape[-1]), size)
            totals += _hits(torch.cat([mine.mean((0, 1))[None], mine.mean(1), mine.flatten(0, 1)]), inside)
            chances += inside.double().mean((1, 2))
            words += 1
    chance, tolerant_chance = (chances / max(1, words)).tolist()
    hits, tolerant = (dict(zip(names, counts, strict=True)) for counts in totals.tolist())
    return Pointing(hits, tolerant, words, chance, tolerant_chance)


def read_along(
    model: Captioner, tokenizer: CaptionTokenizer, pixels: Tensor, captions: Sequence[str], *, through: bool = False
) -> list[Looked]:
    """Where the model looks as it reads the given caption of each picture, uint8 (b c y x), word by word.

    through: follow the attention through the encoder, to the patches as they came in (rollout).
    """
    with evaluating(model), torch.no_grad():
        with watch(model) as seen:
            context = model.encode(PictureReader.of(model.config.encoder).prepare(pixels, model))
        tokens = tokenizer.batch(captions, model.config.max_length)[:, 1:]
        cross = cross_attention(model, context, tokens[:, None].to(context.device), START)[:, 0].float()
        if through:
            rolled = multiply_layers([seen[name] for name in seen if name.startswith("encoder.")])
            cross = cross @ rolled[:, None, None].to(cross.dtype)
    looked = []
    for row, maps in zip(tokens, cross.cpu(), strict=True):
        words = tokenizer.words(row)
        looked.append((tuple(word for word, _ in words), maps_of_words(model, words, maps)))
    return looked


def multiply_layers(records: Sequence[Record]) -> Float[Tensor, "b s s"]:
    """How much of each token that came in is in each that comes out: Π (½·1 + ½·A), A the mean over a layer's heads.

    The rollout of Abnar & Zuidema (2020), from the first record to the last. Every row sums to one.
    """
    if not records:
        raise ValueError("no attention of the encoder was seen; watch the model while it encodes")
    total: Tensor | None = None
    for record in records:
        mixed = record.weights().mean(1)
        mixed = 0.5 * mixed + 0.5 * torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
        total = mixed if total is None else mixed @ total
    assert total is not None
    return total


def aligned(words: Sequence[str], caption: str, boxes: Boxes) -> list[Sequence[Region]]:
    """The boxes of each word said, from those of the true caption's words: where it says the same word at that place.

    >>> aligned(["a", "red", "cube"], "A red ball", [(), [(0, 0, 4, 4)], [(0, 0, 4, 4)]])
    [(), [(0, 0, 4, 4)], ()]
    """
    truth = caption.lower().split()
    if len(boxes) != len(truth):
        raise ValueError(f"{caption!r} has {len(truth)} words and boxes for {len(boxes)}; expected as many")
    return [boxes[w] if w < len(truth) and word == truth[w] else () for w, word in enumerate(words)]


def pointing_at(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    images: Images,
    captions: Sequence[str],
    boxes: Sequence[Boxes],
    *,
    own: int | None = None,
    through: bool = False,
    batch: int = 64,
) -> Pointing:
    """The game on pictures whose objects are known. The model reads the true captions.

    own: let it say its own instead, with a beam of this width; only words that are right in their place count then.
    through: follow the attention through the encoder, as `read_along` does.
    """
    if own is not None and through:
        raise ValueError("own captions are not followed through the encoder; leave out own, or through")
    looked: list[Looked] = []
    for start in range(0, len(images), batch):
        read = captions[start : start + batch]
        pixels = images.read(torch.arange(start, start + len(read)))
        if own is None:
            looked += read_along(model, tokenizer, pixels, read, through=through)
        else:
            for caption, *_ in write_captions(model, tokenizer, pixels, beam=own, attention=True):
                assert caption.attention is not None
                looked.append((caption.words, caption.attention))
    named = [aligned(words, captions[i], boxes[i]) for i, (words, _) in enumerate(looked)]
    return pointing([maps for _, maps in looked], named, images.shape[1:])


def _hits(maps: Float[Tensor, "maps y x"], inside: Bool[Tensor, "2 y x"]) -> Float[Tensor, "2 maps"]:
    """The share of each map's largest patches that count, by either rule."""
    peaks = (maps == maps.amax((-2, -1), keepdim=True)).double()
    return (peaks * inside[:, None]).sum((-2, -1)) / peaks.sum((-2, -1))


def _inside(boxes: Sequence[Region], grid: tuple[int, int], size: tuple[int, int]) -> Bool[Tensor, "2 y x"]:
    """Which patches count: those whose centre lies in a box, and those that overlap one."""
    high, wide = size[0] / grid[0], size[1] / grid[1]
    y, x = torch.arange(grid[0], dtype=torch.float64)[:, None], torch.arange(grid[1], dtype=torch.float64)
    inside = torch.zeros(2, *grid, dtype=torch.bool)
    for y0, x0, y1, x1 in boxes:
        centre_y, centre_x = (y + 0.5) * high, (x + 0.5) * wide
        inside[0] |= (y0 <= centre_y) & (centre_y < y1) & (x0 <= centre_x) & (centre_x < x1)
        inside[1] |= (y0 < (y + 1) * high) & (y * high < y1) & (x0 < (x + 1) * wide) & (x * wide < x1)
    return inside
