"""Muon (Jordan et al. 2024): momentum, made orthogonal by Newton–Schulz, all matrices of one shape at a time."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.training.distributed import spread_like, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose slope at zero is largest while it stays near one


def orthogonalised(matrices: Float[Tensor, "n rows columns"], steps: int = 5) -> Float[Tensor, "n rows columns"]:
    """Matrices with nearly the same singular vectors and all singular values near one (0.68…1.21).

    A singular value below a five-hundredth of the matrix's norm is too small to get there in five steps.
    In bfloat16 on CUDA, where that is what makes it cheap, and in float32 elsewhere.
    """
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):  # three launches each: a x + (b g + c g²) x, where g is x xᵀ
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For the matrices of a network's blocks; convolutions count as matrices of output channels × the rest.

    The step of a tall matrix is √(rows/columns) longer, so that outputs change by as much as those of a square one.
    A matrix that FSDP2 spreads over processes is gathered, and each keeps its part of the step.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float | Tensor = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None, "Muon takes no closure"
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    if "momentum" not in self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                    alike[tuple(p.shape)].append(p)
            for params in alike.values():
                self._step(params, group)

    def _step(self, params: list[nn.Parameter], group: dict) -> None:
        grads: list[Tensor] = [p.grad for p in params if p.grad is not None]
        buffers: list[Tensor] = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
        # Nesterov's look ahead, in the gradients' own place
        torch._foreach_lerp_(grads, buffers, group["momentum"])  # pyright: ignore[reportPrivateImportUsage]
        update = orthogonalised(torch.stack([whole(g).flatten(1) for g in grads]))
        update = update * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
        update = update.to(params[0].dtype) * group["lr"]
        weights: list[Tensor] = [*params]
        if group["weight_decay"]:
            kept = 1 - group["lr"] * group["weight_decay"]
            torch._foreach_mul_(weights, kept)  # pyright: ignore[reportPrivateImportUsage]
        moves = [spread_like(u.view(p.shape), p) for p, u in zip(params, update, strict=True)]
        torch._foreach_add_(weights, moves, alpha=-1)  # pyright: ignore[reportPrivateImportUsage]
