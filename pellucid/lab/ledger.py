"""The ledger: every claim of every experiment, as data; and the page of one experiment, as data."""

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from pellucid.config import finite
from pellucid.lab.frame import Claim, Experiment, Outcome

LEDGER = ("id", "statement", "verdict", "measured", "tolerance", "counter_example")  # what it holds of a claim
TEXTS = ("name", "title", "statement", "formula", "predict", "code", "fails")


def run_all(experiments: Iterable[Experiment], workers: int) -> Iterator[tuple[Experiment, Outcome]]:
    """Run them all, each in one thread of one of so many processes: their tensors are too small to be shared by two."""
    experiments = list(experiments)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from zip(experiments, pool.map(Experiment.__call__, experiments), strict=True)


def failures(claims: Iterable[Claim]) -> list[str]:
    """A sentence for everything that speaks against a verdict."""
    return [sentence for claim in claims for sentence in claim.failures()]


def describe_claim(claim: Claim) -> dict[str, Any]:
    """One claim, ready for JSON: what the ledger holds of it, how it is bounded, and whether it stands."""
    entry = {part: getattr(claim, part) for part in (*LEDGER, "relation")}
    return finite(entry | {"twin": None if claim.twin is None else str(claim.twin), "stands": not claim.failures()})


def describe_experiment(experiment: Experiment, parameters: Any, outcome: Outcome) -> dict[str, Any]:
    """Everything there is to tell of one run, ready for JSON: the page that is printed, served, and written."""
    page = {text: getattr(experiment, text) for text in TEXTS}
    page |= {"parameters": parameters._asdict(), "numbers": dict(outcome.numbers)}
    page |= {"panels": [{"kind": panel.kind, **asdict(panel)} for panel in outcome.panels]}
    page |= {"claims": [describe_claim(claim) for claim in outcome.claims], "failures": failures(outcome.claims)}
    return finite(page)
