"""Caption metrics as the official scorer computes them: BLEU-1…4, ROUGE-L and CIDEr-D, from the Penn Treebank's words.

The definitions are coco-caption's, down to its constants, so that figures can stand beside published ones. Shares, as
it gives them: the CIDEr-D of 0.30 is the 30 of many tables.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np

from pellucid.evaluation.ptb import tokenise

LONGEST_NGRAM = 4  # words in an n-gram
CAPTION_METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider_d")
CIDER_SIGMA = 6.0  # of CIDEr-D: how fast a difference in length costs, in words
Ngram = tuple[str, ...]
WordList = list[str]


def score(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """All metrics of one caption for each image against that image's references, under the same keys.

    >>> figures = score({"a": "a dog runs"}, {"a": ["a dog runs", "the brown dog is running"]})
    >>> figures["bleu1"] > 0.99, figures["rouge_l"]
    (True, 1.0)
    """
    caption_words, reference_words = tokenise_captions(candidates, references)
    return References(reference_words).scores(caption_words).figures


def tokenise_captions(
    candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> tuple[list[WordList], list[list[WordList]]]:
    """The words of each image's caption and of its references, in the candidates' order; each text is read once."""
    if not candidates:
        raise ValueError("there are no captions to score")
    if missing := sorted(map(str, candidates.keys() - references.keys()))[:3]:
        raise ValueError(f"captions without references: {', '.join(missing)}; give every image its references")
    if empty := [str(key) for key in candidates if not references[key]][:3]:
        raise ValueError(f"images with an empty list of references: {', '.join(empty)}")
    read: dict[str, WordList] = {}
    for key, candidate in candidates.items():
        for text in (candidate, *references[key]):
            if text not in read:
                read[text] = tokenise(text)
    return [read[text] for text in candidates.values()], [
        [read[text] for text in references[key]] for key in candidates
    ]


def bleu(candidates: Sequence[WordList], references: Sequence[Sequence[WordList]]) -> list[float]:
    """BLEU-1…4 of the whole corpus (Papineni et al. 2002), with the reference length that is closest."""
    return bleu_of(References(references).bleu_counts(candidates).sum(0)).tolist()


def rouge_l(candidates: Sequence[WordList], references: Sequence[Sequence[WordList]]) -> float:
    """Mean F-measure of the longest common subsequence (Lin 2004); best precision and best recall apart."""
    return float(References(references).rouge_l(candidates).mean())


def cider_d(candidates: Sequence[WordList], references: Sequence[Sequence[WordList]]) -> float:
    """Mean similarity of n-grams weighted by how rarely images have them (Vedantam et al. 2015), clipped, times 10.

    How often an n-gram occurs is counted by image over these same references.
    """
    return float(References(references).cider_d(candidates).mean())


@dataclass(frozen=True)
class Scores:
    """What each image adds to the figures of all: BLEU is made of sums of counts, the others are means.

    bleu_counts (n 10): right n-grams of each length, n-grams of each length, words, words of the closest reference.
    """

    bleu_counts: np.ndarray
    rouge_l: np.ndarray
    cider_d: np.ndarray

    @property
    def figures(self) -> dict[str, float]:
        values = [*bleu_of(self.bleu_counts.sum(0)), self.rouge_l.mean(), self.cider_d.mean()]
        return dict(zip(CAPTION_METRICS, map(float, values), strict=True))


@dataclass(frozen=True)
class Weighted:
    """A caption to CIDEr-D: weights of its n-grams of each length, their norms, and the number of its pairs.

    The number of pairs stands for the length.
    """

    weights: list[dict[Ngram, float]]
    norms: list[float]
    length: int


class References:
    """The references of a set of images, counted once, to score any captions of these images against."""

    def __init__(self, sentences: Sequence[Sequence[WordList]]):
        self.sentences = sentences

    def __len__(self) -> int:
        return len(self.sentences)

    def scores(self, candidates: Sequence[WordList]) -> Scores:
        """All metrics of one caption for each image."""
        return Scores(self.bleu_counts(candidates), self.rouge_l(candidates), self.cider_d(candidates))

    def bleu_counts(self, candidates: Sequence[WordList]) -> np.ndarray:
        """What `bleu_of` needs of each image."""
        rows = np.zeros((len(candidates), 2 * LONGEST_NGRAM + 2), dtype=np.int64)
        for row, candidate, others, most in zip(rows, candidates, self.sentences, self._most, strict=True):
            row[LONGEST_NGRAM:-2] = [max(0, len(candidate) - n) for n in range(LONGEST_NGRAM)]
            row[-2] = len(candidate)
            row[-1] = min((abs(len(other) - len(candidate)), len(other)) for other in others)[1]  # ties: the shorter
            for ngram, count in counts(candidate).items():
                row[len(ngram) - 1] += min(count, most[ngram])
        return rows

    def rouge_l(self, candidates: Sequence[WordList], beta: float = 1.2) -> np.ndarray:
        """Of each image."""
        figures = np.zeros(len(candidates))
        for i, (candidate, others) in enumerate(zip(candidates, self.sentences, strict=True)):
            candidate = candidate or [""]  # the scorer splits on blanks, and finds one empty word
            others = [other or [""] for other in others]
            common = [_common(candidate, other) for other in others]
            precision = max(c / len(candidate) for c in common)
            recall = max(c / len(other) for c, other in zip(common, others, strict=True))
            if precision and recall:
                figures[i] = (1 + beta**2) * precision * recall / (recall + beta**2 * precision)
        return figures

    def cider_d(self, candidates: Sequence[WordList]) -> np.ndarray:
        """Of each image, the document frequencies being those of all."""
        figures = np.zeros(len(candidates))
        for i, (candidate, others) in enumerate(zip(candidates, self.weighted, strict=True)):
            mine = self.weigh(counts(candidate))
            total = 0.0
            for other in others:
                fade = math.exp(-((mine.length - other.length) ** 2) / (2 * CIDER_SIGMA**2))
                for vector, against, norm, other_norm in zip(
                    mine.weights, other.weights, mine.norms, other.norms, strict=True
                ):
                    value = sum(min(w, against.get(g, 0.0)) * against.get(g, 0.0) for g, w in vector.items())
                    total += fade * (value / (norm * other_norm) if norm and other_norm else value)
            figures[i] = 10.0 * total / LONGEST_NGRAM / len(others)
        return figures

    def weigh(self, counted: Counter[Ngram]) -> Weighted:
        """A caption's n-grams, weighted by how few of these images have them."""
        weights: list[dict[Ngram, float]] = [{} for _ in range(LONGEST_NGRAM)]
        squares, pairs = [0.0] * LONGEST_NGRAM, 0
        rarities, rarest = self._rarities, self._log_images
        for ngram, count in counted.items():
            n = len(ngram) - 1
            weights[n][ngram] = weight = count * rarities.get(ngram, rarest)
            squares[n] += weight * weight
            pairs += count if n == 1 else 0
        return Weighted(weights, [math.sqrt(square) for square in squares], pairs)

    def rarity(self, ngram: Ngram) -> float:
        """ln of the images over those that have the n-gram; one that none has is as rare as one of a single image."""
        return self._rarities.get(ngram, self._log_images)

    @cached_property
    def counted(self) -> list[list[Counter[Ngram]]]:
        return [[counts(other) for other in others] for others in self.sentences]

    @cached_property
    def weighted(self) -> list[list[Weighted]]:
        return [[self.weigh(other) for other in others] for others in self.counted]

    @cached_property
    def _most(self) -> list[Counter[Ngram]]:
        """How often each n-gram occurs in the one of an image's references that has it most often."""
        return [reduce(or_, others) for others in self.counted]

    @cached_property
    def _rarities(self) -> dict[Ngram, float]:
        having = Counter(ngram for others in self.counted for ngram in set().union(*others))
        return {ngram: self._log_images - math.log(images) for ngram, images in having.items()}

    @cached_property
    def _log_images(self) -> float:
        return math.log(len(self.sentences))


def bleu_of(summed: np.ndarray) -> np.ndarray:
    """BLEU-1…4 (… 4) of counts summed over images (… 10), with the scorer's tiny numbers against division by zero."""
    right, guessed = summed[..., :LONGEST_NGRAM], summed[..., LONGEST_NGRAM:-2]
    length, closest = summed[..., -2], summed[..., -1]
    ratio = (length + 1e-15) / (closest + 1e-9)
    with np.errstate(divide="ignore", over="ignore"):  # of no words at all the penalty is exp(−10¹⁵), zero
        penalty = np.where(ratio < 1, np.exp(1 - 1 / ratio), 1.0)
    product = np.cumprod((right + 1e-15) / (guessed + 1e-9), axis=-1)
    return product ** (1 / np.arange(1, LONGEST_NGRAM + 1)) * penalty[..., None]


def counts(sentence: WordList) -> Counter[Ngram]:
    """How often each n-gram of one to four words occurs."""
    lengths = range(1, LONGEST_NGRAM + 1)
    return Counter(tuple(sentence[i : i + n]) for n in lengths for i in range(len(sentence) - n + 1))


def _common(a: WordList, b: WordList) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]
