"""What layer norm normalises, beside batch norm."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Case, Claim, Experiment, Result, seeded, worst
from pellucid.lab.panels import Bars
from pellucid.layers import LayerNorm


@dataclass(frozen=True)
class Norms:
    """How many numbers."""

    batch: int = 32
    """Sequences."""
    tokens: int = 6
    """In each."""
    width: int = 16
    """Features of each."""
    seed: int = 0
    """Of the numbers."""


def norms(p: Norms) -> Result:
    """Both norms on the same numbers, features of very different sizes: over what is the mean zero?"""
    with seeded(p.seed):
        scale, shift = (
            torch.rand(p.width, dtype=torch.float64).mul(4).exp(),
            torch.randn(p.width, dtype=torch.float64) * 5,
        )
        x = torch.randn(p.batch, p.tokens, p.width, dtype=torch.float64) * scale + shift
    layer = LayerNorm(p.width, eps=1e-12).double()
    batch = nn.BatchNorm1d(p.width, eps=1e-12, affine=False).double()

    def batched(x: Tensor) -> Tensor:
        return batch(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    with torch.no_grad():
        by_layer, by_batch = layer(x), batched(x)
        alone = {"layer norm": worst(layer(x[:1]), by_layer[:1]), "batch norm": worst(batched(x[:1]), by_batch[:1])}
    feature = {
        name: y.mean((0, 1)).abs().max().item() for name, y in (("layer norm", by_layer), ("batch norm", by_batch))
    }
    token = {name: y.mean(-1).abs().max().item() for name, y in (("layer norm", by_layer), ("batch norm", by_batch))}
    deviation = {
        name: (y.var(-1, unbiased=False) - 1).abs().max().item()
        for name, y in (("layer norm", by_layer), ("batch norm", by_batch))
    }
    claims = (
        Claim(
            "norms.layer_norm",
            "Layer norm normalises each feature across the batch.",
            "false",
            "≤",
            1e-6,
            breaks=(Case("largest mean of a feature over the batch, after layer norm", feature["layer norm"]),),
            twin=Case("after batch norm, which does", feature["batch norm"]),
            truth="That is batch norm. Layer norm works on one token, across its features.",
            heard=True,
        ),
        Claim(
            "norms.one_token",
            "Layer norm gives every token mean zero and variance one over its features.",
            "true",
            "≤",
            1e-6,
            holds=(Case("largest distance from it", max(token["layer norm"], deviation["layer norm"])),),
            twin=Case("after batch norm", max(token["batch norm"], deviation["batch norm"])),
        ),
        Claim(
            "norms.alone",
            "Under layer norm a sequence gets the same whatever else is in its batch.",
            "true",
            "≤",
            1e-12,
            holds=(Case("largest difference between alone and in the batch", alone["layer norm"]),),
            twin=Case("under batch norm, in training", alone["batch norm"]),
        ),
    )
    panels = (
        Bars(
            "what is normalised",
            "largest mean of it, in absolute value",
            ("each token, over features", "each feature, over the batch"),
            tuple((name, (token[name], feature[name])) for name in token),
            log=True,
        ),
    )
    numbers = {f"{name}: largest mean of a feature over the batch": value for name, value in feature.items()}
    numbers |= {f"{name}: largest mean of a token over its features": value for name, value in token.items()}
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="norms",
        title="Layer norm beside batch norm",
        statement="Layer norm looks at one token and nothing else; batch norm looks at one feature of the whole batch.",
        formula="layer: (x − mean_d x)/√(var_d x + ε) for each token; batch: (x − mean_b x)/√(var_b x + ε) for each "
        "feature",
        predict="After layer norm, is the mean of feature 3 over the batch zero? Is the mean of token 3 over its "
        "features?",
        fails="The learned weight and bias come after: a trained layer norm's output has whatever mean they give it.",
        parameters=Norms,
        run=norms,
    ),
)
