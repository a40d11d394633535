"""What layer norm normalises, beside batch norm."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, max_error, seeded
from pellucid.lab.panels import bar_chart
from pellucid.layers import LayerNorm


class NormsSettings(NamedTuple):
    """How many numbers."""

    batch: int = 32  # Sequences.
    tokens: int = 6  # In each.
    width: int = 16  # Features of each.
    seed: int = 0  # Of the numbers.


class NormsMeasurement(NamedTuple):  # each for both norms, by name
    feature_mean: dict[str, float]  # of a feature over the batch, the largest
    token_mean: dict[str, float]  # of a token over its features
    token_variance: dict[str, float]  # its distance from one
    company: dict[str, float]  # what a sequence's company in the batch changes


def measure_norms(p: NormsSettings) -> NormsMeasurement:
    """Both norms on the same numbers, features of very different sizes: over what is the mean zero?"""
    with seeded(p.seed):
        scale = torch.rand(p.width, dtype=torch.float64).mul(4).exp()
        shift = torch.randn(p.width, dtype=torch.float64) * 5
        x = torch.randn(p.batch, p.tokens, p.width, dtype=torch.float64) * scale + shift
    layer = LayerNorm(p.width, eps=1e-12).double()
    batch = nn.BatchNorm1d(p.width, eps=1e-12, affine=False).double()

    def normalise_batch(x: Tensor) -> Tensor:
        return batch(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    with torch.no_grad():
        whole = {"layer norm": layer(x), "batch norm": normalise_batch(x)}
        alone = {"layer norm": layer(x[:1]), "batch norm": normalise_batch(x[:1])}
    return NormsMeasurement(
        {name: y.mean((0, 1)).abs().max().item() for name, y in whole.items()},
        {name: y.mean(-1).abs().max().item() for name, y in whole.items()},
        {name: (y.var(-1, unbiased=False) - 1).abs().max().item() for name, y in whole.items()},
        {name: max_error(alone[name], y[:1]) for name, y in whole.items()},
    )


def claim_norms(p: NormsSettings, m: NormsMeasurement) -> Claims:
    yield Thesis("norms.layer_norm", "Layer norm normalises each feature across the batch.").false(
        at_most(1e-6, "largest mean of a feature over the batch, after layer norm", m.feature_mean["layer norm"]),
        twin=("after batch norm, which does", m.feature_mean["batch norm"]),
        truth="That is batch norm. Layer norm works on one token, across its features.",
        heard=True,
    )
    distance = {name: max(mean, m.token_variance[name]) for name, mean in m.token_mean.items()}
    yield Thesis("norms.one_token", "Layer norm gives every token mean zero and variance one over its features.").true(
        at_most(1e-6, "largest distance from it", distance["layer norm"]),
        twin=("after batch norm", distance["batch norm"]),
    )
    yield Thesis("norms.alone", "Under layer norm a sequence gets the same whatever else is in its batch.").true(
        at_most(1e-12, "largest difference between alone and in the batch", m.company["layer norm"]),
        twin=("under batch norm, in training", m.company["batch norm"]),
    )


def draw_norms(p: NormsSettings, m: NormsMeasurement) -> Drawing:
    numbers = {f"{name}: largest mean of a feature over the batch": value for name, value in m.feature_mean.items()}
    numbers |= {f"{name}: largest mean of a token over its features": value for name, value in m.token_mean.items()}
    bars = {
        name: {"each token, over features": mean, "each feature, over the batch": m.feature_mean[name]}
        for name, mean in m.token_mean.items()
    }
    return numbers, [bar_chart("what is normalised", "largest mean of it, in absolute value", bars, log=True)]


NORMS = Experiment(
    name="norms",
    title="Layer norm beside batch norm",
    statement="Layer norm looks at one token and nothing else; batch norm looks at one feature of the whole batch.",
    formula="layer: (x − mean_d x)/√(var_d x + ε) for each token; batch: (x − mean_b x)/√(var_b x + ε) for each "
    "feature",
    predict="After layer norm, is the mean of feature 3 over the batch zero? Is the mean of token 3 over its features?",
    fails="The learned weight and bias come after: a trained layer norm's output has whatever mean they give it.",
    functions=(measure_norms, claim_norms, draw_norms),
    bounds={"tokens": (2, math.inf)},
)
