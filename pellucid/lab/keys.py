"""What one key does: how it makes a value come through untouched, and what happens when it is moved or made longer."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, exponent, relative_error, seeded
from pellucid.lab.panels import bar_chart, line_chart
from pellucid.ops import attend, attention_weights


class PreserveSettings(NamedTuple):
    """How many keys of which width."""

    keys: int = 16  # Number of keys, at most the width.
    width: int = 32  # Width of queries, keys and values.
    chosen: int = 3  # Which value is to come through.
    seed: int = 0  # Of keys and values.


class PreserveMeasurement(NamedTuple):
    betas: list[float]
    errors: list[float]  # of the value that comes through, relative, at each β
    shared_errors: list[float]  # where a second key is the same
    bounds: list[float]  # by the formula
    rate: float  # at which the error falls
    shared_rate: float
    own_key: dict[str, float]  # share of keys that win where the query is the key itself


def fitted_rate(x: list[float], y: list[float]) -> float:
    """The slope of ln y over x, by least squares: r where y = c·e^(r·x)."""
    return exponent([math.exp(value) for value in x], y)


def measure_preserve(p: PreserveSettings) -> PreserveMeasurement:
    """Orthonormal keys and a query that is one of them: every other score is smaller by β."""
    if not 2 <= p.keys <= p.width or not 0 <= p.chosen < p.keys:
        raise ValueError(
            f"keys is {p.keys}, width {p.width} and chosen {p.chosen}; "
            "expected two keys or more, no more than the width, and one of them chosen"
        )
    with seeded(p.seed):
        k = torch.linalg.qr(torch.randn(p.width, p.width, dtype=torch.float64)).Q[None, None, : p.keys]
        v = torch.randn(1, 1, p.keys, p.width, dtype=torch.float64)
        loose = torch.randn(1, 1, 4096, p.width, dtype=torch.float64)
        lengths = torch.rand(1, 1, 4096, 1, dtype=torch.float64)
    q, value = k[:, :, p.chosen : p.chosen + 1], v[:, :, p.chosen]
    betas = [float(beta) for beta in range(0, 65, 2)]
    errors = [relative_error(attend(q, k, v, beta=beta)[:, :, 0], value) for beta in betas]
    twice = k.clone()
    twice[:, :, p.chosen - 1] = k[:, :, p.chosen]  # another key is the same
    shared = [relative_error(attend(q, twice, v, beta=beta)[:, :, 0], value) for beta in betas]
    furthest, length = (v - value).norm(dim=-1).max().item(), value.norm().item()
    bounds = [(p.keys - 1) * math.exp(-beta) * furthest / length for beta in betas]
    steady = slice(4, 13)  # from β = 8, where the chosen weight is nearly one, to 24, far above rounding
    rate, shared_rate = (fitted_rate(betas[steady], values[steady]) for values in (errors, shared))

    equal, own = loose / loose.norm(dim=-1, keepdim=True), torch.arange(256)
    own_key = {
        name: (attention_weights(keys[:, :, :256], keys).argmax(-1)[0, 0] == own).double().mean().item()
        for name, keys in (("of equal length", equal), ("of random length", equal * lengths))
    }
    return PreserveMeasurement(betas, errors, shared, bounds, rate, shared_rate, own_key)


def claim_preserve(p: PreserveSettings, m: PreserveMeasurement) -> Claims:
    yield Thesis(
        "preserve.exponential", "The error of a preserved value falls as e^(−β·gap), the gap being that of the scores."
    ).true(
        at_most(0.01, "distance of the fitted rate from 1", abs(1 + m.rate)),
        twin=("with a second key that is the same", abs(1 + m.shared_rate)),
    )
    yield Thesis("preserve.exact", "A finite β lets one value through exactly.").conditional(
        at_most(0.0, f"β = {m.betas[-1]:g}: relative error in float64", m.errors[-1]),
        ("β = 8: relative error", m.errors[4]),
        truth="On paper only β = ∞ does; in float64 every β·gap above about 40 does too, as e^(−40) is below rounding.",
    )
    yield Thesis("preserve.own_key", "A query that equals a key attends most to that key.").conditional(
        at_least(1.0, "keys of equal length: share of keys that win", m.own_key["of equal length"]),
        ("keys of random length: share", m.own_key["of random length"]),
        truth="For keys of equal length it does (Cauchy–Schwarz); a longer key that points nearly the same way wins "
        "otherwise.",
    )


def draw_preserve(p: PreserveSettings, m: PreserveMeasurement) -> Drawing:
    numbers = {"fitted rate": m.rate}
    numbers |= {f"relative error at β = {beta:g}": m.errors[i] for i, beta in enumerate(m.betas) if i % 4 == 0}
    bound = "bound of the formula"
    lines = {"orthonormal keys": m.errors, "a second key is the same": m.shared_errors, bound: m.bounds}
    axes = ("β (gap of the scores: 1)", "relative error")
    return numbers, [line_chart("error of the preserved value", axes, m.betas, lines, log="y", dashed=bound)]


class PerturbationSettings(NamedTuple):
    """Which key is moved, and how."""

    keys: int = 8  # Number of keys.
    width: int = 16  # Width of queries, keys and values.
    moved: int = 2  # Which key.
    alpha: float = 1.5  # Factor that it is made longer by.
    seed: int = 0  # Of queries, keys, values and the noise.


class PerturbationMeasurement(NamedTuple):
    jacobian_error: float  # of the formula, beside automatic differentiation
    careless_error: float  # of the formula that forgets the other weights
    sigmas: list[float]
    changes: list[float]  # of the output, for each σ
    misses: list[float]  # what the first order doesn't foretell of them
    gain: Tensor  # of attention, for each query, by the longer key
    attracted: dict[str, float]  # share of queries that gain, by the sign of their score


def outputs_with(q: Tensor, k: Tensor, v: Tensor, index: int, keys: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The output for each of these in the place of one key."""
    n = len(keys)
    changed = k.repeat(n, 1, 1, 1)
    changed[:, 0, index] = keys
    return attend(q.expand(n, -1, -1, -1), changed, v.expand(n, -1, -1, -1), impl="reference")[:, 0, 0]


def measure_perturbation(p: PerturbationSettings) -> PerturbationMeasurement:
    """Move one key by noise of growing size, and compare with the first order; then make it longer."""
    if p.moved >= p.keys:
        raise ValueError(f"moved is {p.moved}; expected 0…{p.keys - 1}, one of {p.keys} keys")
    with seeded(p.seed):
        q = torch.randn(1, 1, 1, p.width, dtype=torch.float64)
        k, v = torch.randn(2, 1, 1, p.keys, p.width, dtype=torch.float64)
        noise = torch.randn(200, p.width, dtype=torch.float64)
        queries = torch.randn(1, 1, 2000, p.width, dtype=torch.float64)
    beta, value = 1 / math.sqrt(p.width), v[0, 0, p.moved]
    weight, out = attention_weights(q, k)[0, 0, 0, p.moved], attend(q, k, v)[0, 0, 0]
    reach = weight * (value - out)
    jacobian = beta * reach[:, None] * q[0, 0]  # ∂output/∂kⱼ = β·pⱼ·(vⱼ − output)·qᵀ
    careless = beta * weight * value[:, None] * q[0, 0]
    key = k[0, 0, p.moved : p.moved + 1].clone().requires_grad_()
    outputs = outputs_with(q, k, v, p.moved, key)[0]
    by_autograd = torch.stack([torch.autograd.grad(each, key, retain_graph=True)[0][0] for each in outputs])

    sigmas, changes, misses = [10 ** (i / 4) for i in range(-16, 5)], [], []
    for sigma in sigmas:
        change = outputs_with(q, k, v, p.moved, k[0, 0, p.moved] + sigma * noise) - out
        predicted = sigma * noise @ jacobian.T
        changes.append(change.norm(dim=-1).mean().item())
        misses.append((change - predicted).norm(dim=-1).mean().item())

    longer = k.clone()
    longer[:, :, p.moved] *= p.alpha
    score = (queries @ k[0, 0, p.moved])[0, 0]
    gain = (attention_weights(queries, longer) - attention_weights(queries, k))[0, 0, :, p.moved]
    signs = {"positive score": score > 0, "negative score": score < 0}
    attracted = {sign: (gain[chosen] > 0).double().mean().item() for sign, chosen in signs.items()}
    errors = relative_error(jacobian, by_autograd), relative_error(careless, by_autograd)
    return PerturbationMeasurement(*errors, sigmas, changes, misses, gain, attracted)


SMALL = slice(0, 9)  # σ up to 0.01


def claim_perturbation(p: PerturbationSettings, m: PerturbationMeasurement) -> Claims:
    yield Thesis(
        "perturbation.jacobian", "A key's effect on the output is β·p·(v − output)·qᵀ, to the first order."
    ).true(
        at_most(1e-12, "relative distance from automatic differentiation", m.jacobian_error),
        twin=("of β·p·v·qᵀ, which forgets that the other weights shrink", m.careless_error),
    )
    changes, misses = (exponent(m.sigmas[SMALL], values[SMALL]) for values in (m.changes, m.misses))
    yield Thesis(
        "perturbation.second_order",
        "What the first order misses shrinks as σ², so that small noise moves the output a little and predictably.",
    ).true(
        at_most(0.05, "distance of the fitted exponent from 2", abs(misses - 2)),
        twin=("of the whole change's exponent from 2", abs(changes - 2)),
    )
    yield Thesis("perturbation.elongated", f"A key made {p.alpha:g} times as long draws more attention.").conditional(
        at_least(1.0, "positive scores: share of queries that attend more", m.attracted["positive score"]),
        ("negative scores: share that attend more", m.attracted["negative score"]),
        truth="It draws more where its score is positive and less where it is negative: ∂p/∂α = p·(1 − p)·β·q·k.",
    )


def draw_perturbation(p: PerturbationSettings, m: PerturbationMeasurement) -> Drawing:
    numbers = {
        "exponent of the change": exponent(m.sigmas[SMALL], m.changes[SMALL]),
        "exponent of what the first order misses": exponent(m.sigmas[SMALL], m.misses[SMALL]),
        "change at σ = 0.01": m.changes[8],
        "missed at σ = 0.01": m.misses[8],
        "largest gain of attention": m.gain.max().item(),
        "largest loss of attention": m.gain.min().item(),
    }
    slope = [m.misses[8] * (sigma / m.sigmas[8]) ** 2 for sigma in m.sigmas]
    lines = {"measured": m.changes, "measured − first order": m.misses, "slope 2": slope}
    axes = ("σ of the noise", "‖change of the output‖, mean of 200")
    longer, attending = f"the key made {p.alpha:g} times as long", "share of queries that attend more to it"
    return numbers, [
        line_chart("one key moved by Gaussian noise", axes, m.sigmas, lines, log="xy", dashed="slope 2"),
        bar_chart(longer, attending, {"": m.attracted}),
    ]


PRESERVE = Experiment(
    name="preserve",
    title="Preserve one value",
    statement="Keys that are orthonormal and a β that is large let one value vector through.",
    formula="q = kᵢ, kᵢ·kⱼ = δᵢⱼ: pⱼ = e^(−β)/(1 + (n − 1)·e^(−β)) for j ≠ i, so the error is at most (n − "
    "1)·e^(−β)·max‖vⱼ − vᵢ‖",
    predict="How large must β be for an error of one in a million among 16 keys? And if two keys are the same?",
    fails="Two equal keys share the weight at every β. Keys of different lengths: the longest one may win.",
    functions=(measure_preserve, claim_preserve, draw_preserve),
    helpers=(fitted_rate,),
)

PERTURBATION = Experiment(
    name="perturbation",
    title="A key moved, a key made longer",
    statement="The output follows a key smoothly, with a Jacobian in closed form; a longer key is loved or shunned "
    "more.",
    formula="∂o/∂kⱼ = β·pⱼ·(vⱼ − o)·qᵀ; ∂pⱼ/∂α = pⱼ·(1 − pⱼ)·β·q·kⱼ for kⱼ → α·kⱼ",
    predict="Ten times less noise: how many times less is the change, and how many times less is what the first order "
    "misses?",
    fails="At σ near one the first order is no prediction. A key with no weight, or whose value is the output already, "
    "moves nothing to the first order.",
    functions=(measure_perturbation, claim_perturbation, draw_perturbation),
    helpers=(outputs_with,),
)
