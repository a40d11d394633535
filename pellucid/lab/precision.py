"""Attention in half precision: how wrong it is, when it breaks, and what QK-norm does about it."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_most, relative_error, seeded
from pellucid.lab.panels import line_chart
from pellucid.ops import attend

HALF_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class PrecisionSettings(NamedTuple):
    """Tokens, width, and how large queries and keys become."""

    tokens: int = 128  # Number of tokens.
    width: int = 64  # Of queries, keys and values.
    largest: float = 64.0  # Queries and keys are scaled from 1 to this.
    seed: int = 0  # Of queries, keys and values.


class PrecisionMeasurement(NamedTuple):
    sizes: list[float]  # of queries and keys, from 1
    errors: dict[str, list[float]]  # for each precision, with QK-norm and without, at each size
    nans: dict[str, float]  # share of NaN in the output, at the largest size
    lost: dict[float, float]  # at two sizes, the share of tokens that float16 doesn't bring nearer to the truth


def attend_naively(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, norm: bool = False) -> Float[Tensor, "b h q d"]:
    """The formula, every step rounded to this precision; the scale comes after the product, as is often written.

    norm: QK-norm without its learned weight, so that every query and key has root mean square one.
    """
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if norm:
        q, k = (F.rms_norm(x, x.shape[-1:]) for x in (q, k))
    return ((q @ k.mT) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def measure_precision(p: PrecisionSettings) -> PrecisionMeasurement:
    """Against float64, over the size of queries and keys: with QK-norm and without; then the fused kernel."""
    with seeded(p.seed):
        q, k, v = torch.randn(3, 1, 1, p.tokens, p.width, dtype=torch.float64)
    sizes = [p.largest ** (i / 12) for i in range(13)]
    errors: dict[str, list[float]] = {}
    for name, dtype in HALF_PRECISIONS.items():
        for norm in (False, True):
            outputs, truths = (
                [attend_naively(q * size, k * size, v, each, norm) for size in sizes] for each in (dtype, torch.float64)
            )
            errors[f"{name}{', QK-norm' if norm else ''}"] = list(map(relative_error, outputs, truths))
    Q, K = q * p.largest, k * p.largest
    outputs = {name: attend_naively(Q, K, v, dtype) for name, dtype in HALF_PRECISIONS.items()}
    outputs["fused"] = attend(Q.half(), K.half(), v.half(), impl="fused")
    nans = {name: output.isnan().double().mean().item() for name, output in outputs.items()}
    return PrecisionMeasurement(
        sizes, errors, nans, {size: half_loses(q * size, k * size, v) for size in (1.0, p.largest)}
    )


def half_loses(q: Tensor, k: Tensor, v: Tensor) -> float:
    """The share of tokens that float16 doesn't bring nearer to float64 than bfloat16 does; NaN is never nearer."""
    truth = attend(q, k, v, impl="reference")
    brain, half = ((attend_naively(q, k, v, dtype).double() - truth).norm(dim=-1) for dtype in HALF_PRECISIONS.values())
    return (~(half < brain)).double().mean().item()


def claim_precision(p: PrecisionSettings, m: PrecisionMeasurement) -> Claims:
    at, bfloat16 = min(range(len(m.sizes)), key=lambda i: abs(m.sizes[i] - 8)), m.errors["bfloat16"]
    yield Thesis(
        "precision.bf16", "Attention in bfloat16 is right to about two digits, for queries and keys of size one."
    ).true(
        at_most(0.01, "relative error of the output", bfloat16[0]),
        twin=(f"for queries and keys of size {m.sizes[at]:.0f}", bfloat16[at]),
    )
    yield Thesis("precision.float16", "float16 is more precise than bfloat16.").conditional(
        at_most(0.1, "size one: share of tokens for which it is not", m.lost[1.0]),
        (f"size {p.largest:g}: share of tokens for which it is not", m.lost[p.largest]),
        truth="It has three bits more, and ends at 65,504: larger scores are infinite, and their softmax NaN.",
    )
    normed = max(max(m.errors[f"{name}, QK-norm"]) for name in HALF_PRECISIONS)
    yield Thesis(
        "precision.qk_norm", "QK-norm keeps the error what it is, however large queries and keys become."
    ).true(
        at_most(0.02, "largest relative error of all sizes, both precisions", normed),
        twin=("without it, in bfloat16", max(bfloat16)),
    )
    yield Thesis("precision.fused", "The fused kernel makes no NaN where the formula in float16 does.").true(
        at_most(0.0, f"share of NaN at size {p.largest:g}", m.nans["fused"]), twin=("of the formula", m.nans["float16"])
    )


def draw_precision(p: PrecisionSettings, m: PrecisionMeasurement) -> Drawing:
    numbers: dict[str, float] = {f"{name}: error at size 1": values[0] for name, values in m.errors.items()}
    for name, values in m.errors.items():
        sizes = [size for size, error in zip(m.sizes, values, strict=True) if math.isfinite(error)]
        numbers[f"{name}: last size without NaN"] = max(sizes, default=0.0)
    nans = {f"{name}: NaN at size {p.largest:g}": str(m.nans[name] > 0) for name in HALF_PRECISIONS}
    axes = ("size of queries and keys", "relative error against float64")
    return numbers | nans, [line_chart("error of the formula in half precision", axes, m.sizes, m.errors, log="xy")]


PRECISION = Experiment(
    name="precision",
    title="Half precision",
    statement="A score is rounded relative to its size, and e^score makes that an absolute error of the weight.",
    formula="|Δ ln p| ≈ |s|·ε, with ε = 2⁻⁸ for bfloat16 and 2⁻¹¹ for float16; QK-norm: |q·k|/√d ≤ √d",
    predict="Queries and keys eight times as large: scores 64 times. What happens to two digits of precision?",
    fails="The error is against attention of the unrounded inputs: at large sizes attention is hard, and rounding an "
    "input moves the winner. No kernel can undo that.",
    functions=(measure_precision, claim_precision, draw_precision),
    helpers=(attend_naively, half_loses),
)
