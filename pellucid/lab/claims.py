"""What a claim is: a sentence, a verdict, and numbers that could have spoken against it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Verdict = Literal["true", "false", "conditional"]
Relation = Literal["≤", "≥"]


class Case(NamedTuple):
    """One measurement: of what, and the number that came out."""

    what: str
    value: float

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.3g}"


class Trial(NamedTuple):
    """A case, and the bound that a sentence sets it."""

    relation: Relation
    tolerance: float
    case: Case


def at_most(tolerance: float, what: str, value: float) -> Trial:
    """The sentence says: the number is no larger."""
    return Trial("≤", tolerance, Case(what, value))


def at_least(tolerance: float, what: str, value: float) -> Trial:
    """The sentence says: the number is no smaller."""
    return Trial("≥", tolerance, Case(what, value))


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

    def true(self, trial: Trial, *, twin: tuple[str, float]) -> Claim:
        """The number bears the sentence out; the twin's doesn't."""
        relation, tolerance, case = trial
        return Claim(*self, "true", relation, tolerance, holds=(case,), twin=Case(*twin))

    def false(self, trial: Trial, *, twin: tuple[str, float], truth: str, heard: bool = False) -> Claim:
        """The number speaks against the sentence; the twin's doesn't. truth: what is so instead."""
        relation, tolerance, case = trial
        return Claim(*self, "false", relation, tolerance, (), (case,), Case(*twin), truth, heard)

    def conditional(self, trial: Trial, *breaks: tuple[str, float], truth: str, heard: bool = False) -> Claim:
        """The first number bears the sentence out, the others break it. truth: when it is so."""
        relation, tolerance, case = trial
        broken = tuple(Case(*each) for each in breaks)
        return Claim(*self, "conditional", relation, tolerance, (case,), broken, None, truth, heard)


Claims = Iterator[Claim]
