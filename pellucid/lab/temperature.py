"""β, the inverse temperature: from the mean of all values to one of them, and why it is 1/√d."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, exponent, seeded, worst
from pellucid.lab.panels import Curves, line
from pellucid.ops import attend, attention_weights, entropy


@dataclass(frozen=True)
class Temperature:
    """How many queries meet how many keys of which width."""

    keys: int = 64
    """Number of keys, and of queries."""
    width: int = 64
    """Width of queries and keys."""
    values: int = 8
    """Width of the values."""
    seed: int = 0
    """Of queries, keys and values."""


def temperature(p: Temperature) -> Result:
    """Attention of the same queries, keys and values at many β."""
    with seeded(p.seed):
        q, k = torch.randn(2, 1, 1, p.keys, p.width, dtype=torch.float64)
        v = torch.randn(1, 1, p.keys, p.values, dtype=torch.float64)
    usual = 1 / math.sqrt(p.width)
    betas = [0.0, *(usual * 10 ** (i / 8) for i in range(-16, 25))]
    mean, nearest = v.mean(2, keepdim=True).expand_as(v), attend(q, k, v, beta=math.inf)
    out = [attend(q, k, v, beta=beta) for beta in betas]
    to_mean = [(o - mean).norm(dim=-1).mean().item() for o in out]
    to_nearest = [(o - nearest).norm(dim=-1).mean().item() for o in out]
    counting = [entropy(q, k, beta=beta).exp() for beta in betas]
    negative = [entropy(q, k, beta=-beta).exp() for beta in reversed(betas)]
    effective = [each.mean().item() for each in counting]
    through = [gradient_through(attention_weights(q, k, beta=beta)) for beta in betas]
    hard = attention_weights(q, k, beta=math.inf)
    best = v[0, 0, (q @ k.mT)[0, 0].argmax(-1)][None, None]

    at = betas.index(usual)
    claims = (
        Claim(
            "temperature.mean",
            "At β = 0 attention is the plain mean of the values.",
            "true",
            "≤",
            1e-12,
            holds=(Case("largest distance from the mean", worst(out[0], mean)),),
            twin=Case("at β = 1/√d", worst(out[at], mean)),
        ),
        Claim(
            "temperature.hard",
            "At β = ∞ attention is one value, that of the best key, untouched.",
            "true",
            "≤",
            1e-12,
            holds=(Case("largest distance from the best key's value", worst(nearest, best)),),
            twin=Case("at β = 1/√d", worst(out[at], best)),
        ),
        Claim(
            "temperature.effective",
            "The effective number of keys, e^entropy, never grows with β ≥ 0.",
            "true",
            "≤",
            1e-9,
            holds=(Case("largest growth of a row's, from one β to the next", growth(counting)),),
            twin=Case("with β from −∞ to 0", growth(negative)),
        ),
        Claim(
            "temperature.vanishing",
            "Where β is large, the softmax is saturated and lets hardly any gradient through.",
            "true",
            "≤",
            1e-3,
            holds=(Case("‖∂p/∂s‖ at 1000/√d, median of the rows", through[-1]),),
            twin=Case("at 1/√d", through[at]),
        ),
    )
    shown = slice(1, None)
    x = betas[shown]
    panels = (
        Curves(
            "from the mean to one value",
            "β",
            "distance, mean of the queries",
            (
                line("to the mean of the values", x, to_mean[shown]),
                line("to the best key's value", x, to_nearest[shown]),
            ),
            log="x",
        ),
        Curves(
            "how many keys count", "β", "effective number of keys, e^entropy", (line("", x, effective[shown]),), "xy"
        ),
        Curves("what gradient passes", "β", "‖∂p/∂s‖, median of the rows", (line("", x, through[shown]),), log="x"),
    )
    numbers = {
        "1/√d": usual,
        "effective keys at 0": effective[0],
        "effective keys at 1/√d": effective[at],
        "effective keys at 1000/√d": effective[-1],
        "effective keys at ∞": torch.special.entr(hard).sum(-1).exp().mean().item(),
        "‖∂p/∂s‖ at 1/√d": through[at],
        "‖∂p/∂s‖ at 1000/√d": through[-1],
    }
    return Result(numbers, panels, claims)


def gradient_through(weights: Float[Tensor, "1 1 q k"]) -> float:
    """‖∂p/∂s‖ of the median row: the Jacobian of the softmax is diag(p) − p·pᵀ, s being the scores times β."""
    weights = weights.clamp(min=1e-150)  # products below 1e-308 are slow, and nothing beside the others
    apart = weights[..., :, None] * weights[..., None, :] * (1 - torch.eye(weights.shape[-1]))
    jacobian = torch.diag_embed(apart.sum(-1)) - apart  # its rows sum to zero, which p − p² near p = 1 would round away
    return jacobian.flatten(-2).norm(dim=-1).median().item()


def growth(values: list[Tensor]) -> float:
    """The largest step upwards of any row, from one β to the next."""
    return torch.stack(values).diff(dim=0).max().item()


@dataclass(frozen=True)
class Scaling:
    """Which widths are compared, by how many scores."""

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024)
    """Widths of queries and keys."""
    heads: int = 8
    """Heads that a model's width is split into."""
    keys: int = 128
    """Number of keys, and of queries."""
    seed: int = 0
    """Of queries and keys."""


def scaling(p: Scaling) -> Result:
    """Scores of random queries and keys, whose components have variance one: how they spread, for each scale."""
    variances: dict[str, list[float]] = {"β = 1": [], "β = 1/√d": [], "β = 1/√d_model": []}
    through: dict[str, list[float]] = {name: [] for name in variances}
    with seeded(p.seed):
        for d in p.widths:
            q, k = torch.randn(2, 1, 1, p.keys, d, dtype=torch.float64)
            for name, beta in zip(variances, (1.0, d**-0.5, (p.heads * d) ** -0.5), strict=True):
                variances[name].append((beta * q @ k.mT).var().item())
                through[name].append(gradient_through(attention_weights(q, k, beta=beta)))
    widths = [float(d) for d in p.widths]
    slopes = {name: exponent(widths, values) for name, values in variances.items()}
    model_ratio = [m / s for m, s in zip(variances["β = 1/√d_model"], variances["β = 1/√d"], strict=True)]
    one_head = [abs((1 * d) ** -0.5 / d**-0.5 - 1) for d in p.widths]
    claims = (
        Claim(
            "scaling.variance_is_d",
            "Unscaled, the variance of the scores grows as the width: Var(q·k) = d.",
            "true",
            "≤",
            0.05,
            holds=(Case("distance of the fitted exponent from 1", abs(slopes["β = 1"] - 1)),),
            twin=Case("the same, scaled by 1/√d", abs(slopes["β = 1/√d"] - 1)),
        ),
        Claim(
            "scaling.variance_is_one",
            "Scaled by 1/√d, the scores have variance one at every width.",
            "true",
            "≤",
            0.1,
            holds=(Case("largest distance from one", max(abs(v - 1) for v in variances["β = 1/√d"])),),
            twin=Case("unscaled", max(abs(v - 1) for v in variances["β = 1"])),
        ),
        Claim(
            "scaling.saturation",
            f"Unscaled, at a width of {p.widths[-1]}, the softmax is saturated: hardly any gradient passes.",
            "true",
            "≤",
            1e-2,
            holds=(Case("‖∂p/∂s‖ of the median row", through["β = 1"][-1]),),
            twin=Case("scaled by 1/√d", through["β = 1/√d"][-1]),
        ),
        Claim(
            "scaling.d_model",
            "Dividing by √d_model is the same as dividing by √d_k.",
            "conditional",
            "≤",
            1e-12,
            holds=(Case("one head: relative difference of β", max(one_head)),),
            breaks=(
                Case(
                    f"{p.heads} heads: distance of the ratio of variances from 1", max(abs(r - 1) for r in model_ratio)
                ),
            ),
            truth=f"With one head it is. With h heads the scores are √h times smaller, and attention is more diffuse: "
            f"the variance is 1/{p.heads}.",
        ),
    )
    panels = (
        Curves(
            "why 1/√d",
            "width d of queries and keys",
            "variance of the scores",
            tuple(line(name, widths, values) for name, values in variances.items()),
            log="xy",
        ),
        Curves(
            "what gradient passes",
            "width d of queries and keys",
            "‖∂p/∂s‖, median of the rows",
            tuple(line(name, widths, values) for name, values in through.items()),
            log="xy",
        ),
    )
    numbers = {f"exponent of the variance over d, {name}": slope for name, slope in slopes.items()}
    numbers |= {f"variance at d = {p.widths[-1]}, {name}": values[-1] for name, values in variances.items()}
    return Result(numbers, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="temperature",
        title="β from 0 to ∞",
        statement="β turns attention from the plain mean of all values (0) over a soft mixture to one preserved "
        "value (∞).",
        formula="softmax(β·q·Kᵀ)·V; effective number of keys e^H, H = −Σ p·ln p; ∂p/∂s = diag(p) − p·pᵀ",
        predict="At 1/√d, of 64 random keys, how many count? At 10/√d? At which β does the gradient die?",
        fails="Keys that tie share the weight at any β, ∞ included. Below zero, β prefers the worst keys, and the "
        "effective "
        "number of keys falls with |β|. Rows near a tie keep their gradient longer than the median row.",
        parameters=Temperature,
        run=temperature,
        shown=(gradient_through,),
    ),
    Experiment(
        name="scaling",
        title="Why 1/√d",
        statement="Without 1/√d wide heads get large scores, and a softmax of large scores is saturated.",
        formula="Var(q·k) = Σ Var(qᵢ·kᵢ) = d for independent components of variance one; so Var(q·k/√d) = 1",
        predict="By what factor does the spread (standard deviation) of unscaled scores grow from d = 4 to d = 1,024?",
        fails="It speaks of independent components, as they are at initialisation. Trained queries and keys align, "
        "and scores "
        "grow beyond it; QK-norm is the remedy then.",
        parameters=Scaling,
        run=scaling,
        shown=(gradient_through,),
    ),
)
