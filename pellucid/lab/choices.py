"""Hard or soft, self or cross: two choices that have nothing to do with each other."""

import math
from dataclasses import dataclass

import torch

from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded
from pellucid.lab.panels import matrix
from pellucid.layers import MultiHeadAttention, watch


@dataclass(frozen=True)
class Choices:
    """Tokens that ask, tokens of another sequence, and their width."""

    tokens: int = 4
    """Tokens that ask."""
    others: int = 6
    """Tokens of the other sequence."""
    width: int = 16
    """Of a token."""
    seed: int = 0
    """Of tokens and weights."""


def choices(p: Choices) -> Result:
    """One layer, run four times; what each run was is read off what was seen of it."""
    with seeded(p.seed):
        x, other = torch.randn(1, p.tokens, p.width), torch.randn(1, p.others, p.width)
        layer = MultiHeadAttention(p.width, heads=1)
    ran, hard, cross = {}, {}, {}
    for source, key in (("self", None), ("cross", other)):
        for kind, beta in (("soft", None), ("hard", math.inf)):
            layer.beta = beta
            with torch.no_grad(), watch(layer) as seen:
                layer(x, key)
            name, weights = f"{kind} {source}-attention", seen[""].weights()[0, 0]
            ran[name] = weights
            hard[name] = bool(((weights == 0) | (weights == 1)).all())  # every row is one key
            cross[name] = not torch.equal(seen[""].k[0, 0], layer.k(x)[0])  # its keys are not of the tokens that ask
    claims = tuple(
        Claim(
            f"choices.{kind}",
            f"{kind.capitalize()} attention is cross-attention.",
            "false",
            "≥",
            1.0,
            breaks=(
                Case(f"share of the {kind} attentions that ran which are cross", among(cross, hard, kind == "hard")),
            ),
            twin=Case(
                f"share of them whose rows are {what}",
                among({n: h == (kind == "hard") for n, h in hard.items()}, hard, kind == "hard"),
            ),
            truth="Self or cross says where keys come from, hard or soft how large β is: all four exist.",
            heard=True,
        )
        for kind, what in (("hard", "one key each"), ("soft", "mixtures"))
    )
    numbers = {name: ("hard" if hard[name] else "soft") + ", " + ("cross" if cross[name] else "self") for name in ran}
    combinations = len(set(zip(hard.values(), cross.values(), strict=True)))
    claims += (
        Claim(
            "choices.independent",
            "Hard or soft and self or cross are independent: all four combinations exist.",
            "true",
            "≥",
            4,
            holds=(Case("combinations that ran", combinations),),
            twin=Case(
                "combinations, if hard were cross and soft were self",
                len(set(zip(hard.values(), hard.values(), strict=True))),
            ),
        ),
    )
    return Result(
        numbers | {"different combinations that ran": combinations},
        tuple(matrix(name, weights) for name, weights in ran.items()),
        claims,
    )


def among(which: dict[str, bool], hard: dict[str, bool], wanted: bool) -> float:
    """The share of those that are hard (or not, as wanted) for which `which` is true."""
    chosen = [which[name] for name in which if hard[name] == wanted]
    return sum(chosen) / len(chosen)


EXPERIMENTS = (
    Experiment(
        name="choices",
        title="Hard or soft, self or cross",
        statement="Where the keys come from and how sharply they are chosen are independent choices.",
        formula="self: K = X·W_k; cross: K = C·W_k; soft: β finite; hard: β = ∞",
        predict="Draw a table with four cells: soft and hard, self and cross. Which cells are empty?",
        fails="Hard attention has no gradient with respect to its scores, self or cross; it is trained by other means.",
        parameters=Choices,
        run=choices,
        shown=(among,),
    ),
)
