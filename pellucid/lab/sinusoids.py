"""Sinusoidal positions: a step of k is one rotation for each frequency, wherever one stands."""

import math
from dataclasses import dataclass

import torch

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded, worst
from pellucid.lab.panels import Curves, line, matrix
from pellucid.ops.positions import offset_rotation, sinusoidal


@dataclass(frozen=True)
class Sinusoids:
    """How many positions of which width."""

    positions: int = 128
    """Number of positions."""
    width: int = 64
    """Of the encoding."""
    base: float = 10_000.0
    """The longest wavelength is nearly this many turns."""
    seed: int = 0
    """Of the random table beside it."""


def sinusoids(p: Sinusoids) -> Result:
    """Every offset against its rotation; dot products by offset; wavelengths."""
    n, d = p.positions, p.width
    table = sinusoidal(n, d, base=p.base, dtype=torch.float64)
    offsets = range(n)
    turned = {k: table[: n - k] @ offset_rotation(k, d, base=p.base).T for k in offsets}
    errors = [worst(turned[k], table[k:]) for k in offsets]
    one_more = [worst(turned[k][: n - k - 1], table[k + 1 :]) for k in offsets[:-1]]
    with seeded(p.seed):
        learned = torch.randn(n, d, dtype=torch.float64)
    best = torch.linalg.lstsq(learned[:-1], learned[1:]).solution  # the matrix that comes nearest to a step of one

    dots = {name: x @ x.T for name, x in (("sinusoidal", table), ("random", learned))}
    spread = {
        name: max((dot.diagonal(k).max() - dot.diagonal(k).min()).item() for k in offsets) for name, dot in dots.items()
    }
    by_offset = dots["sinusoidal"][0]
    rises = [k for k in offsets[1:] if by_offset[k] > by_offset[k - 1]]
    wavelengths = 2 * math.pi * p.base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    ratios = wavelengths[1:] / wavelengths[:-1]
    claims = (
        Claim(
            "sinusoids.rotation",
            "For every offset k one matrix of 2×2 rotations takes the encoding of any position to that of position + "
            "k.",
            "true",
            "≤",
            1e-12,
            holds=(Case(f"largest error of all {n} offsets at all positions", max(errors)),),
            twin=Case("smallest error of the rotation by k against an offset of k + 1", min(one_more)),
        ),
        Claim(
            "sinusoids.not_learned",
            "A table of learned positions has such a matrix too.",
            "false",
            "≤",
            1e-12,
            breaks=(
                Case(
                    "random table: relative error of the best matrix for a step of one",
                    relative(learned[:-1] @ best, learned[1:]),
                ),
            ),
            twin=Case("sinusoidal: largest error", max(errors)),
            truth=f"Only if training puts it there: for {n} random positions of width {d} no matrix fits.",
        ),
        Claim(
            "sinusoids.dot_product",
            "The dot product of two encodings depends on their offset alone.",
            "true",
            "≤",
            1e-11,
            holds=(Case("largest spread at one offset", spread["sinusoidal"]),),
            twin=Case("of a random table", spread["random"]),
        ),
        Claim(
            "sinusoids.largest_at_zero",
            "An encoding is more like itself than like any other.",
            "true",
            "≥",
            1e-3,
            holds=(Case("d/2 minus the largest dot product with another", d / 2 - by_offset[1:].max().item()),),
            twin=Case("d/2 minus the dot product with itself", d / 2 - by_offset[0].item()),
        ),
        Claim(
            "sinusoids.monotone",
            "The further apart two positions are, the smaller the dot product of their encodings.",
            "false",
            "≤",
            0,
            breaks=(Case(f"offsets up to {n - 1} at which it grows", len(rises)),),
            twin=Case("offsets at which it exceeds that of offset 0", int((by_offset > by_offset[0]).sum())),
            truth=f"It falls at first, and then swings: it grows again at offset {rises[0] if rises else '–'}.",
        ),
        Claim(
            "sinusoids.wavelengths",
            "The wavelengths are a geometric progression from 2π.",
            "true",
            "≤",
            1e-12,
            holds=(
                Case(
                    "spread of the ratio of neighbours, and distance of the first from 2π",
                    (ratios.max() - ratios.min()).item() + abs(wavelengths[0].item() - 2 * math.pi),
                ),
            ),
            twin=Case("spread of their differences", (wavelengths.diff().max() - wavelengths.diff().min()).item()),
        ),
        Claim(
            "sinusoids.longest",
            f"The longest wavelength is {p.base:,.0f}·2π.",
            "false",
            "≤",
            1e-9,
            breaks=(
                Case(
                    f"its share of {p.base:,.0f}·2π, short of one by",
                    1 - wavelengths[-1].item() / (2 * math.pi * p.base),
                ),
            ),
            twin=Case(
                f"distance of the last wavelength, measured by the rotation of one step, from 2π·{p.base:,.0f}^(1 − "
                "2/d), relative",
                abs(2 * math.pi / last_turn(p) / (2 * math.pi * p.base ** (1 - 2 / d)) - 1),
            ),
            truth=f"It is 2π·{p.base:,.0f}^(1 − 2/d), which is {wavelengths[-1] / (2 * math.pi * p.base):.3f} of "
            f"that at d = {d}.",
        ),
    )
    panels = (
        matrix("the encoding", table.T, rows="feature", columns="position", low=-1, high=1, unit="value"),
        Curves(
            "dot product over the offset",
            "offset",
            "PE(pos)·PE(pos + offset)",
            (line("", list(offsets), by_offset.tolist()),),
        ),
        Curves(
            "error of the rotation",
            "offset",
            "largest error",
            (line("", list(offsets)[1:], errors[1:]),),
            log="y",
        ),
    )
    numbers = {
        "largest error of the rotations": max(errors),
        "shortest wavelength": wavelengths[0].item(),
        "longest wavelength": wavelengths[-1].item(),
        "first offset at which the dot product grows": rises[0] if rises else "none",
        "turn of the slowest pair in one step": last_turn(p),
    }
    return Result(numbers, panels, claims)


def last_turn(p: Sinusoids) -> float:
    """The angle that the slowest pair turns by in one step, off the rotation matrix."""
    slowest = offset_rotation(1, p.width, base=p.base)[-2:, -2:]
    return math.atan2(slowest[0, 1].item(), slowest[0, 0].item())


EXPERIMENTS = (
    Experiment(
        name="sinusoids",
        title="Sinusoidal positions",
        statement="The encoding is linear in the offset: a step of k is the same rotation everywhere.",
        formula="[sin(ω(t + k)), cos(ω(t + k))] = [[cos ωk, sin ωk], [−sin ωk, cos ωk]]·[sin ωt, cos ωt]; "
        "PE(t)·PE(t + k) = Σ cos(ωᵢ·k)",
        predict="How do the dot products of neighbours at position 3 and at position 300 differ? Does the dot product "
        "fall steadily with the distance?",
        fails="The rotation is linear in the encoding alone: once content is added, W_q and W_k must learn to "
        "separate them. "
        "In float32 the error grows with the position.",
        parameters=Sinusoids,
        run=sinusoids,
        shown=(last_turn,),
    ),
)
