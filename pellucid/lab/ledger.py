"""The ledger: every claim of every experiment, as data; and the page of one experiment, as data."""

import math
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from pellucid.lab.frame import Claim, Experiment, Result


def run(experiments: Iterable[Experiment], workers: int) -> Iterator[tuple[Experiment, Result]]:
    """Run them all, each in one thread of one of so many processes: their tensors are too small to be shared by two."""
    experiments = list(experiments)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from zip(experiments, pool.map(_result, experiments), strict=True)


def _result(experiment: Experiment) -> Result:
    return experiment()


def entry(claim: Claim) -> dict[str, Any]:
    """What the ledger holds of one claim."""
    return {
        "id": claim.id,
        "statement": claim.statement,
        "verdict": claim.verdict,
        "measured": claim.measured if math.isfinite(claim.measured) else None,
        "tolerance": claim.tolerance,
        "counter_example": claim.counter_example,
    }


def failures(claims: Iterable[Claim]) -> list[str]:
    """A sentence for everything that speaks against a verdict."""
    return [sentence for claim in claims for sentence in claim.failures()]


def page(experiment: Experiment, parameters: Any, result: Result) -> dict[str, Any]:
    """Everything there is to tell of one run, ready for JSON: what a page in a browser is made of."""
    return {
        "name": experiment.name,
        "title": experiment.title,
        "statement": experiment.statement,
        "formula": experiment.formula,
        "predict": experiment.predict,
        "code": experiment.code,
        "parameters": asdict(parameters),
        "numbers": dict(result.numbers),
        "panels": [{"kind": type(panel).__name__.lower(), **asdict(panel)} for panel in result.panels],
        "claims": [entry(claim) for claim in result.claims],
        "failures": failures(result.claims),
        "fails": experiment.fails,
    }
