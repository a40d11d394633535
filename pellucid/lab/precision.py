"""Attention in half precision: how wrong it is, when it breaks, and what QK-norm does about it."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.lab.frame import Case, Claim, Experiment, Result, relative, seeded
from pellucid.lab.panels import Curves, line
from pellucid.ops import attend

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Tokens, width, and how large queries and keys become."""

    tokens: int = 128
    """Number of tokens."""
    width: int = 64
    """Of queries, keys and values."""
    largest: float = 64.0
    """Queries and keys are scaled from 1 to this."""
    seed: int = 0
    """Of queries, keys and values."""


def naive(q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "b h q d"]:
    """The formula, every step rounded to the precision of q; the scale comes after the product, as is often written."""
    return ((q @ k.mT) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def normed(x: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h t d"]:
    """QK-norm without its learned weight: every query and key has root mean square one."""
    return F.rms_norm(x, x.shape[-1:])


def precision(p: Precision) -> Result:
    """Against float64, over the size of queries and keys: with QK-norm and without; then the fused kernel."""
    with seeded(p.seed):
        q, k, v = torch.randn(3, 1, 1, p.tokens, p.width, dtype=torch.float64)
    count = 13
    sizes = [p.largest ** (i / (count - 1)) for i in range(count)]
    errors: dict[str, list[float]] = {}
    for name, dtype in DTYPES.items():
        for norm in (False, True):
            label = f"{name}{', QK-norm' if norm else ''}"
            errors[label] = []
            for size in sizes:
                exact = [x * size for x in (q, k)]
                exact = [normed(x) for x in exact] if norm else exact
                rounded = [(x * size).to(dtype) for x in (q, k)]
                rounded = [normed(x) for x in rounded] if norm else rounded
                truth = attend(exact[0], exact[1], v, impl="reference")
                errors[label].append(relative(naive(rounded[0], rounded[1], v.to(dtype)), truth))
    overflow = {
        name: bool(naive((q * p.largest).to(d), (k * p.largest).to(d), v.to(d)).isnan().any())
        for name, d in DTYPES.items()
    }
    fused = attend((q * p.largest).half(), (k * p.largest).half(), v.half(), impl="fused")
    last_finite = {
        name: max((s for s, e in zip(sizes, values, strict=True) if math.isfinite(e)), default=0.0)
        for name, values in errors.items()
    }
    at = min(range(count), key=lambda i: abs(sizes[i] - 8))
    claims = (
        Claim(
            "precision.bf16",
            "Attention in bfloat16 is right to about two digits, for queries and keys of size one.",
            "true",
            "≤",
            0.01,
            holds=(Case("relative error of the output", errors["bfloat16"][0]),),
            twin=Case(f"for queries and keys of size {sizes[at]:.0f}", errors["bfloat16"][at]),
        ),
        Claim(
            "precision.float16",
            "float16 is more precise than bfloat16.",
            "conditional",
            "≤",
            0.1,
            holds=(Case("size one: share of tokens for which it is not", half_loses(q, k, v, 1.0)),),
            breaks=(Case(f"size {p.largest:g}: share of tokens for which it is not", half_loses(q, k, v, p.largest)),),
            truth="It has three bits more, and ends at 65,504: larger scores are infinite, and their softmax NaN.",
        ),
        Claim(
            "precision.qk_norm",
            "QK-norm keeps the error what it is, however large queries and keys become.",
            "true",
            "≤",
            0.02,
            holds=(
                Case(
                    "largest relative error of all sizes, both precisions",
                    max(max(errors[f"{d}, QK-norm"]) for d in DTYPES),
                ),
            ),
            twin=Case("without it, in bfloat16", max(errors["bfloat16"])),
        ),
        Claim(
            "precision.fused",
            "The fused kernel makes no NaN where the formula in float16 does.",
            "true",
            "≤",
            0.0,
            holds=(Case(f"share of NaN at size {p.largest:g}", fused.isnan().double().mean().item()),),
            twin=Case("of the formula", naive_nans(q, k, v, p.largest)),
        ),
    )
    lines = tuple(
        line(
            name,
            [s for s, e in zip(sizes, values, strict=True) if math.isfinite(e)],
            [e for e in values if math.isfinite(e)],
        )
        for name, values in errors.items()
    )
    panels = (
        Curves(
            "error of the formula in half precision",
            "size of queries and keys",
            "relative error against float64",
            lines,
            log="xy",
        ),
    )
    numbers = {f"{name}: error at size 1": values[0] for name, values in errors.items()}
    numbers |= {f"{name}: last size without NaN": value for name, value in last_finite.items()}
    numbers |= {f"{name}: NaN at size {p.largest:g}": str(value) for name, value in overflow.items()}
    return Result(numbers, panels, claims)


def naive_nans(q: Tensor, k: Tensor, v: Tensor, size: float) -> float:
    return naive((q * size).half(), (k * size).half(), v.half()).isnan().double().mean().item()


def half_loses(q: Tensor, k: Tensor, v: Tensor, size: float) -> float:
    """The share of tokens that float16 doesn't bring nearer to float64 than bfloat16 does; NaN is never nearer."""
    truth = attend(q * size, k * size, v, impl="reference")
    half, brain = (
        (naive((q * size).to(dtype), (k * size).to(dtype), v.to(dtype)).double() - truth).norm(dim=-1)
        for dtype in (torch.float16, torch.bfloat16)
    )
    return (~(half < brain)).double().mean().item()


EXPERIMENTS = (
    Experiment(
        name="precision",
        title="Half precision",
        statement="A score is rounded relative to its size, and e^score makes that an absolute error of the weight.",
        formula="|Δ ln p| ≈ |s|·ε, with ε = 2⁻⁸ for bfloat16 and 2⁻¹¹ for float16; QK-norm: |q·k|/√d ≤ √d",
        predict="Queries and keys eight times as large: scores 64 times. What happens to two digits of precision?",
        fails="The error is against attention of the unrounded inputs: at large sizes attention is hard, and "
        "rounding an input "
        "moves the winner. No kernel can undo that.",
        parameters=Precision,
        run=precision,
        shown=(naive, normed),
    ),
)
