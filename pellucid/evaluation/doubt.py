"""How far a captioner can be believed: what held-out captions that it was as sure of were worth.

A caption's score, the log-probability of a token, says how sure the model is of it, in units that mean something to
that model alone. On images it wasn't trained on we count how many of the words that name something people say of the
image too, and keep what comes out for captions of each score.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from pellucid.config import from_json, read_json, to_json
from pellucid.data.captions import CaptionSet
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.decode.captions import write_captions
from pellucid.files import write_json
from pellucid.models.captioner import Captioner

FILE = "doubt.json"  # beside a model's weights
GROUPS = 10  # of held-out captions, as many in each
NAMES_NOTHING = frozenset(  # English; in another language every word counts
    re.findall(
        r"\w+",
        "a an the this that these those some another other one two three four five several many few each all both and "
        "or but of in on at to by for from with without into onto over under up down out off through across along "
        "around near next behind beside between above below against front middle side top while as is are was were be "
        "being been has have having his her its their it he she they them him who which there very",
    )
)
ENDINGS = ("ing", "es", "ed", "s", "e")

log = logging.getLogger("pellucid")


def name_things(caption: str) -> frozenset[str]:
    """The words of a caption that name something, without their endings.

    >>> sorted(name_things("A dog is running on the grass"))
    ['dog', 'gras', 'run']
    """
    return frozenset(_stem(word) for word in re.findall(r"[^\W\d_]+", caption.lower()) if word not in NAMES_NOTHING)


def share_said(caption: str, references: Sequence[str]) -> float:
    """How many of the words that name something at least one person says, too; all, if it names nothing.

    >>> share_said("two dogs run in snow", ["a dog is running", "dogs play outside"])
    0.6666666666666666
    """
    named = name_things(caption)
    people = frozenset[str]().union(*map(name_things, references))
    return len(named & people) / len(named) if named else 1.0


def measure_sureness(
    model: Captioner, tokenizer: CaptionTokenizer, images: CaptionSet, *, beam: int = 5, batch: int = 64
) -> tuple[list[float], list[float]]:
    """Of the caption of each image its score, and the share of its words that people say, too."""
    scores, said = [], []
    for part in torch.arange(len(images)).split(batch):
        captions = write_captions(model, tokenizer, images.images.read(part), beam=beam)
        scores += [best.score for best, *_ in captions]
        said += [
            share_said(best.text, images.captions[i]) for i, (best, *_) in zip(part.tolist(), captions, strict=True)
        ]
    return scores, said


@dataclass(frozen=True)
class Doubt:
    """What captions were worth, by how sure the model was of them.

    scores: the mean score of each group of held-out captions, ascending. said: the share of their words that people
    say, too; it never falls. images: how many they were.

    >>> doubt = Doubt((-1.0, -0.5), (0.4, 0.8), images=100)
    >>> round(doubt.expect(-0.75), 3), doubt.expect(-3.0)
    (0.6, 0.4)
    """

    scores: tuple[float, ...]
    said: tuple[float, ...]
    images: int
    step: int | None = None

    def __post_init__(self) -> None:
        if not self.scores or len(self.scores) != len(self.said):
            raise ValueError(_count(self.scores, self.said))
        if not np.isfinite(self.scores).all() or list(self.scores) != sorted(self.scores):
            raise ValueError("the scores aren't finite numbers in ascending order")
        if not all(0 <= share <= 1 for share in self.said):
            raise ValueError("what people say is no list of shares, 0…1")

    @classmethod
    def fit(cls, scores: Sequence[float], said: Sequence[float], groups: int = GROUPS) -> Self:
        """From held-out captions: their scores, and how much of each people say. A surer group never gets less."""
        if not scores or len(scores) != len(said):
            raise ValueError(_count(scores, said))
        order = np.argsort(scores, kind="stable")
        parts = np.array_split(order, min(groups, len(order)))
        means = [float(np.mean(np.asarray(scores)[part])) for part in parts]
        shares = [float(np.mean(np.asarray(said)[part])) for part in parts]
        return cls(tuple(means), tuple(_rise(shares, [len(part) for part in parts])), len(order))

    def expect(self, score: float) -> float:
        """The share of a caption's words that people would say, too, as far as its score tells."""
        return float(np.interp(score, self.scores, self.said))

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, to_json(self))

    @classmethod
    def load(cls, folder: Path, step: int | None = None) -> Self | None:
        """What lies in a model's folder; None if nothing was measured, or weights after another step than these."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            doubt = from_json(cls, read_json(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if doubt.step != step:
            log.warning("%s was measured after step %s, and the weights are others now", path, doubt.step)
            return None
        return doubt


def _count(scores: Sequence[float], said: Sequence[float]) -> str:
    return f"there are {len(scores)} scores and {len(said)} shares; expected as many, one at least"


def _stem(word: str) -> str:
    """Without its ending, and without the second of two like letters before it: run, runs, running."""
    ending = next((ending for ending in ENDINGS if word.endswith(ending) and len(word) - len(ending) >= 3), "")
    stem = word.removesuffix(ending)
    return stem[:-1] if stem[-1:] == stem[-2:-1] else stem


def _rise(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The nearest numbers that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m, i), (b, n, j) = pools[-2:]
            pools[-2:] = [((a * m + b * n) / (m + n), m + n, i + j)]
    return [mean for mean, _, count in pools for _ in range(count)]
