"""Hard or soft, self or cross: two choices that have nothing to do with each other."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, seeded
from pellucid.lab.panels import heatmap
from pellucid.layers import MultiHeadAttention
from pellucid.watching import watch


class ChoicesSettings(NamedTuple):
    """Tokens that ask, tokens of another sequence, and their width."""

    tokens: int = 4  # Tokens that ask.
    others: int = 6  # Tokens of the other sequence.
    width: int = 16  # Of a token.
    seed: int = 0  # Of tokens and weights.


class ChoicesMeasurement(NamedTuple):
    weights: dict[str, Tensor]  # of each run
    hard: dict[str, bool]  # whether every row was one key
    cross: dict[str, bool]  # whether its keys were not of the tokens that ask
    combinations: int  # that ran
    combinations_if_same: int  # if hard were cross and soft were self


def measure_choices(p: ChoicesSettings) -> ChoicesMeasurement:
    """One layer, run four times; what each run was is read off what was seen of it."""
    with seeded(p.seed):
        x, other = torch.randn(1, p.tokens, p.width), torch.randn(1, p.others, p.width)
        layer = MultiHeadAttention(p.width, heads=1)
    weights, hard, cross = {}, {}, {}
    for source, key in (("self", None), ("cross", other)):
        for kind, beta in (("soft", None), ("hard", math.inf)):
            layer.beta = beta
            with torch.no_grad(), watch(layer) as seen:
                layer(x, key)
            name, rows = f"{kind} {source}-attention", seen[""].weights()[0, 0]
            weights[name] = rows
            hard[name] = bool(((rows == 0) | (rows == 1)).all())
            cross[name] = not torch.equal(seen[""].k[0, 0], layer.k(x)[0])
    pairs = (set(zip(hard.values(), other.values(), strict=True)) for other in (cross, hard))
    return ChoicesMeasurement(weights, hard, cross, *map(len, pairs))


def claim_choices(p: ChoicesSettings, m: ChoicesMeasurement) -> Claims:
    for kind, rows in (("hard", "one key each"), ("soft", "mixtures")):
        runs = [name for name, hard in m.hard.items() if hard == (kind == "hard")]
        cross, so = (sum(which[name] for name in runs) / len(runs) for which in (m.cross, m.hard))
        yield Thesis(f"choices.{kind}", f"{kind.capitalize()} attention is cross-attention.").false(
            at_least(1.0, f"share of the {kind} attentions that ran which are cross", cross),
            twin=(f"share of them whose rows are {rows}", so if kind == "hard" else 1 - so),
            truth="Self or cross says where keys come from, hard or soft how large β is: all four exist.",
            heard=True,
        )
    yield Thesis(
        "choices.independent", "Hard or soft and self or cross are independent: all four combinations exist."
    ).true(
        at_least(4, "combinations that ran", m.combinations),
        twin=("combinations, if hard were cross and soft were self", m.combinations_if_same),
    )


def draw_choices(p: ChoicesSettings, m: ChoicesMeasurement) -> Drawing:
    numbers = {
        name: ("hard" if m.hard[name] else "soft") + ", " + ("cross" if m.cross[name] else "self") for name in m.weights
    } | {"different combinations that ran": m.combinations}
    return numbers, [heatmap(name, weights) for name, weights in m.weights.items()]


CHOICES = Experiment(
    name="choices",
    title="Hard or soft, self or cross",
    statement="Where the keys come from and how sharply they are chosen are independent choices.",
    formula="self: K = X·W_k; cross: K = C·W_k; soft: β finite; hard: β = ∞",
    predict="Draw a table with four cells: soft and hard, self and cross. Which cells are empty?",
    fails="Hard attention has no gradient with respect to its scores, self or cross; it is trained by other means.",
    functions=(measure_choices, claim_choices, draw_choices),
)
