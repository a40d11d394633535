"""A leaking mask, and the false accuracy that it gives."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, seeded
from pellucid.lab.learning import descend
from pellucid.lab.panels import bar_chart, line_chart
from pellucid.layers import EncoderBlock, LearnedPositions


class LeakingSettings(NamedTuple):
    """A small language model on tokens that nobody can foretell."""

    vocabulary: int = 8  # Different tokens, all equally likely: the best accuracy is one over this.
    tokens: int = 12  # Length of a sequence.
    width: int = 32  # Width of the model.
    steps: int = 200  # Of training.
    seed: int = 0  # Of sequences and weights.


class LeakingMeasurement(NamedTuple):
    training: dict[str, list[float]]  # accuracy at each step, with the mask and without
    forced: dict[str, float]  # afterwards, by teacher forcing
    alone: dict[str, float]  # seeing the past alone


class Guesser(nn.Module):
    """One block between an embedding and scores of the next token."""

    def __init__(self, p: LeakingSettings):
        super().__init__()
        self.embedding = nn.Embedding(p.vocabulary, p.width)
        self.positions = LearnedPositions(p.tokens, p.width)
        self.block = EncoderBlock(p.width, heads=2, norm="pre")
        self.scores = nn.Linear(p.width, p.vocabulary)

    def forward(self, tokens: Int[Tensor, "b t"], causal: bool) -> Float[Tensor, "b t v"]:
        return self.scores(self.block(self.positions(self.embedding(tokens)), causal=causal))


def share_right(scores: Float[Tensor, "b t v"], tokens: Int[Tensor, "b more"]) -> float:
    """How many tokens are foretold: the scores at i speak of token i + 1."""
    return (scores.argmax(-1) == tokens[:, 1:]).double().mean().item()


def train_guesser(model: Guesser, p: LeakingSettings, causal: bool) -> list[float]:
    """Train it on random tokens; the accuracy at each step."""
    accuracies = []

    def draw_loss() -> Tensor:
        tokens = torch.randint(p.vocabulary, (64, p.tokens))
        scores = model(tokens, causal)[:, :-1]
        accuracies.append(share_right(scores, tokens))
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    descend(model, draw_loss, steps=p.steps, rate=1e-2)
    return accuracies


def measure_leaking(p: LeakingSettings) -> LeakingMeasurement:
    """Train with and without the causal mask; test by teacher forcing, and by showing nothing but the past."""
    training, forced, alone = {}, {}, {}
    for name, causal in (("causal mask", True), ("no mask", False)):
        with seeded(p.seed):
            model = Guesser(p)
            training[name] = train_guesser(model, p, causal)
            with torch.no_grad():
                tokens = torch.randint(p.vocabulary, (2000, p.tokens))
                forced[name] = share_right(model(tokens, causal)[:, :-1], tokens)
                last = [model(tokens[:, : i + 1], causal)[:, -1] for i in range(p.tokens - 1)]
                alone[name] = share_right(torch.stack(last, 1), tokens)
    return LeakingMeasurement(training, forced, alone)


def claim_leaking(p: LeakingSettings, m: LeakingMeasurement) -> Claims:
    chance = 1 / p.vocabulary
    leak = abs(m.forced["no mask"] - chance)
    yield Thesis("leaking.accuracy", "The accuracy under teacher forcing is what the model can foretell.").conditional(
        at_most(0.05, "causal mask: distance from chance, the best there is", abs(m.forced["causal mask"] - chance)),
        ("no mask: distance from chance", leak),
        truth="True if the mask keeps the model from reading the answer; without it, coin tosses are foretold.",
    )
    yield Thesis(
        "leaking.alone", "A model that was trained with a leak foretells nothing once there is no future to read."
    ).true(
        at_most(0.05, "no mask, shown nothing but the past: distance from chance", abs(m.alone["no mask"] - chance)),
        twin=("shown the future", leak),
    )


def draw_leaking(p: LeakingSettings, m: LeakingMeasurement) -> Drawing:
    chance, right = 1 / p.vocabulary, "share of tokens right"
    ways = {"by teacher forcing": m.forced, "seeing the past alone": m.alone}
    numbers = {f"{name}: {way}": value for way, values in ways.items() for name, value in values.items()}
    every = max(1, p.steps // 60)
    steps = range(0, p.steps, every)
    lines = {
        name: [sum(values[i : i + every]) / len(values[i : i + every]) for i in steps]
        for name, values in m.training.items()
    } | {"chance": [chance] * len(steps)}
    return numbers | {"chance": chance}, [
        line_chart("accuracy in training", ("step", right), steps, lines, dashed="chance"),
        bar_chart("after training", right, ways, line=("chance", chance)),
    ]


LEAKING = Experiment(
    name="leaking",
    title="A leaking mask and its false accuracy",
    statement="Without the causal mask a model reads the token that it should foretell, and its accuracy is a lie.",
    formula="the scores at i are compared with token i + 1; the best accuracy on random tokens is 1/vocabulary",
    predict="The tokens are drawn at random. Which accuracy does a model reach that is trained without a mask?",
    fails="A leak needs no missing mask: targets that aren't shifted, or statistics over the sequence, leak as well.",
    functions=(measure_leaking, claim_leaking, draw_leaking),
    helpers=(Guesser, share_right, train_guesser, descend),
)
