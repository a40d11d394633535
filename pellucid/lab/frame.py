"""What an experiment is, and what a claim is: a sentence, a verdict, and numbers that could have spoken against it."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_type_hints

import torch

from pellucid.lab.panels import Chart

Verdict = Literal["true", "false", "conditional"]
Relation = Literal["≤", "≥"]
Number = float | int | str
FROM_ZERO = ("seed", "chosen", "moved")  # settings that are no count


class Case(NamedTuple):
    """One measurement: of what, and the number that came out.

    >>> print(Case("share of NaN", 0.25))
    share of NaN: 0.25
    """

    what: str
    value: float

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.3g}"


BoundedCase = tuple[Relation, float, Case]  # a number, and the bound that a sentence sets it


def at_most(tolerance: float, what: str, value: float) -> BoundedCase:
    """The sentence says: the number is no larger."""
    return "≤", tolerance, Case(what, value)


def at_least(tolerance: float, what: str, value: float) -> BoundedCase:
    """The sentence says: the number is no smaller."""
    return "≥", tolerance, Case(what, value)


@dataclass(frozen=True)
class Claim:
    """A sentence about attention, put to the test.

    The sentence says that a number stands in `relation` to `tolerance`. Where it was measured and does is a case of
    `holds`; where it doesn't, of `breaks`. The twin is the negative of the test, measured by code of its own: an
    altered sentence beside a true one, which must break, and the true sentence beside a false one, which must hold.
    A sentence that is true under a condition needs none: its cases are each other's twins.

    >>> claim = Thesis("numbers.even", "The double of a number is even.").true(
    ...     at_most(0, "remainder of 2·7 by 2", 0), twin=("remainder of 2·7 + 1 by 2", 1)
    ... )
    >>> claim.measured, claim.failures()
    (0, [])
    >>> from dataclasses import replace
    >>> replace(claim, verdict="false").failures()
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
        return f"{self.truth} {self.breaks[0]}".strip() if self.breaks else None

    def agrees(self, case: Case) -> bool:
        """Whether a number is what the sentence says."""
        return case.value <= self.tolerance if self.relation == "≤" else case.value >= self.tolerance

    def failures(self) -> list[str]:
        """A sentence for everything that speaks against the verdict; none when the claim stands."""
        actual: Verdict = "conditional" if self.holds and self.breaks else "true" if self.holds else "false"
        if actual != self.verdict:
            return [f"{self.id} is called {self.verdict}, but what was measured makes it {actual}"]
        if self.verdict != "conditional" and self.twin is None:
            return [f"{self.id} has no twin; a test that nothing could fail shows nothing"]
        expectations = [(case, True) for case in self.holds] + [(case, False) for case in self.breaks]
        if self.twin is not None:
            expectations.append((self.twin, self.verdict == "false"))
        return [
            f"{self.id}: {case}, expected {'' if agreement else 'not '}{self.relation} {self.tolerance:g}"
            for case, agreement in expectations
            if not math.isfinite(case.value) or self.agrees(case) != agreement
        ]


class Thesis(NamedTuple):
    """The sentence of a claim, and the three ways that it can be decided."""

    id: str
    text: str

    def true(self, trial: BoundedCase, *, twin: tuple[str, float]) -> Claim:
        """The number bears the sentence out; the twin's doesn't."""
        relation, tolerance, case = trial
        return Claim(*self, "true", relation, tolerance, holds=(case,), twin=Case(*twin))

    def false(self, trial: BoundedCase, *, twin: tuple[str, float], truth: str, heard: bool = False) -> Claim:
        """The number speaks against the sentence; the twin's doesn't. truth: what is so instead."""
        relation, tolerance, case = trial
        return Claim(*self, "false", relation, tolerance, (), (case,), Case(*twin), truth, heard)

    def conditional(self, trial: BoundedCase, *breaks: tuple[str, float], truth: str, heard: bool = False) -> Claim:
        """The first number bears the sentence out, the others break it. truth: when it is so."""
        relation, tolerance, case = trial
        broken = tuple(Case(*each) for each in breaks)
        return Claim(*self, "conditional", relation, tolerance, (case,), broken, None, truth, heard)


@dataclass(frozen=True)
class Outcome:
    """What came out, all of it data: numbers, panels that a figure is drawn from, and the claims that they decide.

    >>> from pellucid import lab
    >>> outcome = lab.experiment("graph")()
    >>> [claim.id for claim in outcome.claims][:1], len(outcome.panels) > 0
    (['graph.complete'], True)
    """

    numbers: Mapping[str, Number]
    panels: tuple[Chart, ...]
    claims: tuple[Claim, ...]


Claims = Iterator[Claim]
Drawing = tuple[Mapping[str, Number], Sequence[Chart]]


@dataclass(frozen=True)
class Experiment:
    """A question about attention, and the three functions that answer it.

    statement: what is shown. formula: in one line. predict: what to guess before looking. fails: where it isn't so.
    functions: the first measures, from settings to a named tuple; the second claims what that decides; the third draws
    it, as numbers and as panels. helpers: what belongs to their code. bounds: lowest and highest, of settings that
    can't be any count (from 1) or any number.

    >>> from pellucid import lab
    >>> one = lab.experiment("graph")
    >>> one.title, one().claims[0].verdict
    ('Attention as message passing', 'true')
    """

    name: str
    title: str
    statement: str
    formula: str
    predict: str
    fails: str
    functions: tuple[Callable[[Any], Any], Callable[[Any, Any], Claims], Callable[[Any, Any], Drawing]]
    helpers: tuple[Callable, ...] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    @property
    def parameters(self) -> type:
        """The settings, a named tuple with defaults: what the function that measures takes."""
        return get_type_hints(inspect.unwrap(self.functions[0]))["p"]

    def __call__(self, parameters: Any = None) -> Outcome:
        """Run it with these parameters, or with its own. The caller's random numbers are left as they were."""
        parameters = self.parameters() if parameters is None else parameters
        for name, value in parameters._asdict().items():
            for number in value if isinstance(value, tuple) else (value,):
                self._check(name, number)
        measure, claim, draw = self.functions
        with torch.random.fork_rng(devices=[]):
            measurement = measure(parameters)
            numbers, panels = draw(parameters, measurement)
            return Outcome(numbers, tuple(panels), tuple(claim(parameters, measurement)))

    def bounds_of(self, name: str, value: Any) -> tuple[float, float]:
        """The lowest and the highest that a setting like this value may be."""
        least = -math.inf if isinstance(value, float) else 0 if name in FROM_ZERO else 1
        return self.bounds.get(name, (least, math.inf))

    def _check(self, name: str, number: Any) -> None:
        low, high = self.bounds_of(name, number)
        if isinstance(number, int | float) and not low <= number <= high:
            raise ValueError(
                f"{name} is {number}; expected {f'{low:g} or more' if high == math.inf else f'{low:g}…{high:g}'}"
            )

    @property
    def code(self) -> str:
        """The code that runs, as it stands in its file: helpers, what is measured, and the three functions."""
        measurement = get_type_hints(inspect.unwrap(self.functions[0]))["return"]
        parts = (*self.helpers, measurement, *self.functions)
        return "\n\n".join(inspect.getsource(inspect.unwrap(part)) for part in parts)


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Inside, weights and numbers are drawn from this seed; outside, nobody's are."""
    with torch.random.fork_rng(devices=[]):
        yield torch.manual_seed(seed)


def max_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors."""
    return (a.double() - b.double()).abs().max().item()


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of ln y over ln x, by least squares: p where y = c·x^p."""
    x_log, y_log = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    centred = x_log - x_log.mean()
    return (centred @ y_log / (centred @ centred)).item()
