"""Every claim about attention, run and measured: experiments, and the ledger of what they decide.

>>> from pellucid import lab
>>> outcome = lab.EXPERIMENTS["graph"]()
>>> [(claim.id, claim.verdict, claim.failures()) for claim in outcome.claims][:1]
[('graph.complete', 'true', [])]
"""

from importlib import import_module

from pellucid.lab.frame import Case, Claim, Experiment, Outcome, Verdict
from pellucid.lab.panels import draw_panels

# In an order that teaches: from one softmax to trained models.
ROOMS = (
    "shapes", "temperature", "keys", "choices", "graph", "masks", "leaking", "order", "sinusoids", "embedding", "built",
    "convolution", "multihead", "packed", "norms", "depth", "warmup", "testing", "curve", "precision", "cost",
    "sequential", "sizes", "field", "rotation", "itself", "heads", "interpolation",
    "alignment", "searching",
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for room in ROOMS
    for each in vars(import_module(f"{__name__}.{room}")).values()
    if isinstance(each, Experiment)
}

__all__ = ["EXPERIMENTS", "Case", "Claim", "Experiment", "Outcome", "Verdict", "draw_panels", "experiment"]


def experiment(name: str) -> Experiment:
    """The experiment of this name.

    >>> experiment("temperature").title
    'β from 0 to ∞'
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
