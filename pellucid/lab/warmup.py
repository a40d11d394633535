"""Warm-up: when a rate that rises slowly at first is needed."""

from typing import NamedTuple

from pellucid.lab.depth import BlockForm, DepthSettings, Stack
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, seeded
from pellucid.lab.learning import descend, learn_digits
from pellucid.lab.panels import line_chart

PLACED: tuple[BlockForm, ...] = ("post-norm", "pre-norm")


class WarmupSettings(NamedTuple):
    """A stack of blocks on scikit-learn's digits, normalised after each branch or before it."""

    depth: int = 6  # Number of blocks.
    width: int = 32  # Width of a token.
    steps: int = 80  # Of training.
    warmup: int = 40  # Steps in which the rate rises.
    rate: float = 5e-3  # Highest learning rate, of Adam.
    seed: int = 0  # Of weights and batches.


class WarmupMeasurement(NamedTuple):
    losses: dict[str, dict[str, list[float]]]  # at each step: by where the norm is, with warm-up and without
    last: dict[str, dict[str, float]]  # mean of the last tenth


def train_warm(p: WarmupSettings, form: BlockForm, warmup: int) -> list[float]:
    """A short training; the loss at each step."""
    with seeded(p.seed):
        model = Stack(DepthSettings(depth=p.depth, width=p.width), form)
        return learn_digits(model, steps=p.steps, rate=p.rate, warmup=warmup)


def measure_warmup(p: WarmupSettings) -> WarmupMeasurement:
    """Both placements of the norm, the same weights and batches with warm-up and without."""
    ways = {"with warm-up": p.warmup, "without": 0}
    losses = {form: {way: train_warm(p, form, steps) for way, steps in ways.items()} for form in PLACED}
    few = max(1, p.steps // 10)
    last = {form: {way: sum(each[-few:]) / few for way, each in by_way.items()} for form, by_way in losses.items()}
    return WarmupMeasurement(losses, last)


def claim_warmup(p: WarmupSettings, m: WarmupMeasurement) -> Claims:
    post, pre = (m.last[form]["without"] - m.last[form]["with warm-up"] for form in PLACED)
    yield Thesis("warmup.needed", "A transformer can't be trained without a warm-up of its rate.").conditional(
        at_least(0.5, "post-norm, as in the paper: loss that is left more without", post),
        ("pre-norm: loss that is left more without", pre),
        truth="With the norm after each branch it is so; with the norm before it, the rate may be high at once.",
    )


def draw_warmup(p: WarmupSettings, m: WarmupMeasurement) -> Drawing:
    numbers = {f"{form}, {way}: loss": loss for form, by_way in m.last.items() for way, loss in by_way.items()}
    lines = {f"{form}, {way}": losses for form, by_way in m.losses.items() for way, losses in by_way.items()}
    return numbers, [line_chart("the same weights and batches", ("step", "loss"), range(1, p.steps + 1), lines)]


WARMUP = Experiment(
    name="warmup",
    title="Warm-up",
    statement="Post-norm needs a rate that rises slowly; pre-norm doesn't.",
    formula="post: x ← norm(x + f(x)); pre: x ← x + f(norm(x)); rate = highest · min(1, step/warm-up)",
    predict="Four trainings, post-norm or pre-norm, with warm-up or without. Which of them learn nothing?",
    fails="At a low enough rate all learn, at a high enough one none. Deeper stacks need less of a rate to fail.",
    functions=(measure_warmup, claim_warmup, draw_warmup),
    helpers=(train_warm, learn_digits, descend),
)
