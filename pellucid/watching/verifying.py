"""Whether what was followed is what ran: rows of the map by the formula, beside the weights that the model made itself.

The model's own weights are there when they meet the values. So the formula is compared with them and not with the
output, and what rounding explains is told from what it doesn't: where a row differs, it is computed again, each step
rounded as the model rounds it. If that is the model's row, the formula is right; the difference is its precision's.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from pellucid.ops.exact import Mask, share_heads, weight_rows
from pellucid.watching.gathering import Followed
from pellucid.watching.record import Written
from pellucid.watching.trails import Lost

FEW = 16  # queries up to which all rows are compared; of more, eight from first to last and those of another kind
COARSE = 0.1  # a map whose weights are further off than this by rounding alone is recorded with its rounding


def verify(followed: Followed) -> tuple[Followed, Written]:
    """What is to be recorded, and how far it is from the model's own, at most, in the rows compared.

    `Lost` if it isn't what ran, or if that can't be told.
    """
    if not followed.q.shape[2] or not followed.k.shape[2]:
        return followed, Written(followed.dtype, 0.0, 0.0)
    with torch.no_grad(), torch.autocast(followed.q.device.type, enabled=False):
        return _verify(followed)


def _verify(followed: Followed) -> tuple[Followed, Written]:
    n = followed.q.shape[2]
    index = range(n) if n <= FEW else sorted({*torch.linspace(0, n - 1, 8).long().tolist(), *followed.odd})
    broken = followed.output.isfinite().all(-1).logical_not().flatten(0, 1).any(0).nonzero()[:1, 0].tolist()
    index = sorted({*index, *broken})
    rows = torch.tensor(list(index), device=followed.q.device)
    weights = followed.weights[:, :, rows].detach()
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not weights.isfinite().all():
        raise Lost("its weights hold numbers that are NaN or infinite, so that there is nothing to compare with")
    _check_output(followed, weights, rows)
    kept = weights != 0 if followed.dropout else None  # whether they were dropped or rounded away can't be told
    if kept is not None and not kept.any():
        raise Lost("all the weights that were looked at are zero, so that nothing can be compared")
    weights = weights * (1 - followed.dropout)
    slack = _slack(followed, weights)
    plain = _differ(followed, followed.mask, followed.beta, rows, weights, kept)
    if bool((plain <= slack).all()):
        return followed, _say_written(followed, plain, weights)
    if followed.rounded is not None:
        beta, rule = followed.rounded()
        rounded = _differ(followed, rule, beta, rows, weights, kept)
        if bool((rounded <= slack + _noise(followed)).all()):
            if plain.max() <= COARSE:
                return followed, _say_written(followed, plain, weights)
            return replace(followed, beta=beta, mask=rule), _say_written(followed, rounded, weights)
    raise Lost(f"it was followed, but its weights can't be reproduced: they differ by {plain.nan_to_num(1).max():.2g}")


def _differ(followed: Followed, mask: Mask, beta: float, rows: Tensor, weights: Tensor, kept: Tensor | None) -> Tensor:
    """How far each weight is from the model's own, in the precision that is given and in the one that `check` takes."""
    given = torch.promote_types(followed.q.dtype, torch.float32)
    worst = torch.zeros_like(weights)
    for dtype in {given, torch.float64} if followed.low else {given}:
        p = weight_rows(followed.q, followed.k, mask, beta, False, rows, dtype)
        worst = torch.maximum(worst, (p - weights).abs().to(worst.dtype))
    return worst if kept is None else worst.where(kept, 0.0)


def _say_written(followed: Followed, differences: Tensor, weights: Tensor) -> Written:
    v = share_heads(followed.v, followed.q.shape[1]).to(weights.dtype)
    size = (weights @ v).norm(dim=-1).square().mean().sqrt()
    miss = (differences @ v.abs()).norm(dim=-1).amax() / size.clamp(min=torch.finfo(size.dtype).tiny)
    return Written(followed.dtype, differences.max().item(), miss.item())


def _slack(followed: Followed, weights: Tensor) -> Tensor:
    """By how much a right weight may differ: the weights themselves are rounded, and scores of an ordinary size."""
    own = torch.finfo(followed.weights.dtype).eps
    return 4 * own * weights.abs() + math.sqrt(torch.finfo(followed.dtype).eps) / 4


def _noise(followed: Followed) -> float:
    """What is left to chance when each step is rounded as it was: the order in which a product sums, in float32."""
    longest = [x.float().norm(dim=-1).amax().item() for x in (followed.q, followed.k)]
    return min(32 * torch.finfo(torch.float32).eps * abs(followed.beta) * math.prod(longest), COARSE / 4)


def _check_output(followed: Followed, weights: Tensor, rows: Tensor) -> None:
    """The model's weights times the values as they are recorded are the model's output: no axis was mistaken."""
    v, output = share_heads(followed.v, followed.q.shape[1]).to(weights.dtype), followed.output[:, :, rows]
    eps = max(torch.finfo(x.dtype).eps for x in (followed.output, followed.v))
    if output.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        eps = max(eps, 2.0**-11)  # TF32 keeps ten bits
    allowed = (8 + math.sqrt(v.shape[2])) * eps * (weights.abs() @ v.abs()) + torch.finfo(torch.float32).tiny
    if not bool(((output.to(weights.dtype) - weights @ v).abs() <= allowed).all()):
        raise Lost("it was followed, but its weights and values don't give what came out")
