"""What an experiment is: settings, and three functions that measure, claim and draw."""

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
    """A question about attention, and the three functions that answer it.

    statement: what is shown. formula: in one line. predict: what to guess before looking. fails: where it isn't so.
    functions: the first measures, from settings to a named tuple; the second claims what that decides; the third draws
    it, as numbers and as panels. helpers: what belongs to their code.
    """

    name: str
    title: str
    statement: str
    formula: str
    predict: str
    fails: str
    functions: tuple[Callable[[Any], Any], Callable[[Any, Any], Claims], Callable[[Any, Any], Drawing]]
    helpers: tuple[Callable, ...] = ()

    @property
    def parameters(self) -> type:
        """The settings, a named tuple with defaults: what the function that measures takes."""
        return get_type_hints(inspect.unwrap(self.functions[0]))["p"]

    def __call__(self, parameters: Any = None) -> Outcome:
        """Run it with these parameters, or with its own. The caller's random numbers are left as they were."""
        parameters = self.parameters() if parameters is None else parameters
        for name, value in parameters._asdict().items():
            least = 0 if name in FROM_ZERO else 1
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and number < least:
                    raise ValueError(f"{name} is {number}; expected {least} or more")
        measure, claim, draw = self.functions
        with torch.random.fork_rng(devices=[]):
            measurement = measure(parameters)
            numbers, panels = draw(parameters, measurement)
            return Outcome(numbers, tuple(panels), tuple(claim(parameters, measurement)))

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
