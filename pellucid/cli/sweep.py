"""pellucid sweep: a recipe trained many times, and a table of what came of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pellucid.cli.train import change_recipe, name_choices
from pellucid.cli.verbs import SweepOptions, TrainOptions
from pellucid.config import parse_json, to_json
from pellucid.training.sweep import REPEATS, Range, Trial, spell, summarise_repeats
from pellucid.training.sweep import sweep as run_all


def sweep(options: SweepOptions, changes: Sequence[str] = ()) -> None:
    vary, rest = split_words(changes)
    run = change_recipe(TrainOptions(options.recipe), rest)
    out = options.out or Path("sweeps") / options.recipe
    fixed = {name: look_up(to_json(run), name) for name in name_choices(rest)}

    def tell(number: int, count: int, trial: Trial) -> None:
        print(f"{number} of {count}: {describe(trial.values)}: {trial.score} {trial.best:.4f}", flush=True)

    trials = run_all(options.recipe, out, vary, draws=options.draws, draws_seed=options.sweep_seed, tell=tell, **fixed)
    print(tabulate(trials))
    print(f"the runs: {out}; side by side: pellucid serve --runs {out}")


def split_words(words: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """What is varied, and the other words.

    >>> split_words(["--vary", "optim.lr", "1e-3", "1e-4..1e-2", "--batch", "8"])
    ({'optim.lr': [0.001, Range(low=0.0001, high=0.01)]}, ['--batch', '8'])
    """
    varied: list[list[str]] = []
    rest: list[str] = []
    target = rest
    for word in words:
        if word == "--vary":
            target = []
            varied.append(target)
            continue
        if word.startswith("--"):
            target = rest
        target.append(word)
    return {name.replace("-", "_"): [read_value(word) for word in values] for name, *values in varied if name}, rest


def look_up(config: Any, path: str) -> Any:
    """The value of a field by its path."""
    for name in path.split("."):
        config = config[name]
    return config


def read_value(word: str) -> Any:
    """A range, a number or another value of JSON, else the word itself."""
    if (span := Range.parse(word)) is not None:
        return span
    try:
        return parse_json(word, word)
    except ValueError:
        return word


def describe(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {spell(value)}" for name, value in values.items())


def tabulate(trials: Sequence[Trial]) -> str:
    """The runs, the best first; and over seeds and folds, their mean."""
    rows = [("", *trials[0].values, trials[0].score, "folder")]
    for place, trial in enumerate(trials, 1):
        rows.append(
            (
                str(place),
                *map(spell, trial.values.values()),
                "–" if math.isnan(trial.best) else f"{trial.best:.4f}",
                trial.folder.name,
            )
        )
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
    if any(name in REPEATS for name in trials[0].values) and len(trials) > 1:
        for values, mean, deviation, count in summarise_repeats(trials):
            what = f"{describe(values)}: " if values else ""
            lines.append(f"{what}mean of {count} {mean:.4f} ± {deviation:.4f}")
    return "\n".join(["", *lines, ""])
