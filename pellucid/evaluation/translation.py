"""How good translations are: sacreBLEU's figures beside those of not reading the source.

Descriptions of pictures are alike, and a translator that has only learnt the language scores too. So a score stands
here beside those of its own translations given to other sentences, of what it says of nothing, of one sentence for
all, and of the source itself.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pellucid.evaluation.controls import derangement
from pellucid.extras import require

LONGEST_NGRAM = 4
USER = "measuring translations"


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """sacreBLEU's BLEU, 0…100, cased, one reference each.

    >>> bleu(["the cat sat on the mat ."], ["the cat sat on the mat ."])
    100.00000000000004
    """
    return require("sacrebleu", USER).BLEU(force=True).corpus_score(list(translations), [list(references)]).score


@dataclass(frozen=True)
class TranslationScores:
    """The figures of a model's translations, and what they have to be compared with. 0…100, as sacreBLEU gives them.

    bleu, chrf, ter: of its translations; signature: how sacreBLEU names BLEU's settings; interval: 95 % of bleu, were
    the sentences others of their kind. length_ratio: words said over words of the references.
    shuffled: BLEU of its own translations, each given to another sentence. empty: of what it says of an empty source,
    `empty_translation`. fixed: of the one reference, `fixed_translation`, that does best when it is said of every
    sentence. copy: of the sources, left as they are. different: how many different translations it says.
    """

    sentences: int
    bleu: float
    chrf: float
    ter: float
    signature: str
    chrf_signature: str
    interval: tuple[float, float]
    length_ratio: float
    shuffled: float
    empty: float
    empty_translation: str
    fixed: float
    fixed_translation: str
    copy: float
    different: int

    @property
    def figures(self) -> dict[str, Any]:
        """All of them by name, as JSON takes them."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return named | {"interval": list(self.interval)}


def score_translations(
    translations: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
    *,
    empty: str,
    seed: int = 0,
    resamples: int = 1000,
) -> TranslationScores:
    """All of them. empty: what the model says of an empty source."""
    if not translations:
        raise ValueError("there are no sentences to measure translations of")
    sacrebleu = require("sacrebleu", USER)
    metric, characters = sacrebleu.BLEU(force=True), sacrebleu.CHRF()  # force: no word about full stops
    said = metric.corpus_score(list(translations), [list(references)])
    fixed = best_fixed(references)
    others = derangement(len(translations), seed)
    return TranslationScores(
        sentences=len(translations),
        bleu=said.score,
        chrf=characters.corpus_score(list(translations), [list(references)]).score,
        ter=sacrebleu.TER().corpus_score(list(translations), [list(references)]).score,
        signature=str(metric.get_signature()),
        chrf_signature=str(characters.get_signature()),
        interval=bootstrap_bleu(translations, references, seed=seed, resamples=resamples),
        length_ratio=said.sys_len / max(1, said.ref_len),
        shuffled=bleu([translations[int(i)] for i in others], references),
        empty=bleu([empty] * len(references), references),
        empty_translation=empty,
        fixed=bleu([fixed] * len(references), references),
        fixed_translation=fixed,
        copy=bleu(list(sources), references),
        different=len(set(translations)),
    )


def bootstrap_bleu(
    translations: Sequence[str], references: Sequence[str], *, seed: int = 0, resamples: int = 1000
) -> tuple[float, float]:
    """The middle 95 % of BLEU over sets of as many sentences, drawn from these with replacement."""
    sacrebleu = require("sacrebleu", USER)
    counts = np.array([_sentence_counts(sacrebleu, *pair) for pair in zip(translations, references, strict=True)])
    draws = np.random.default_rng(seed).integers(len(counts), size=(resamples, len(counts)))
    scores = [_bleu_of(counts[draw].sum(0)) for draw in draws]
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def best_fixed(references: Sequence[str]) -> str:
    """The reference that has the best BLEU when it is said of every sentence: the best that not reading can do."""
    tokenise = require("sacrebleu", USER).BLEU().tokenizer
    split = [tokenise(reference).split() for reference in references]
    grams = [[_ngrams(words, n) for n in range(1, LONGEST_NGRAM + 1)] for words in split]
    # Of each n-gram, how many references have it once, twice, …: what a candidate that has it k times matches.
    held: list[Counter[tuple[tuple[str, ...], int]]] = [Counter() for _ in range(LONGEST_NGRAM)]
    for each in grams:
        for n, counts in enumerate(each):
            for gram, count in counts.items():
                held[n].update((gram, k) for k in range(1, count + 1))
    total_length = sum(map(len, split))

    def score(place: int) -> float:
        matched = [
            sum(held[n][gram, k] for gram, count in counts.items() for k in range(1, count + 1))
            for n, counts in enumerate(grams[place])
        ]
        length = len(split[place])
        guessed = [max(0, length - n) * len(split) for n in range(LONGEST_NGRAM)]
        return _bleu_of(np.array([*matched, *guessed, length * len(split), total_length]))

    return references[max(range(len(references)), key=score)]


def _sentence_counts(sacrebleu: Any, translation: str, reference: str) -> list[int]:
    score = sacrebleu.sentence_bleu(translation, [reference], use_effective_order=True)  # the counts are the same
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def _bleu_of(counts: np.ndarray) -> float:
    """BLEU from matches and guesses of 1- to 4-grams and the two lengths, smoothed as sacreBLEU does ("exp")."""
    matched, guessed = counts[:LONGEST_NGRAM], counts[LONGEST_NGRAM : 2 * LONGEST_NGRAM]
    said, meant = counts[-2:]
    if not matched.any() or not said:
        return 0.0
    total, smoothing = 0.0, 1.0
    for match, guess in zip(matched, guessed, strict=True):
        if not guess:
            return 0.0
        if not match:
            smoothing *= 2
        total += math.log(100 * match / guess if match else 100 / (smoothing * guess))
    return math.exp(total / LONGEST_NGRAM) * (1.0 if said >= meant else math.exp(1 - meant / said))


def _ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
