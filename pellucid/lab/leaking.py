"""A leaking mask, and the false accuracy that it gives."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded
from pellucid.lab.panels import Bars, Curves, line
from pellucid.layers import EncoderBlock, LearnedPositions


@dataclass(frozen=True)
class Leaking:
    """A small language model on tokens that nobody can foretell."""

    vocabulary: int = 8
    """Different tokens, all equally likely: the best accuracy is one over this."""
    tokens: int = 12
    """Length of a sequence."""
    width: int = 32
    """Width of the model."""
    steps: int = 200
    """Of training."""
    seed: int = 0
    """Of sequences and weights."""


class Guesser(nn.Module):
    """One block between an embedding and scores of the next token."""

    def __init__(self, p: Leaking):
        super().__init__()
        self.embedding = nn.Embedding(p.vocabulary, p.width)
        self.positions = LearnedPositions(p.tokens, p.width)
        self.block = EncoderBlock(p.width, heads=2, norm="pre")
        self.scores = nn.Linear(p.width, p.vocabulary)

    def forward(self, tokens: Int[Tensor, "b t"], causal: bool) -> Float[Tensor, "b t v"]:
        return self.scores(self.block(self.positions(self.embedding(tokens)), causal=causal))


def leaking(p: Leaking) -> Result:
    """Train with and without the causal mask; test by teacher forcing, and by showing nothing but the past."""
    curves: dict[str, list[float]] = {}
    forced, alone = {}, {}
    for name, causal in (("causal mask", True), ("no mask", False)):
        with seeded(p.seed):
            model = Guesser(p)
            optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
            curves[name] = []
            for _ in range(p.steps):
                tokens = torch.randint(p.vocabulary, (64, p.tokens))
                scores = model(tokens, causal)[:, :-1]  # the scores at i speak of token i + 1
                loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                curves[name].append(right(scores, tokens))
            with torch.no_grad():
                tokens = torch.randint(p.vocabulary, (2000, p.tokens))
                forced[name] = right(model(tokens, causal)[:, :-1], tokens)
                last = [model(tokens[:, : i + 1], causal)[:, -1] for i in range(p.tokens - 1)]
                alone[name] = right(torch.stack(last, 1), tokens)
    chance = 1 / p.vocabulary
    claims = (
        Claim(
            "leaking.accuracy",
            "The accuracy under teacher forcing is what the model can foretell.",
            "conditional",
            "≤",
            0.05,
            holds=(Case("causal mask: distance from chance, the best there is", abs(forced["causal mask"] - chance)),),
            breaks=(Case("no mask: distance from chance", abs(forced["no mask"] - chance)),),
            truth="True if the mask keeps the model from reading the answer; without it, coin tosses are foretold.",
        ),
        Claim(
            "leaking.alone",
            "A model that was trained with a leak foretells nothing once there is no future to read.",
            "true",
            "≤",
            0.05,
            holds=(Case("no mask, shown nothing but the past: distance from chance", abs(alone["no mask"] - chance)),),
            twin=Case("shown the future", abs(forced["no mask"] - chance)),
        ),
    )
    every = max(1, p.steps // 60)
    steps = list(range(0, p.steps, every))
    lines = tuple(line(name, steps, smoothed(values, every)) for name, values in curves.items())
    panels = (
        Curves(
            "accuracy in training",
            "step",
            "share of tokens right",
            (*lines, line("chance", steps, [chance] * len(steps), dashed=True)),
        ),
        Bars(
            "after training",
            "share of tokens right",
            tuple(forced),
            (("by teacher forcing", tuple(forced.values())), ("seeing the past alone", tuple(alone.values()))),
            line=("chance", chance),
        ),
    )
    numbers = {
        f"{name}: {how}": value
        for how, found in (("by teacher forcing", forced), ("seeing the past alone", alone))
        for name, value in found.items()
    }
    return Result(numbers | {"chance": chance}, panels, claims)


def right(scores: Float[Tensor, "b t v"], tokens: Int[Tensor, "b more"]) -> float:
    return (scores.argmax(-1) == tokens[:, 1:]).double().mean().item()


def smoothed(values: list[float], every: int) -> list[float]:
    return [sum(values[i : i + every]) / len(values[i : i + every]) for i in range(0, len(values), every)]


EXPERIMENTS = (
    Experiment(
        name="leaking",
        title="A leaking mask and its false accuracy",
        statement="Without the causal mask a model reads the token that it should foretell, and its accuracy is a lie.",
        formula="the scores at i are compared with token i + 1; the best accuracy on random tokens is 1/vocabulary",
        predict="The tokens are drawn at random. Which accuracy does a model reach that is trained without a mask?",
        fails="A leak needs no missing mask: targets that aren't shifted, or statistics over the sequence, leak as "
        "well.",
        parameters=Leaking,
        run=leaking,
        shown=(Guesser, right),
    ),
)
