"""A learning rate by trial: train while it rises from almost nothing, until the loss rises too (Smith 2017)."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.config import override
from pellucid.devices import pick_device
from pellucid.processes import Processes
from pellucid.recipes import recipe
from pellucid.runs import ClassifierRun, Run
from pellucid.training.classify import Classification, resolve
from pellucid.training.fitting import Choices, fit_held_out, fit_run
from pellucid.training.optim import make_optimizers, set_rate

LOWEST, HIGHEST = 1e-3, 1e2  # of the run's own rates
MEMORY = 0.9  # share of the smoothed loss that a step keeps
DIVERGED = 3.0  # times the smallest smoothed loss, where it ends
MARGIN = 10  # below the rate with the smallest loss


@dataclass(frozen=True)
class Rates:
    """Shares of the run's own rates that were tried, the smoothed losses there, and the share to train with.

    run: with the rates that follow.
    """

    shares: list[float]
    losses: list[float]
    best: float
    run: ClassifierRun


def find_rate(
    source: str | Path | Run, *, steps: int = 100, dataset: Any = None, choices: Choices = None, **changes: Any
) -> Rates:
    """Try rates from a thousandth to a hundred times those of a recipe, or of a run; nothing is kept.

    choices: as `train_run` takes it; the names of changes unless given.

    >>> rates = find_rate("vit_digits", steps=12, model={"depth": 1, "width": 16, "heads": 2}, batch=32)
    >>> rates.shares[0] < rates.best < rates.shares[-1], rates.run.optim.lr == rates.best * 3e-3
    (True, True)
    """
    if steps < 10:
        raise ValueError(f"steps is {steps}; expected ten or more")
    run = override(source if isinstance(source, Run) else recipe(str(source)), changes)
    if not isinstance(run, ClassifierRun):
        raise ValueError(f"rates are tried for classifiers; {run.recipe} is the recipe of a {run.kind}")
    choices = choices if choices is not None or isinstance(source, Run) else changes.keys()
    device = pick_device(run.device)
    run = run if dataset is not None else fit_held_out(run, choices)
    resolved, splits = resolve(run, dataset)
    resolved = fit_run(resolved, choices, len(splits.train), device)
    shares, losses = try_rates(Classification(resolved, splits, device, Processes()), resolved, steps)
    best = choose_share(shares, losses)
    optim = override(run.optim, {"lr": best * run.optim.lr, "muon_lr": best * run.optim.muon_lr})
    return Rates(shares, losses, best, override(run, {"optim": optim}))


def try_rates(task: Any, run: ClassifierRun, steps: int) -> tuple[list[float], list[float]]:
    """Train with a rate that rises evenly in its logarithm; where the loss has become too large, it ends."""
    model, optimizers = task.model.train(), make_optimizers(task.model, run.optim)
    shares, losses, mean = [], [], 0.0
    for step, parts in enumerate(task.batches(0, steps)):
        share = LOWEST * (HIGHEST / LOWEST) ** (step / (steps - 1))
        set_rate(optimizers, share)
        torch.manual_seed(run.seed * 1_000_003 + step)
        total = 0.0
        for part in parts:
            loss = task.loss(model, *part)[0] / len(parts)
            loss.backward()
            total += loss.item()
        if run.optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(total):
            break
        mean = MEMORY * mean + (1 - MEMORY) * total
        shares.append(share)
        losses.append(mean / (1 - MEMORY ** (step + 1)))  # a mean of what has been, from the first step on
        if losses[-1] > DIVERGED * min(losses):
            break
    if len(shares) < 2:
        raise ValueError("the loss is no number at the lowest rate; look at the data with pellucid data inspect")
    return shares, losses


def choose_share(shares: list[float], losses: list[float]) -> float:
    """A tenth of the rate at which the loss was smallest: there, it has begun to rise.

    >>> choose_share([0.01, 0.1, 1.0, 10.0], [2.0, 1.5, 1.0, 3.0])
    0.1
    """
    smallest = min(range(len(losses)), key=losses.__getitem__)
    return max(shares[0], shares[smallest] / MARGIN)
