"""What one key does: how it makes a value come through untouched, and what happens when it is moved or made longer."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, exponent, relative, seeded
from pellucid.lab.panels import Bars, Curves, line
from pellucid.ops import attend, attention_weights


@dataclass(frozen=True)
class Preserve:
    """How many keys of which width."""

    keys: int = 16
    """Number of keys, at most the width."""
    width: int = 32
    """Width of queries, keys and values."""
    chosen: int = 3
    """Which value is to come through."""
    seed: int = 0
    """Of keys and values."""


def preserve(p: Preserve) -> Result:
    """Orthonormal keys and a query that is one of them: every other score is smaller by β."""
    if not 2 <= p.keys <= p.width or not 0 <= p.chosen < p.keys:
        raise ValueError(f"keys is {p.keys} and chosen {p.chosen}; expected 2…{p.width} keys and one of them chosen")
    with seeded(p.seed):
        k = torch.linalg.qr(torch.randn(p.width, p.width, dtype=torch.float64)).Q[None, None, : p.keys]
        v = torch.randn(1, 1, p.keys, p.width, dtype=torch.float64)
        loose = torch.randn(1, 1, 4096, p.width, dtype=torch.float64)
        lengths = torch.rand(1, 1, 4096, 1, dtype=torch.float64)
    q, wanted = k[:, :, p.chosen : p.chosen + 1], v[:, :, p.chosen]
    betas = [float(beta) for beta in range(0, 65, 2)]
    errors = [relative(attend(q, k, v, beta=beta)[:, :, 0], wanted) for beta in betas]
    twice = k.clone()
    twice[:, :, p.chosen - 1] = k[:, :, p.chosen]  # another key is the same
    shared = [relative(attend(q, twice, v, beta=beta)[:, :, 0], wanted) for beta in betas]
    bound = [
        (p.keys - 1) * math.exp(-beta) * (v - wanted).norm(dim=-1).max().item() / wanted.norm().item() for beta in betas
    ]
    steady = slice(4, 13)  # from β = 8, where the chosen weight is nearly one, to 24, far above rounding

    equal = loose / loose.norm(dim=-1, keepdim=True)
    own = torch.arange(loose.shape[2])
    itself = {
        name: (attention_weights(keys[:, :, :256], keys).argmax(-1)[0, 0] == own[:256]).double().mean().item()
        for name, keys in (("of equal length", equal), ("of random length", equal * lengths))
    }
    claims = (
        Claim(
            "preserve.exponential",
            "The error of a preserved value falls as e^(−β·gap), the gap being that of the scores.",
            "true",
            "≤",
            0.01,
            holds=(Case("distance of the fitted rate from 1", abs(1 + rate(betas[steady], errors[steady]))),),
            twin=Case("with a second key that is the same", abs(1 + rate(betas[steady], shared[steady]))),
        ),
        Claim(
            "preserve.exact",
            "A finite β lets one value through exactly.",
            "conditional",
            "≤",
            0.0,
            holds=(Case(f"β = {betas[-1]:g}: relative error in float64", errors[-1]),),
            breaks=(Case("β = 8: relative error", errors[4]),),
            truth="On paper only β = ∞ does; in float64 every β·gap above about 40 does too, as e^(−40) is below "
            "rounding.",
        ),
        Claim(
            "preserve.own_key",
            "A query that equals a key attends most to that key.",
            "conditional",
            "≥",
            1.0,
            holds=(Case("keys of equal length: share of keys that win", itself["of equal length"]),),
            breaks=(Case("keys of random length: share", itself["of random length"]),),
            truth="For keys of equal length it does (Cauchy–Schwarz); a longer key that points nearly the same way "
            "wins "
            "otherwise.",
        ),
    )
    panels = (
        Curves(
            "error of the preserved value",
            "β (gap of the scores: 1)",
            "relative error",
            (
                line("orthonormal keys", betas, errors),
                line("a second key is the same", betas, shared),
                line("bound of the formula", betas, bound, dashed=True),
            ),
            log="y",
        ),
    )
    numbers = {"fitted rate": rate(betas[steady], errors[steady])}
    numbers |= {f"relative error at β = {beta:g}": error for beta, error in zip(betas[::4], errors[::4], strict=True)}
    return Result(numbers, panels, claims)


def rate(x: list[float], y: list[float]) -> float:
    """The slope of ln y over x, by least squares: r where y = c·e^(r·x)."""
    return exponent([math.exp(value) for value in x], y)


@dataclass(frozen=True)
class Perturbation:
    """Which key is moved, and how."""

    keys: int = 8
    """Number of keys."""
    width: int = 16
    """Width of queries, keys and values."""
    moved: int = 2
    """Which key."""
    alpha: float = 1.5
    """Factor that it is made longer by."""
    seed: int = 0
    """Of queries, keys, values and the noise."""


def perturbation(p: Perturbation) -> Result:
    """Move one key by noise of growing size, and compare with the first order; then make it longer."""
    with seeded(p.seed):
        q = torch.randn(1, 1, 1, p.width, dtype=torch.float64)
        k, v = torch.randn(2, 1, 1, p.keys, p.width, dtype=torch.float64)
        noise = torch.randn(200, p.width, dtype=torch.float64)
        many = torch.randn(1, 1, 2000, p.width, dtype=torch.float64)
    beta = 1 / math.sqrt(p.width)
    weight, out = attention_weights(q, k)[0, 0, 0, p.moved], attend(q, k, v)[0, 0, 0]
    reach = weight * (v[0, 0, p.moved] - out)
    jacobian = beta * reach[:, None] * q[0, 0]  # ∂output/∂kⱼ = β·pⱼ·(vⱼ − output)·qᵀ

    def output(moved: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The output for each of these in the place of the key."""
        n = len(moved)
        keys = k.repeat(n, 1, 1, 1)
        keys[:, 0, p.moved] = moved
        return attend(q.expand(n, -1, -1, -1), keys, v.expand(n, -1, -1, -1), impl="reference")[:, 0, 0]

    key = k[0, 0, p.moved : p.moved + 1].clone().requires_grad_()
    by_autograd = torch.stack([torch.autograd.grad(each, key, retain_graph=True)[0][0] for each in output(key)[0]])
    without_mean = beta * weight * v[0, 0, p.moved][:, None] * q[0, 0]
    sigmas = [10 ** (i / 4) for i in range(-16, 5)]
    change, missed = [], []
    for sigma in sigmas:
        measured = output(k[0, 0, p.moved] + sigma * noise) - out
        predicted = sigma * noise @ jacobian.T
        change.append(measured.norm(dim=-1).mean().item())
        missed.append((measured - predicted).norm(dim=-1).mean().item())
    small = slice(0, 9)  # σ up to 0.01

    longer = k.clone()
    longer[:, :, p.moved] *= p.alpha
    score = (many @ k[0, 0, p.moved])[0, 0]
    grown = (attention_weights(many, longer) - attention_weights(many, k))[0, 0, :, p.moved]
    claims = (
        Claim(
            "perturbation.jacobian",
            "A key's effect on the output is β·p·(v − output)·qᵀ, to the first order.",
            "true",
            "≤",
            1e-12,
            holds=(Case("relative distance from automatic differentiation", relative(jacobian, by_autograd)),),
            twin=Case("of β·p·v·qᵀ, which forgets that the other weights shrink", relative(without_mean, by_autograd)),
        ),
        Claim(
            "perturbation.second_order",
            "What the first order misses shrinks as σ², so that small noise moves the output a little and predictably.",
            "true",
            "≤",
            0.05,
            holds=(Case("distance of the fitted exponent from 2", abs(exponent(sigmas[small], missed[small]) - 2)),),
            twin=Case("of the whole change's exponent from 2", abs(exponent(sigmas[small], change[small]) - 2)),
        ),
        Claim(
            "perturbation.elongated",
            f"A key made {p.alpha:g} times as long draws more attention.",
            "conditional",
            "≥",
            1.0,
            holds=(Case("positive scores: share of queries that attend more", share(grown[score > 0] > 0)),),
            breaks=(Case("negative scores: share that attend more", share(grown[score < 0] > 0)),),
            truth="It draws more where its score is positive and less where it is negative: ∂p/∂α = p·(1 − p)·β·q·k.",
        ),
    )
    panels = (
        Curves(
            "one key moved by Gaussian noise",
            "σ of the noise",
            "‖change of the output‖, mean of 200",
            (
                line("measured", sigmas, change),
                line("measured − first order", sigmas, missed),
                line("slope 2", sigmas, [missed[8] * (s / sigmas[8]) ** 2 for s in sigmas], dashed=True),
            ),
            log="xy",
        ),
        Bars(
            f"the key made {p.alpha:g} times as long",
            "share of queries that attend more to it",
            ("positive score", "negative score"),
            (("", (share(grown[score > 0] > 0), share(grown[score < 0] > 0))),),
        ),
    )
    numbers = {
        "exponent of the change": exponent(sigmas[small], change[small]),
        "exponent of what the first order misses": exponent(sigmas[small], missed[small]),
        "change at σ = 0.01": change[8],
        "missed at σ = 0.01": missed[8],
        "largest gain of attention": grown.max().item(),
        "largest loss of attention": grown.min().item(),
    }
    return Result(numbers, panels, claims)


def share(hits: Tensor) -> float:
    return hits.double().mean().item()


EXPERIMENTS = (
    Experiment(
        name="preserve",
        title="Preserve one value",
        statement="Keys that are orthonormal and a β that is large let one value vector through.",
        formula="q = kᵢ, kᵢ·kⱼ = δᵢⱼ: pⱼ = e^(−β)/(1 + (n − 1)·e^(−β)) for j ≠ i, so the error is at most "
        "(n − 1)·e^(−β)·max‖vⱼ − vᵢ‖",
        predict="How large must β be for an error of one in a million among 16 keys? And if two keys are the same?",
        fails="Two equal keys share the weight at every β. Keys of different lengths: the longest one may win.",
        parameters=Preserve,
        run=preserve,
        shown=(rate,),
    ),
    Experiment(
        name="perturbation",
        title="A key moved, a key made longer",
        statement="The output follows a key smoothly, with a Jacobian in closed form; a longer key is loved or "
        "shunned more.",
        formula="∂o/∂kⱼ = β·pⱼ·(vⱼ − o)·qᵀ; ∂pⱼ/∂α = pⱼ·(1 − pⱼ)·β·q·kⱼ for kⱼ → α·kⱼ",
        predict="Ten times less noise: how many times less is the change, and how many times less is what the first "
        "order "
        "misses?",
        fails="At σ near one the first order is no prediction. A key with no weight, or whose value is the output "
        "already, "
        "moves nothing to the first order.",
        parameters=Perturbation,
        run=perturbation,
        shown=(share,),
    ),
)
