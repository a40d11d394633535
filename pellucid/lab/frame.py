"""What an experiment is: settings, and three functions that measure, claim and draw."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch

from pellucid.lab.claims import Claim, Claims
from pellucid.lab.panels import Chart

Number = float | int | str
FROM_ZERO = ("seed", "chosen", "moved")  # settings that are no count


@dataclass(frozen=True)
class Outcome:
    """What came out, all of it data: numbers, panels that a figure is drawn from, and the claims that they decide."""

    numbers: Mapping[str, Number]
    panels: tuple[Chart, ...]
    claims: tuple[Claim, ...]


Drawing = tuple[Mapping[str, Number], Sequence[Chart]]


@dataclass(frozen=True)
class Experiment:
    """A question about attention, and three functions that answer it.

    statement: what is shown. formula: in one line. predict: what to guess before looking. fails: where it isn't so.
    parameters: a frozen dataclass, the settings. measure: from settings to what was measured, a named tuple.
    claim: from both to the claims that it decides. draw: from both to numbers and panels.
    helpers: what belongs to the code of the three.
    """

    name: str
    title: str
    statement: str
    formula: str
    predict: str
    fails: str
    parameters: type
    measure: Callable[[Any], Any]
    claim: Callable[[Any, Any], Claims]
    draw: Callable[[Any, Any], Drawing]
    helpers: tuple[Callable, ...] = ()

    def __call__(self, parameters: Any = None) -> Outcome:
        """Run it with these parameters, or with its own. The caller's random numbers are left as they were."""
        parameters = self.parameters() if parameters is None else parameters
        for field in dataclasses.fields(parameters):
            value, least = getattr(parameters, field.name), 0 if field.name in FROM_ZERO else 1
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and number < least:
                    raise ValueError(f"{field.name} is {number}; expected {least} or more")
        with torch.random.fork_rng(devices=[]):
            measurement = self.measure(parameters)
            numbers, panels = self.draw(parameters, measurement)
            return Outcome(numbers, tuple(panels), tuple(self.claim(parameters, measurement)))

    @property
    def code(self) -> str:
        """The code that runs, as it stands in its file: helpers, then what is measured, claimed and drawn."""
        measure = inspect.unwrap(self.measure)
        parts = (*self.helpers, get_type_hints(measure)["return"], measure, self.claim, self.draw)
        return "\n\n".join(inspect.getsource(inspect.unwrap(part)) for part in parts)


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Inside, weights and numbers are drawn from this seed; outside, nobody's are."""
    with torch.random.fork_rng(devices=[]):
        yield torch.manual_seed(seed)


def largest_error(a: torch.Tensor, b: torch.Tensor) -> float:
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
