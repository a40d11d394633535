"""Every claim about attention, run and measured: experiments, and the ledger of what they decide.

>>> from pellucid import lab
>>> outcome = lab.EXPERIMENTS["graph"]()
>>> [(claim.id, claim.verdict, claim.failures()) for claim in outcome.claims][:1]
[('graph.complete', 'true', [])]
"""

from pellucid.lab import (
    built,
    choices,
    convolution,
    cost,
    curve,
    depth,
    graph,
    heads,
    interpolation,
    itself,
    keys,
    leaking,
    masks,
    multihead,
    norms,
    order,
    packed,
    precision,
    shapes,
    sinusoids,
    temperature,
    testing,
)
from pellucid.lab.claims import Case, Claim, Verdict
from pellucid.lab.frame import Experiment, Outcome
from pellucid.lab.panels import draw_panels

# In an order that teaches: from one softmax to trained models.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for room in (
        shapes, temperature, keys, choices, graph, masks, leaking, order, sinusoids, built, convolution, multihead,
        packed, norms, depth, testing, curve, precision, cost, itself, heads, interpolation,
    )
    for experiment in room.EXPERIMENTS
}  # fmt: skip

__all__ = ["EXPERIMENTS", "Case", "Claim", "Experiment", "Outcome", "Verdict", "draw_panels", "experiment"]


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
