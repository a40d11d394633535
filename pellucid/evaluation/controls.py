"""Is it looking? A captioner's scores beside those of captions that were made without the picture, and of people.

A fluent sentence about nothing scores too: on Flickr8k's test images one and the same caption for all of them has a
BLEU-4 of 8 and more. So a score alone says little, and here it never stands alone.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pellucid.evaluation.captions import (
    CIDER_SIGMA,
    LONGEST_NGRAM,
    Ngram,
    References,
    Scores,
    WordList,
    bleu_of,
    counts,
    tokenise_captions,
)
from pellucid.evaluation.ptb import tokenise

Figures = dict[str, float]
FEW_DIFFERENT = 0.01  # share of different captions below which a model says about the same of everything
MOST_PEOPLE = 5  # captions of an image that are scored against its others


@dataclass(frozen=True)
class Controls:
    """The figures of a model's captions, and what they have to be compared with. Shares, as `captions.score` gives.

    model: of its captions. interval: 95 % of its cider_d and bleu4, were the images others of their kind.
    fixed: of the one caption, `fixed_caption`, that has the best CIDEr-D when it is said of every image.
    shuffled: of its own captions, each given to another image. blank: of what it says of a picture without content.
    people: of each of an image's captions against the others, on average. None where there is nothing to score.
    different: how many different captions it says. never_said: share of the references' words that it never says.
    """

    images: int
    model: Figures
    interval: dict[str, tuple[float, float]]
    fixed: Figures
    fixed_caption: str
    shuffled: Figures | None
    blank: Figures | None
    people: Figures | None
    different: int
    never_said: float
    warning: str | None

    @property
    def figures(self) -> dict[str, Any]:
        """The model's scores by name, and everything beside them, as JSON takes it."""
        others = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "model"}
        return self.model | others | {"interval": {name: list(bounds) for name, bounds in self.interval.items()}}


def controls(
    candidates: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    blank: str | None = None,
    training: Iterable[str] | None = None,
    seed: int = 0,
    resamples: int = 1000,
) -> Controls:
    """All of them for one caption an image, against its references under the same key.

    blank: what the model says of a picture without content. training: captions among which the fixed one is searched
    for; the references themselves unless given.
    """
    caption_words, reference_words = tokenise_captions(candidates, references)
    known = References(reference_words)
    scores = known.scores(caption_words)
    figures, interval = scores.figures, bootstrap_scores(scores, seed=seed, resamples=resamples)
    pool = (text for key in candidates for text in references[key]) if training is None else training
    fixed = best_fixed(known, pool)
    shuffled = _shuffled(known, caption_words, seed)
    return Controls(
        images=len(caption_words),
        model=figures,
        interval=interval,
        fixed=_of_all(known, tokenise(fixed)),
        fixed_caption=fixed,
        shuffled=shuffled,
        blank=None if blank is None else _of_all(known, tokenise(blank)),
        people=people(reference_words),
        different=len(set(candidates.values())),
        never_said=_never_said(caption_words, reference_words),
        warning=_warning(len(set(candidates.values())), len(caption_words), interval["cider_d"], shuffled),
    )


def bootstrap_scores(scores: Scores, *, seed: int = 0, resamples: int = 1000) -> dict[str, tuple[float, float]]:
    """The middle 95 % of cider_d and bleu4 over images drawn anew, with replacement.

    The document frequencies stay those of the whole set; BLEU is computed from the drawn images' summed counts.
    """
    images = len(scores.cider_d)
    times = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=resamples).astype(float)
    values = {"cider_d": times @ scores.cider_d / images, "bleu4": bleu_of(times @ scores.bleu_counts)[:, -1]}
    bounds = {name: np.quantile(each, (0.025, 0.975)) for name, each in values.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def best_fixed(references: References, captions: Iterable[str]) -> str:
    """The caption that has the highest CIDEr-D if it is said of every image; the first of those, if several have it.

    Every caption is tried. What an n-gram adds, over all references together, depends only on how often the caption has
    it and on the caption's length: it is summed once for each of these, and a caption costs a few look-ups.
    """
    texts = list(dict.fromkeys(captions))
    if not texts:
        raise ValueError("there are no captions to choose a fixed one from")
    counted = [counts(tokenise(text)) for text in texts]
    lengths = [sum(count for ngram, count in each.items() if len(ngram) == 2) for each in counted]
    adds = _Adds(references, max(lengths))
    best, best_value = texts[0], -1.0
    for text, each, length in zip(texts, counted, lengths, strict=True):
        sums, squares = [0.0] * LONGEST_NGRAM, [0.0] * LONGEST_NGRAM
        for ngram, count in each.items():
            sums[len(ngram) - 1] += adds(ngram, count, length)
            squares[len(ngram) - 1] += (count * references.rarity(ngram)) ** 2
        value = sum(total / math.sqrt(square) for total, square in zip(sums, squares, strict=True) if square)
        if value > best_value:
            best, best_value = text, value
    return best


class _Adds:
    """What `count` times an n-gram, in a caption of some length, adds to the clipped product with all references."""

    def __init__(self, references: References, longest: int):
        self.rarity = references.rarity
        self.having: dict[Ngram, list[tuple[int, float, int]]] = defaultdict(list)
        self.table: dict[tuple[Ngram, int], np.ndarray] = {}
        theirs = 0
        for others, counted in zip(references.weighted, references.counted, strict=True):
            for other, each in zip(others, counted, strict=True):
                theirs = max(theirs, other.length)
                for ngram, count in each.items():
                    if norm := other.norms[len(ngram) - 1]:
                        self.having[ngram].append((count, count / norm / len(others), other.length))
        away = np.arange(theirs + 1)[:, None] - np.arange(longest + 1)
        self.fade = np.exp(-(away**2) / (2 * CIDER_SIGMA**2))

    def __call__(self, ngram: Ngram, count: int, length: int) -> float:
        if ngram not in self.having:
            return 0.0
        sums = self.table.get((ngram, count))
        if sums is None:
            times, share, lengths = (np.array(column) for column in zip(*self.having[ngram], strict=True))
            by_length = np.bincount(lengths, np.minimum(count, times) * share, minlength=len(self.fade))
            sums = self.table[ngram, count] = self.rarity(ngram) ** 2 * (by_length @ self.fade)
        return float(sums[length])


def derangement(n: int, seed: int = 0) -> np.ndarray:
    """A random order of 0…n−1 in which nothing stays where it is (Sattolo's): one round through all."""
    order, draw = np.arange(n), np.random.default_rng(seed)
    for i in range(n - 1, 0, -1):
        j = draw.integers(i)
        order[[i, j]] = order[[j, i]]
    return order


def people(reference_words: Sequence[Sequence[WordList]]) -> Figures | None:
    """Each of the first captions of every image against its others: what people score, one reference short.

    Images with one caption are left out; as many captions are taken in turn as all others have, five at most.
    """
    several = [others for others in reference_words if len(others) > 1]
    if not several:
        return None
    taken = min(MOST_PEOPLE, *map(len, several)) if len(several) > 1 else min(MOST_PEOPLE, len(several[0]))
    rounds = [
        References([[*others[:i], *others[i + 1 :]] for others in several])
        .scores([others[i] for others in several])
        .figures
        for i in range(taken)
    ]
    return {name: sum(each[name] for each in rounds) / taken for name in rounds[0]}


def _of_all(references: References, caption: WordList) -> Figures:
    return references.scores([caption] * len(references)).figures


def _shuffled(references: References, caption_words: Sequence[WordList], seed: int) -> Figures | None:
    if len(caption_words) < 2:
        return None
    return references.scores([caption_words[i] for i in derangement(len(caption_words), seed)]).figures


def _never_said(caption_words: Sequence[WordList], reference_words: Sequence[Sequence[WordList]]) -> float:
    known = {word for others in reference_words for other in others for word in other}
    return len(known - {word for one in caption_words for word in one}) / max(1, len(known))


def _warning(different: int, images: int, interval: tuple[float, float], shuffled: Figures | None) -> str | None:
    if images > 1 and different == 1:
        return f"the model says the same of all {images:,} images: it has not learned to look"
    if different < FEW_DIFFERENT * images:
        return f"the model says only {different:,} different captions of {images:,} images: it hardly looks"
    if shuffled is not None and shuffled["cider_d"] >= interval[0] and not math.isclose(interval[1], 0.0):
        return "the captions fit other images as well as their own: their score does not come from looking"
    return None
