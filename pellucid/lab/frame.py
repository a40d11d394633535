"""What an experiment is, and what a claim is: a sentence, a verdict, and numbers that could have spoken against it."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from pellucid.lab.panels import Panel

Verdict = Literal["true", "false", "conditional"]
Relation = Literal["≤", "≥"]
Number = float | int | str
FROM_ZERO = ("seed", "chosen", "moved")  # parameters that are no count


class Case(NamedTuple):
    """One measurement: of what, and the number that came out."""

    what: str
    value: float


@dataclass(frozen=True)
class Claim:
    """A sentence about attention, put to the test.

    The sentence says that a number stands in `relation` to `tolerance`. Where it was measured and does is a case of
    `holds`; where it doesn't, of `breaks`. The twin is the negative of the test, measured by code of its own: an
    altered sentence beside a true one, which must break, and the true sentence beside a false one, which must hold.
    A sentence that is true under a condition needs none: its cases are each other's twins.

    >>> claim = Claim(
    ...     "numbers.even", "The double of a number is even.", "true", "≤", 0,
    ...     holds=(Case("remainder of 2·7 by 2", 0),), twin=Case("remainder of 2·7 + 1 by 2", 1),
    ... )
    >>> claim.measured, claim.failures()
    (0, [])
    >>> dataclasses.replace(claim, verdict="false").failures()
    ['numbers.even is called false, but what was measured makes it true']
    """

    id: str
    statement: str
    verdict: Verdict
    relation: Relation
    tolerance: float
    holds: tuple[Case, ...] = ()
    breaks: tuple[Case, ...] = ()
    twin: Case | None = None
    truth: str = ""
    """What is true instead of a false sentence, or when a conditional one is true."""
    heard: bool = False
    """Whether it is a sentence that courses teach, and that isn't so."""

    def __post_init__(self) -> None:
        if not self.holds and not self.breaks:
            raise ValueError(f"the claim {self.id} has no case; expected one measurement or more")

    @property
    def measured(self) -> float:
        """The number of the first case that decides."""
        return (self.breaks if self.verdict == "false" and self.breaks else self.holds or self.breaks)[0].value

    @property
    def counter_example(self) -> str | None:
        """What is true instead, and the case that shows it."""
        if not self.breaks:
            return None
        return f"{self.truth} {said(self.breaks[0])}".strip()

    def agrees(self, case: Case) -> bool:
        """Whether a number is what the sentence says."""
        return case.value <= self.tolerance if self.relation == "≤" else case.value >= self.tolerance

    def failures(self) -> list[str]:
        """A sentence for everything that speaks against the verdict; none when the claim stands."""
        found: Verdict = "conditional" if self.holds and self.breaks else "true" if self.holds else "false"
        if found != self.verdict:
            return [f"{self.id} is called {self.verdict}, but what was measured makes it {found}"]
        if self.verdict != "conditional" and self.twin is None:
            return [f"{self.id} has no twin; a test that nothing could fail shows nothing"]
        expected = [(case, True) for case in self.holds] + [(case, False) for case in self.breaks]
        if self.twin is not None:
            expected.append((self.twin, self.verdict == "false"))
        return [
            f"{self.id}: {said(case)}, expected {'' if wanted else 'not '}{self.relation} {self.tolerance:g}"
            for case, wanted in expected
            if not math.isfinite(case.value) or self.agrees(case) != wanted
        ]


def said(case: Case) -> str:
    return f"{case.what}: {case.value:.3g}"


@dataclass(frozen=True)
class Result:
    """What came out, all of it data: numbers, panels that a figure is drawn from, and the claims that they decide."""

    numbers: Mapping[str, Number]
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Experiment:
    """A question about attention, and the function that answers it.

    statement: what is shown. formula: in one line. predict: what to guess before looking. fails: where it isn't so.
    run: from parameters, a frozen dataclass, to a result. shown: helpers of `run` that belong to its code.
    """

    name: str
    title: str
    statement: str
    formula: str
    predict: str
    fails: str
    parameters: type
    run: Callable[[Any], Result]
    shown: tuple[Callable, ...] = ()

    def __call__(self, parameters: Any = None) -> Result:
        """Run it with these parameters, or with its own. The caller's random numbers are left as they were."""
        parameters = self.parameters() if parameters is None else parameters
        for field in dataclasses.fields(parameters):
            value, least = getattr(parameters, field.name), 0 if field.name in FROM_ZERO else 1
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and number < least:
                    raise ValueError(f"{field.name} is {number}; expected {least} or more")
        with torch.random.fork_rng(devices=[]):
            return self.run(parameters)

    @property
    def code(self) -> str:
        """The code that runs, as it stands in its file."""
        return "\n\n".join(inspect.getsource(inspect.unwrap(function)) for function in (*self.shown, self.run))


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Inside, weights and numbers are drawn from this seed; outside, nobody's are."""
    with torch.random.fork_rng(devices=[]):
        yield torch.manual_seed(seed)


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors."""
    return (a.double() - b.double()).abs().max().item()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def exponent(x: list[float], y: list[float]) -> float:
    """The slope of ln y over ln x, by least squares: p where y = c·x^p."""
    x_log, y_log = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    centred = x_log - x_log.mean()
    return (centred @ y_log / (centred @ centred)).item()
