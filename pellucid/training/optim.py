"""Which parameter is moved by what, and how fast at which step."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.runs.config import Optim
from pellucid.runs.tuning import Tune
from pellucid.training.lora import HIDDEN
from pellucid.training.muon import Muon
from pellucid.training.tuning import Pace, paces

EVERYTHING = Tune()
Groups = dict[tuple[float, float, float], list[nn.Parameter]]  # by peak, weight decay and beginning


def make_optimizers(model: nn.Module, config: Optim, tune: Tune = EVERYTHING) -> list[torch.optim.Optimizer]:
    """One optimizer, or two with Muon: the blocks' matrices, and the rest, LoRA's products too, by AdamW.

    Rates are tensors on the parameters' device, so that a captured graph reads the rate of its step. Each group knows
    its own highest rate as "peak", and at which share of the run it "begins" to move.
    """
    by_muon: Groups = defaultdict(list)
    by_others: Groups = defaultdict(list)
    pace = paces(model, tune)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, p in named:
        share, begins = pace.get(name, Pace())
        share *= config.encoder if name.startswith("encoder.") else 1.0
        places = name.split(".")
        is_inner = "blocks" in places or (config.muon_stem and "embed" in places and p.ndim == 4)
        if config.name == "muon" and is_inner and p.ndim >= 2 and HIDDEN not in name:
            by_muon[share * config.muon_lr, config.muon_decay, begins].append(p)
        else:
            by_others[share * config.lr, config.weight_decay if _decays(name, p) else 0.0, begins].append(p)
    if config.name == "sgd":
        sgd = torch.optim.SGD(_groups(by_others), momentum=config.momentum, nesterov=config.momentum > 0)
        return [_remembering(sgd, ("momentum_buffer",) if config.momentum else ())]
    optimizers: list[torch.optim.Optimizer] = []
    if by_others:
        adamw = torch.optim.AdamW(_groups(by_others), betas=config.betas, fused=True, capturable=named[0][1].is_cuda)
        optimizers.append(_remembering(adamw, ("exp_avg", "exp_avg_sq"), counts=True))
    if by_muon:
        muon = Muon(_groups(by_muon), momentum=config.momentum)
        optimizers.append(_remembering(muon, ("momentum",)))
    return optimizers


def _groups(params: Groups) -> list[dict[str, Any]]:
    return [
        {"params": alike, "lr": _rate(peak, alike[0]), "peak": peak, "weight_decay": decay, "begins": begins}
        for (peak, decay, begins), alike in params.items()
    ]


def _remembering(
    optimizer: torch.optim.Optimizer, memories: tuple[str, ...], counts: bool = False
) -> torch.optim.Optimizer:
    """The optimizer with its memory in place before the first step, so that it can be saved, restored and captured."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p] = {name: torch.zeros_like(p) for name in memories}
            if counts:
                optimizer.state[p]["step"] = torch.zeros((), device=p.device)
    return optimizer


def _decays(name: str, p: Tensor) -> bool:
    """Weight decay is for matrices that multiply, not for norms, biases, tokens and tables of positions."""
    return p.ndim >= 2 and not name.endswith(("tokens", "table"))


def _rate(lr: float, like: Tensor) -> float | Tensor:
    return torch.tensor(lr, device=like.device) if like.is_cuda else lr


def set_rate(optimizers: list[torch.optim.Optimizer], share: float, done: float = 1.0) -> None:
    """Every group's rate becomes this share of its peak; zero, if less of the run is done than when it begins."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group["peak"] * share if done >= group["begins"] else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def schedule(config: Optim, step: int, steps: int) -> float:
    """The share of the peak rate at a step: linear warm-up, then cosine or linear decay to `final`, or constant.

    >>> [round(schedule(Optim(schedule="linear", warmup=0.5), step, 4), 2) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warm = config.warmup * steps
    if step + 1 <= warm:
        return (step + 1) / warm
    past = (step - warm) / max(1.0, steps - warm)
    past = max(0.0, past)
    if config.schedule == "constant":
        return 1.0
    falling = 1 - past if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * past))
    return config.final + (1 - config.final) * falling
