"""One recipe trained many times: every combination of some values, or random draws; each run goes on by itself."""

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pellucid.config import override, parse_json
from pellucid.recipes import recipe
from pellucid.runs import AnyRun, RunFolder
from pellucid.runs.checkpoints import read_facts, read_state_facts
from pellucid.training.engine import Observer
from pellucid.training.train import train

REPEATS = ("seed", "data.fold")  # what is averaged over


@dataclass(frozen=True)
class Range:
    """Values between two numbers: as many at each power of ten if both are above zero, else as many everywhere.

    >>> Range.parse("1e-4..1e-2"), Range.parse("3")
    (Range(low=0.0001, high=0.01), None)
    """

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> "Range | None":
        match = re.fullmatch(r"([-+.\de]+?)\.\.([-+.\de]+)", text)
        try:
            return cls(float(match[1]), float(match[2])) if match else None
        except ValueError:
            return None

    def draw(self, chance: random.Random) -> float:
        if self.low > 0 and self.high > 0:
            return math.exp(chance.uniform(math.log(self.low), math.log(self.high)))
        return chance.uniform(self.low, self.high)


@dataclass(frozen=True)
class Trial:
    """One run of a sweep. values: of the fields that were varied; figures: of its best weights."""

    values: dict[str, Any]
    folder: Path
    score: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        return self.figures.get(self.score, math.nan)


def sweep(
    source: str | AnyRun,
    out: str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
    draws: int = 0,
    draws_seed: int = 0,
    tell: Callable[[int, int, Trial], None] | None = None,
    dataset: Any = None,
    callbacks: Sequence[Observer] = (),
    **changes: Any,
) -> list[Trial]:
    """Train a recipe, or a run, with every combination of values, or with so many draws; the best comes first.

    vary: by field, as {"optim.lr": [1e-3, 3e-3]}; a `Range` among the values is drawn from. Each run has a folder in
    `out`; one that is there already goes on, or is only read if it has ended. tell: is called after each run with its
    number and how many there are. dataset, callbacks, changes: as `train` takes them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     trials = sweep("vit_digits", out, {"optim.lr": [1e-3, 3e-3]}, duration="1 steps")
    >>> len(trials)
    2
    """
    combinations = list_combinations(vary, draws, draws_seed)
    base = source if not isinstance(source, str) else recipe(source)
    for values in combinations:
        override(base, changes | values)  # a mistake is told before anything is trained
    how: dict[str, Any] = {"dataset": dataset, "callbacks": callbacks, "progress": False}
    trials = []
    for number, values in enumerate(combinations, 1):
        folder = Path(out) / name_run(values)
        trial = read_trial(folder, values) or _train(source, folder, values, how, changes)
        trials.append(trial)
        if tell is not None:
            tell(number, len(combinations), trial)
    return sorted(trials, key=lambda trial: -math.inf if math.isnan(trial.best) else trial.best, reverse=True)


def list_combinations(vary: Mapping[str, Sequence[Any]], draws: int, seed: int) -> list[dict[str, Any]]:
    """
    >>> list_combinations({"batch": [8, 16], "seed": [0, 1]}, 0, 0)[1]
    {'batch': 8, 'seed': 1}
    >>> few, more = (list_combinations({"optim.lr": [Range(1e-4, 1e-2)]}, n, 0) for n in (2, 4))
    >>> more[:2] == few
    True
    """
    if not vary or not all(vary.values()):
        raise ValueError("nothing is varied; give one or more fields with their values (--vary optim.lr 1e-3 3e-3)")
    if draws < 0:
        raise ValueError(f"draws is {draws}; expected zero or more")
    if not draws:
        if any(isinstance(value, Range) for values in vary.values() for value in values):
            raise ValueError("a range has no end of values; say how many are to be drawn (draws)")
        return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    drawn = []
    for number in range(draws):
        chances = {name: random.Random(f"{seed}/{number}/{name}") for name in vary}
        chosen = {name: chances[name].choice(list(values)) for name, values in vary.items()}
        drawn.append(
            {name: each.draw(chances[name]) if isinstance(each, Range) else each for name, each in chosen.items()}
        )
    return drawn


def name_run(values: Mapping[str, Any]) -> str:
    """A folder's name that says what is special about its run.

    >>> name_run({"optim.lr": 0.001, "duration": "5 epochs"})
    'lr=0.001,duration=5-epochs'
    """
    short = [name.rsplit(".", 1)[-1] for name in values]
    names = [own if short.count(own) == 1 else name for own, name in zip(short, values, strict=True)]
    pairs = (f"{name}={spell(value)}" for name, value in zip(names, values.values(), strict=True))
    return re.sub(r"[^\w.,=+-]+", "-", ",".join(pairs)).strip("-")


def read_trial(folder: Path, values: dict[str, Any]) -> Trial | None:
    """A run that has ended; None of one that has not begun, or must go on."""
    run = RunFolder(folder)
    plan, newest = run.plan(), run.checkpoints.newest()
    if plan is None or newest is None:
        return None
    facts, patience = read_state_facts(newest), run.run().patience
    if facts.step < plan.steps and not 0 < patience <= facts.stale:
        return None
    figures = read_facts(run.checkpoints.best) if run.checkpoints.best.is_file() else facts.figures
    score = next((name for name, value in figures.items() if name != "step" and value == facts.best), "")
    return Trial(values, folder, score, figures)


def _train(
    source: str | AnyRun, folder: Path, values: dict[str, Any], how: dict[str, Any], changes: dict[str, Any]
) -> Trial:
    if RunFolder(folder).config_file.is_file():
        result = train(folder, **how)
    else:
        result = train(source, out=folder, **how, **changes | values)
    return Trial(values, folder, result.score, result.kept)


def summarise_repeats(trials: Sequence[Trial]) -> list[tuple[dict[str, Any], float, float, int]]:
    """Values, mean of the best scores, their standard deviation and number, over seeds and folds; the best first."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        own = {name: value for name, value in trial.values.items() if name not in REPEATS}
        groups.setdefault(json.dumps(own, sort_keys=True), []).append(trial)
    rows = []
    for key, members in groups.items():
        scores = [trial.best for trial in members]
        rows.append((parse_json(key, "a trial"), mean(scores), stdev(scores) if len(scores) > 1 else 0.0, len(scores)))
    return sorted(rows, key=lambda row: row[1], reverse=True)


def spell(value: Any) -> str:
    """A value as it stands in names and tables."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
