"""Embeddings times √d: how large words are beside their positions."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, seeded
from pellucid.lab.learning import descend
from pellucid.lab.panels import line_chart
from pellucid.models import Transformer, TransformerConfig

DIGITS, START = 10, 10  # the token after the ten digits says "begin"


class EmbeddingSettings(NamedTuple):
    """A transformer that learns to say a few digits backwards, its words drawn small or smaller."""

    digits: int = 6  # Of a sequence.
    width: int = 64  # Of a token: d.
    spread: float = 0.02  # Of the words' features, as many models draw them; the paper's √d goes with 1/√d.
    steps: int = 100  # Of training.
    seed: int = 0  # Of weights and digits.


class EmbeddingMeasurement(NamedTuple):  # by what words are drawn with, then by what they are multiplied by
    losses: dict[str, dict[str, list[float]]]  # at each step
    last: dict[str, dict[str, float]]  # mean of the last tenth
    words: dict[str, dict[str, float]]  # share of a token's energy that is its word's, not its position's, at first


def train_scaled(p: EmbeddingSettings, spread: float, scale: float) -> tuple[list[float], float]:
    """A short training with words drawn so, and multiplied so; the loss at each step, and the words' share at first."""
    with seeded(p.seed):
        config = TransformerConfig(
            vocabulary=DIGITS + 1, width=p.width, heads=4, hidden=2 * p.width, encoder_layers=1, decoder_layers=1,
            norm="pre", dropout=0.0, max_length=p.digits + 1,
        )  # fmt: skip
        model = Transformer(config)
        words = model.source_embedding
        torch.nn.init.normal_(words.table.weight, std=spread)
        words.scale = scale
        energy = (words.table.weight.detach() * scale).square().sum(1).mean().item()

        def draw_loss() -> Tensor:
            digits = torch.randint(DIGITS, (64, p.digits))
            target = digits.flip(1)
            logits = model(digits, F.pad(target[:, :-1], (1, 0), value=START))
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())

        losses = descend(model, draw_loss, steps=p.steps, rate=2e-3)
    return losses, energy / (energy + p.width / 2)  # sin² + cos² of each pair of a position's features is one


def measure_embedding(p: EmbeddingSettings) -> EmbeddingMeasurement:
    """Small words and the paper's, each with the factor and without: the same digits, the same other weights."""
    m, few = EmbeddingMeasurement({}, {}, {}), max(1, p.steps // 10)
    for drawn, spread in ((f"drawn with {p.spread:g}", p.spread), ("drawn with 1/√d", p.width**-0.5)):
        ran = {"times √d": train_scaled(p, spread, math.sqrt(p.width)), "as they are": train_scaled(p, spread, 1.0)}
        m.losses[drawn] = {way: losses for way, (losses, _) in ran.items()}
        m.last[drawn] = {way: sum(losses[-few:]) / few for way, (losses, _) in ran.items()}
        m.words[drawn] = {way: share for way, (_, share) in ran.items()}
    return m


def claim_embedding(p: EmbeddingSettings, m: EmbeddingMeasurement) -> Claims:
    lost = {drawn: each["as they are"] - each["times √d"] for drawn, each in m.last.items()}
    small, usual = lost.items()
    yield Thesis("embedding.scale", "Embeddings have to be multiplied by √d.").conditional(
        at_least(0.5, f"words {small[0]}: loss that is left more without", small[1]),
        (f"words {usual[0]}: loss that is left more without", usual[1]),
        truth="What counts is that words aren't lost beside positions, whose features are about 0.7 large: words drawn "
        "much smaller need the factor, others don't.",
    )


def draw_embedding(p: EmbeddingSettings, m: EmbeddingMeasurement) -> Drawing:
    numbers = {f"{drawn}, {way}: loss": loss for drawn, each in m.last.items() for way, loss in each.items()}
    numbers |= {
        f"{drawn}, {way}: words' share": share for drawn, each in m.words.items() for way, share in each.items()
    }
    lines = {f"{drawn}, {way}": losses for drawn, each in m.losses.items() for way, losses in each.items()}
    return numbers, [line_chart(f"{p.digits} digits backwards", ("step", "loss"), range(1, p.steps + 1), lines)]


EMBEDDING = Experiment(
    name="embedding",
    title="Embeddings times √d",
    statement="A token is its word plus its position. Drawn much smaller than positions, words are lost; times √d they "
    "aren't.",
    formula="x = √d·word + position; of its energy the word has d·s²·d / (d·s²·d + d/2), if drawn with s",
    predict="Words drawn with 0.02 or with 1/√d, times √d or as they are. In which of the four is nothing learned?",
    fails="It is one small task and a short training, in which small words have little time to grow.",
    functions=(measure_embedding, claim_embedding, draw_embedding),
    helpers=(train_scaled, descend),
)
