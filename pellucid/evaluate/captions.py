"""Caption metrics as the official scorer computes them: BLEU-1…4, ROUGE-L and CIDEr-D, from the Penn Treebank's words.

The definitions are coco-caption's, down to its constants, so that figures can stand beside published ones. Shares, as
it gives them: the CIDEr-D of 0.30 is the 30 of many tables.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from pellucid.evaluate.ptb import words

LONGEST = 4  # words in an n-gram
Ngram = tuple[str, ...]
Words = list[str]


def score(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """All metrics of one caption for each image against that image's references, under the same keys.

    >>> found = score({"a": "a dog runs"}, {"a": ["a dog runs", "the brown dog is running"]})
    >>> found["bleu1"] > 0.99, found["rouge_l"]
    (True, 1.0)
    """
    if not candidates:
        raise ValueError("there are no captions to score")
    if missing := sorted(map(str, candidates.keys() - references.keys()))[:3]:
        raise ValueError(f"captions without references: {', '.join(missing)}; give every image its references")
    if empty := [str(key) for key in candidates if not references[key]][:3]:
        raise ValueError(f"images with an empty list of references: {', '.join(empty)}")
    said = [words(candidates[key]) for key in candidates]
    meant = [[words(reference) for reference in references[key]] for key in candidates]
    figures = {f"bleu{n + 1}": value for n, value in enumerate(bleu(said, meant))}
    return figures | {"rouge_l": rouge_l(said, meant), "cider_d": cider_d(said, meant)}


def bleu(candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU-1…4 of the whole corpus (Papineni et al. 2002), with the reference length that is closest."""
    right, guessed = [0] * LONGEST, [0] * LONGEST
    length = closest = 0
    for candidate, others in zip(candidates, references, strict=True):
        length += len(candidate)
        closest += min((abs(len(other) - len(candidate)), len(other)) for other in others)[1]  # ties: the shorter
        counts = _counts(candidate)
        most: Counter[Ngram] = Counter()
        for other in others:
            most |= _counts(other)
        for n in range(1, LONGEST + 1):
            guessed[n - 1] += max(0, len(candidate) - n + 1)
        for ngram, count in counts.items():
            right[len(ngram) - 1] += min(count, most[ngram])
    ratio = (length + 1e-15) / (closest + 1e-9)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, figures = 1.0, []
    for n in range(LONGEST):
        product *= (right[n] + 1e-15) / (guessed[n] + 1e-9)
        figures.append(product ** (1 / (n + 1)) * penalty)
    return figures


def rouge_l(candidates: Sequence[Words], references: Sequence[Sequence[Words]], beta: float = 1.2) -> float:
    """Mean F-measure of the longest common subsequence (Lin 2004); best precision and best recall apart."""
    total = 0.0
    for candidate, others in zip(candidates, references, strict=True):
        candidate = candidate or [""]  # the scorer splits on blanks, and finds one empty word
        others = [other or [""] for other in others]
        common = [_common(candidate, other) for other in others]
        precision = max(c / len(candidate) for c in common)
        recall = max(c / len(other) for c, other in zip(common, others, strict=True))
        if precision and recall:
            total += (1 + beta**2) * precision * recall / (recall + beta**2 * precision)
    return total / len(candidates)


def cider_d(candidates: Sequence[Words], references: Sequence[Sequence[Words]], sigma: float = 6.0) -> float:
    """Mean similarity of n-grams weighted by how rarely images have them (Vedantam et al. 2015), clipped, times 10.

    How often an n-gram occurs is counted by image over these same references.
    """
    counted = [[_counts(other) for other in others] for others in references]
    images_with = Counter(ngram for others in counted for ngram in set().union(*others))
    log_images = math.log(len(references))
    total = 0.0
    for candidate, others in zip(candidates, counted, strict=True):
        vector, norms, length = _weighted(_counts(candidate), images_with, log_images)
        sums = [0.0] * LONGEST
        for other in others:
            against, other_norms, other_length = _weighted(other, images_with, log_images)
            fade = math.exp(-((length - other_length) ** 2) / (2 * sigma**2))
            for n in range(LONGEST):
                value = sum(min(w, against[n].get(g, 0.0)) * against[n].get(g, 0.0) for g, w in vector[n].items())
                if norms[n] and other_norms[n]:
                    value /= norms[n] * other_norms[n]
                sums[n] += value * fade
        total += 10.0 * sum(sums) / LONGEST / len(others)
    return total / len(candidates)


def _weighted(
    counts: Counter[Ngram], images_with: Counter[Ngram], log_images: float
) -> tuple[list[dict[Ngram, float]], list[float], int]:
    """Weights of the n-grams of each length, their norms, and the number of pairs, which stands for the length."""
    vector: list[dict[Ngram, float]] = [{} for _ in range(LONGEST)]
    squares, pairs = [0.0] * LONGEST, 0
    for ngram, count in counts.items():
        n = len(ngram) - 1
        vector[n][ngram] = weight = count * (log_images - math.log(max(1.0, images_with[ngram])))
        squares[n] += weight * weight
        pairs += count if n == 1 else 0
    return vector, [math.sqrt(square) for square in squares], pairs


def _counts(sentence: Words) -> Counter[Ngram]:
    return Counter(tuple(sentence[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(sentence) - n + 1))


def _common(a: Words, b: Words) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]
