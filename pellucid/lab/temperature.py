"""β, the inverse temperature: from the mean of all values to one of them, and why it is 1/√d."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, exponent, max_error, seeded
from pellucid.lab.panels import line_chart
from pellucid.ops import attend, attention_weights, entropy


class TemperatureSettings(NamedTuple):
    """How many queries meet how many keys of which width."""

    keys: int = 64  # Number of keys, and of queries.
    width: int = 64  # Width of queries and keys.
    values: int = 8  # Width of the values.
    seed: int = 0  # Of queries, keys and values.


class TemperatureMeasurement(NamedTuple):
    betas: list[float]
    to_mean: list[float]  # at each β: distance from the mean of the values, mean of the queries
    to_best: list[float]  # from the best key's value
    effective: list[float]  # number of keys that count
    gradient: list[float]  # that passes
    hard_effective: float
    error_from_mean: dict[str, float]  # at two β, the largest
    error_from_best: dict[str, float]
    growth: float  # of the effective number, at most, from one β to the next
    growth_below_zero: float


def measure_temperature(p: TemperatureSettings) -> TemperatureMeasurement:
    """Attention of the same queries, keys and values at many β: 0, then from 0.01/√d to 1000/√d."""
    with seeded(p.seed):
        q, k = torch.randn(2, 1, 1, p.keys, p.width, dtype=torch.float64)
        v = torch.randn(1, 1, p.keys, p.values, dtype=torch.float64)
    usual = 1 / math.sqrt(p.width)
    betas = [0.0, *(usual * 10 ** (i / 8) for i in range(-16, 25))]
    outputs = {beta: attend(q, k, v, beta=beta) for beta in (*betas, math.inf)}
    mean = v.mean(2, keepdim=True).expand_as(v)
    best = v[0, 0, (q @ k.mT)[0, 0].argmax(-1)][None, None]
    effective = [entropy(q, k, beta=beta).exp() for beta in betas]
    below_zero = [entropy(q, k, beta=-beta).exp() for beta in reversed(betas)]
    hard = attention_weights(q, k, beta=math.inf)
    return TemperatureMeasurement(
        betas=betas,
        to_mean=[(outputs[beta] - mean).norm(dim=-1).mean().item() for beta in betas],
        to_best=[(outputs[beta] - outputs[math.inf]).norm(dim=-1).mean().item() for beta in betas],
        effective=[each.mean().item() for each in effective],
        gradient=[gradient_through(attention_weights(q, k, beta=beta)) for beta in betas],
        hard_effective=torch.special.entr(hard).sum(-1).exp().mean().item(),
        error_from_mean={"0": max_error(outputs[0.0], mean), "1/√d": max_error(outputs[usual], mean)},
        error_from_best={"∞": max_error(outputs[math.inf], best), "1/√d": max_error(outputs[usual], best)},
        growth=largest_step(effective),
        growth_below_zero=largest_step(below_zero),
    )


def gradient_through(weights: Float[Tensor, "1 1 q k"]) -> float:
    """‖∂p/∂s‖ of the median row: the Jacobian of the softmax is diag(p) − p·pᵀ, s being the scores times β."""
    weights = weights.clamp(min=1e-150)  # products below 1e-308 are slow, and nothing beside the others
    apart = weights[..., :, None] * weights[..., None, :] * (1 - torch.eye(weights.shape[-1]))
    jacobian = torch.diag_embed(apart.sum(-1)) - apart  # its rows sum to zero, which p − p² near p = 1 would round away
    return jacobian.flatten(-2).norm(dim=-1).median().item()


def largest_step(values: list[Tensor]) -> float:
    """The largest step upwards of any row, from one β to the next."""
    return torch.stack(values).diff(dim=0).max().item()


def claim_temperature(p: TemperatureSettings, m: TemperatureMeasurement) -> Claims:
    yield Thesis("temperature.mean", "At β = 0 attention is the plain mean of the values.").true(
        at_most(1e-12, "largest distance from the mean", m.error_from_mean["0"]),
        twin=("at β = 1/√d", m.error_from_mean["1/√d"]),
    )
    yield Thesis("temperature.hard", "At β = ∞ attention is one value, that of the best key, untouched.").true(
        at_most(1e-12, "largest distance from the best key's value", m.error_from_best["∞"]),
        twin=("at β = 1/√d", m.error_from_best["1/√d"]),
    )
    yield Thesis("temperature.effective", "The effective number of keys, e^entropy, never grows with β ≥ 0.").true(
        at_most(1e-9, "largest growth of a row's, from one β to the next", m.growth),
        twin=("with β from −∞ to 0", m.growth_below_zero),
    )
    yield Thesis(
        "temperature.vanishing", "Where β is large, the softmax is saturated and lets hardly any gradient through."
    ).true(
        at_most(1e-3, "‖∂p/∂s‖ at 1000/√d, median of the rows", m.gradient[-1]),
        twin=("at 1/√d", m.gradient[m.betas.index(1 / math.sqrt(p.width))]),
    )


def draw_temperature(p: TemperatureSettings, m: TemperatureMeasurement) -> Drawing:
    usual = 1 / math.sqrt(p.width)
    at = m.betas.index(usual)
    numbers = {
        "1/√d": usual,
        "effective keys at 0": m.effective[0],
        "effective keys at 1/√d": m.effective[at],
        "effective keys at 1000/√d": m.effective[-1],
        "effective keys at ∞": m.hard_effective,
        "‖∂p/∂s‖ at 1/√d": m.gradient[at],
        "‖∂p/∂s‖ at 1000/√d": m.gradient[-1],
    }
    x = m.betas[1:]  # 0 has no place on a logarithmic axis
    distances = {"to the mean of the values": m.to_mean[1:], "to the best key's value": m.to_best[1:]}
    return numbers, [
        line_chart("from the mean to one value", ("β", "distance, mean of the queries"), x, distances, log="x"),
        line_chart(
            "how many keys count", ("β", "effective number of keys, e^entropy"), x, {"": m.effective[1:]}, log="xy"
        ),
        line_chart("what gradient passes", ("β", "‖∂p/∂s‖, median of the rows"), x, {"": m.gradient[1:]}, log="x"),
    ]


class ScalingSettings(NamedTuple):
    """Which widths are compared, by how many scores."""

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024)  # Widths of queries and keys.
    heads: int = 8  # Heads that a model's width is split into.
    keys: int = 128  # Number of keys, and of queries.
    seed: int = 0  # Of queries and keys.


class ScalingMeasurement(NamedTuple):
    variances: dict[str, list[float]]  # of the scores, for each scale and width
    gradients: dict[str, list[float]]
    exponents: dict[str, float]  # of the variance over the width


def measure_scaling(p: ScalingSettings) -> ScalingMeasurement:
    """Scores of random queries and keys, whose components have variance one: how they spread, for each scale."""
    variances: dict[str, list[float]] = {"β = 1": [], "β = 1/√d": [], "β = 1/√d_model": []}
    gradients: dict[str, list[float]] = {name: [] for name in variances}
    with seeded(p.seed):
        for d in p.widths:
            q, k = torch.randn(2, 1, 1, p.keys, d, dtype=torch.float64)
            for name, beta in zip(variances, (1.0, d**-0.5, (p.heads * d) ** -0.5), strict=True):
                variances[name].append((beta * q @ k.mT).var().item())
                gradients[name].append(gradient_through(attention_weights(q, k, beta=beta)))
    exponents = {name: exponent(p.widths, values) for name, values in variances.items()}
    return ScalingMeasurement(variances, gradients, exponents)


def claim_scaling(p: ScalingSettings, m: ScalingMeasurement) -> Claims:
    unscaled, scaled, by_model = m.variances.values()
    yield Thesis(
        "scaling.variance_is_d", "Unscaled, the variance of the scores grows as the width: Var(q·k) = d."
    ).true(
        at_most(0.05, "distance of the fitted exponent from 1", abs(m.exponents["β = 1"] - 1)),
        twin=("the same, scaled by 1/√d", abs(m.exponents["β = 1/√d"] - 1)),
    )
    yield Thesis("scaling.variance_is_one", "Scaled by 1/√d, the scores have variance one at every width.").true(
        at_most(0.1, "largest distance from one", max(abs(v - 1) for v in scaled)),
        twin=("unscaled", max(abs(v - 1) for v in unscaled)),
    )
    yield Thesis(
        "scaling.saturation",
        f"Unscaled, at a width of {p.widths[-1]}, the softmax is saturated: hardly any gradient passes.",
    ).true(
        at_most(1e-2, "‖∂p/∂s‖ of the median row", m.gradients["β = 1"][-1]),
        twin=("scaled by 1/√d", m.gradients["β = 1/√d"][-1]),
    )
    one_head = max(abs((1 * d) ** -0.5 / d**-0.5 - 1) for d in p.widths)
    many_heads = max(abs(m / s - 1) for m, s in zip(by_model, scaled, strict=True))
    yield Thesis("scaling.d_model", "Dividing by √d_model is the same as dividing by √d_k.").conditional(
        at_most(1e-12, "one head: relative difference of β", one_head),
        (f"{p.heads} heads: distance of the ratio of variances from 1", many_heads),
        truth="With one head it is. With h heads the scores are √h times smaller, and attention is more diffuse: "
        f"the variance is 1/{p.heads}.",
    )


def draw_scaling(p: ScalingSettings, m: ScalingMeasurement) -> Drawing:
    numbers = {f"exponent of the variance over d, {name}": value for name, value in m.exponents.items()}
    numbers |= {f"variance at d = {p.widths[-1]}, {name}": values[-1] for name, values in m.variances.items()}
    width = "width d of queries and keys"
    return numbers, [
        line_chart("why 1/√d", (width, "variance of the scores"), p.widths, m.variances, log="xy"),
        line_chart("what gradient passes", (width, "‖∂p/∂s‖, median of the rows"), p.widths, m.gradients, log="xy"),
    ]


TEMPERATURE = Experiment(
    name="temperature",
    title="β from 0 to ∞",
    statement="β turns attention from the plain mean of all values (0) over a soft mixture to one preserved value (∞).",
    formula="softmax(β·q·Kᵀ)·V; effective number of keys e^H, H = −Σ p·ln p; ∂p/∂s = diag(p) − p·pᵀ",
    predict="At 1/√d, of 64 random keys, how many count? At 10/√d? At which β does the gradient die?",
    fails="Keys that tie share the weight at any β, ∞ included. Below zero, β prefers the worst keys, and the "
    "effective number of keys falls with |β|. Rows near a tie keep their gradient longer than the median row.",
    functions=(measure_temperature, claim_temperature, draw_temperature),
    helpers=(gradient_through, largest_step),
)

SCALING = Experiment(
    name="scaling",
    title="Why 1/√d",
    statement="Without 1/√d wide heads get large scores, and a softmax of large scores is saturated.",
    formula="Var(q·k) = Σ Var(qᵢ·kᵢ) = d for independent components of variance one; so Var(q·k/√d) = 1",
    predict="By what factor does the spread (standard deviation) of unscaled scores grow from d = 4 to d = 1,024?",
    fails="It speaks of independent components, as they are at initialisation. Trained queries and keys align, and "
    "scores grow beyond it; QK-norm is the remedy then.",
    functions=(measure_scaling, claim_scaling, draw_scaling),
    helpers=(gradient_through,),
)
