"""Sinusoidal positions: a step of k is one rotation for each frequency, wherever one stands."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most, max_error, relative_error, seeded
from pellucid.lab.panels import heatmap, line_chart
from pellucid.ops.positions import offset_rotation, sinusoidal


class SinusoidsSettings(NamedTuple):
    """How many positions of which width."""

    positions: int = 128  # Number of positions.
    width: int = 64  # Of the encoding.
    base: float = 10_000.0  # The longest wavelength is nearly this many turns.
    seed: int = 0  # Of the random table beside it.


class SinusoidsMeasurement(NamedTuple):
    table: Tensor  # the encoding, a row for each position
    errors: list[float]  # of the rotation by k, for each offset k
    next_errors: list[float]  # of the rotation by k, as one by k + 1
    random_error: float  # relative, of the best matrix for a step of one through a random table
    spreads: dict[str, float]  # of the dot products at one offset, at most
    dots: Tensor  # of the encodings of 0 and of each offset
    rises: list[int]  # offsets at which the dot product grows
    wavelengths: Tensor
    slowest_turn: float  # in one step, off the rotation matrix


def measure_sinusoids(p: SinusoidsSettings) -> SinusoidsMeasurement:
    """Every offset against its rotation; dot products by offset; wavelengths."""
    n, d = p.positions, p.width
    table = sinusoidal(n, d, base=p.base, dtype=torch.float64)
    turned = [table[: n - k] @ offset_rotation(k, d, base=p.base).T for k in range(n)]
    with seeded(p.seed):
        random = torch.randn(n, d, dtype=torch.float64)
    best = torch.linalg.lstsq(random[:-1], random[1:]).solution  # the matrix that comes nearest to a step of one
    products = {"sinusoidal": table @ table.T, "random": random @ random.T}
    dots = products["sinusoidal"][0]
    slowest = offset_rotation(1, d, base=p.base)[-2:, -2:]
    return SinusoidsMeasurement(
        table,
        errors=[max_error(turned[k], table[k:]) for k in range(n)],
        next_errors=[max_error(turned[k][: n - k - 1], table[k + 1 :]) for k in range(n - 1)],
        random_error=relative_error(random[:-1] @ best, random[1:]),
        spreads={
            name: max((product.diagonal(k).max() - product.diagonal(k).min()).item() for k in range(n))
            for name, product in products.items()
        },
        dots=dots,
        rises=[k for k in range(1, n) if dots[k] > dots[k - 1]],
        wavelengths=2 * math.pi * p.base ** (torch.arange(0, d, 2, dtype=torch.float64) / d),
        slowest_turn=math.atan2(slowest[0, 1].item(), slowest[0, 0].item()),
    )


def claim_sinusoids(p: SinusoidsSettings, m: SinusoidsMeasurement) -> Claims:
    n, d = p.positions, p.width
    yield Thesis(
        "sinusoids.rotation",
        "For every offset k one matrix of 2×2 rotations takes the encoding of any position to that of position + k.",
    ).true(
        at_most(1e-12, f"largest error of all {n} offsets at all positions", max(m.errors)),
        twin=("smallest error of the rotation by k against an offset of k + 1", min(m.next_errors)),
    )
    yield Thesis("sinusoids.not_learned", "A table of learned positions has such a matrix too.").false(
        at_most(1e-12, "random table: relative error of the best matrix for a step of one", m.random_error),
        twin=("sinusoidal: largest error", max(m.errors)),
        truth=f"Only if training puts it there: for {n} random positions of width {d} no matrix fits.",
    )
    yield Thesis("sinusoids.dot_product", "The dot product of two encodings depends on their offset alone.").true(
        at_most(1e-11, "largest spread at one offset", m.spreads["sinusoidal"]),
        twin=("of a random table", m.spreads["random"]),
    )
    yield Thesis("sinusoids.largest_at_zero", "An encoding is more like itself than like any other.").true(
        at_least(1e-3, "d/2 minus the largest dot product with another", d / 2 - m.dots[1:].max().item()),
        twin=("d/2 minus the dot product with itself", d / 2 - m.dots[0].item()),
    )
    yield Thesis(
        "sinusoids.monotone", "The further apart two positions are, the smaller the dot product of their encodings."
    ).false(
        at_most(0, f"offsets up to {n - 1} at which it grows", len(m.rises)),
        twin=("offsets at which it exceeds that of offset 0", int((m.dots > m.dots[0]).sum())),
        truth=f"It falls at first, and then swings: it grows again at offset {next(iter(m.rises), '–')}.",
    )
    waves, base = m.wavelengths, f"{p.base:,.0f}"
    ratios, steps = waves[1:] / waves[:-1], waves.diff()
    unevenness = (ratios.max() - ratios.min()).item() + abs(waves[0].item() - 2 * math.pi)
    yield Thesis("sinusoids.wavelengths", "The wavelengths are a geometric progression from 2π.").true(
        at_most(1e-12, "spread of the ratio of neighbours, and distance of the first from 2π", unevenness),
        twin=("spread of their differences", (steps.max() - steps.min()).item()),
    )
    share, last = waves[-1].item() / (2 * math.pi * p.base), 2 * math.pi * p.base ** (1 - 2 / d)
    yield Thesis("sinusoids.longest", f"The longest wavelength is {base}·2π.").false(
        at_most(1e-9, f"its share of {base}·2π, short of one by", 1 - share),
        twin=(
            f"distance of the last wavelength, measured by the rotation of one step, from 2π·{base}^(1 − 2/d), "
            "relative",
            abs(2 * math.pi / m.slowest_turn / last - 1),
        ),
        truth=f"It is 2π·{base}^(1 − 2/d), which is {share:.3f} of that at d = {d}.",
    )


def draw_sinusoids(p: SinusoidsSettings, m: SinusoidsMeasurement) -> Drawing:
    offsets = range(p.positions)
    numbers = {
        "largest error of the rotations": max(m.errors),
        "shortest wavelength": m.wavelengths[0].item(),
        "longest wavelength": m.wavelengths[-1].item(),
        "first offset at which the dot product grows": next(iter(m.rises), "none"),
        "turn of the slowest pair in one step": m.slowest_turn,
    }
    dots, errors = {"": m.dots.tolist()}, {"": m.errors[1:]}
    return numbers, [
        heatmap("the encoding", m.table.T, rows="feature", columns="position", low=-1, high=1, unit="value"),
        line_chart("dot product over the offset", ("offset", "PE(pos)·PE(pos + offset)"), offsets, dots),
        line_chart("error of the rotation", ("offset", "largest error"), offsets[1:], errors, log="y"),
    ]


SINUSOIDS = Experiment(
    name="sinusoids",
    title="Sinusoidal positions",
    statement="The encoding is linear in the offset: a step of k is the same rotation everywhere.",
    formula="[sin(ω(t + k)), cos(ω(t + k))] = [[cos ωk, sin ωk], [−sin ωk, cos ωk]]·[sin ωt, cos ωt]; PE(t)·PE(t + k) "
    "= Σ cos(ωᵢ·k)",
    predict="How do the dot products of neighbours at position 3 and at position 300 differ? Does the dot product fall "
    "steadily with the distance?",
    fails="The rotation is linear in the encoding alone: once content is added, W_q and W_k must learn to separate "
    "them. In float32 the error grows with the position.",
    functions=(measure_sinusoids, claim_sinusoids, draw_sinusoids),
    bounds={"positions": (2, math.inf), "width": (4, math.inf), "base": (2, math.inf)},
)
