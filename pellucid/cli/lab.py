"""pellucid lab: every claim about attention, run and measured; or one experiment, and its page."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table

from pellucid.cli import parsed
from pellucid.cli.verbs import Lab
from pellucid.lab import EXPERIMENTS, Claim, Experiment, Result, draw, experiment
from pellucid.lab.ledger import entry, failures, run
from pellucid.lab.page import check_html, to_html
from pellucid.views.figures import check_path, save_figure

COLOURS = {"true": "green", "false": "red", "conditional": "yellow"}
MOST_WORKERS = 4  # each takes about 400 MB
FALLEN = " (this does not stand: see below)"
CALLED = {"true": "true", "false": "false", "conditional": "true when …"}


def lab(asked: Lab, changes: list[str]) -> int:
    """The whole ledger, or one experiment with its parameters changed; 1 if a claim doesn't stand, else 0."""
    if asked.name is None:
        if asked.figure is not None:
            raise ValueError("--figure is of one experiment; name it: pellucid lab NAME --figure FILE")
        if asked.out is not None:
            check_html(asked.out)
        found = everything()
        claims = [claim for _, result in found for claim in result.claims]
        if asked.out is not None:
            to_html(found, asked.out)
        if not asked.json:
            print_ledger(claims)
            if asked.out is not None:
                print(f"page: {asked.out}")
    else:
        one = experiment(asked.name)
        if asked.out is not None:
            raise ValueError("--out is a page of all experiments; leave the name out: pellucid lab --out FILE")
        if asked.figure is not None:
            check_path(asked.figure)
        parameters = parsed(lambda: tyro.cli(one.parameters, prog=f"pellucid lab {one.name}", args=changes))
        try:
            result = one(parameters)
        except (ArithmeticError, IndexError, RuntimeError) as error:
            if not changes:
                raise
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{one.name} can't run with these parameters: {reason}") from None
        claims = list(result.claims)
        if asked.figure is not None:
            save_figure(draw(result.panels, one.title), asked.figure)
        if not asked.json:
            print("\n".join(page(one, result)))
            if asked.figure is not None:
                print(f"\nfigure: {asked.figure}")
    if asked.json:
        print(json.dumps({"claims": [entry(claim) for claim in claims]}, ensure_ascii=False))
    return judged(claims)


def judged(claims: Sequence[Claim]) -> int:
    """Say which claims don't stand, if any; the exit code of the command."""
    sentences = failures(claims)
    for sentence in sentences:
        print(f"pellucid: {sentence}", file=sys.stderr)
    if sentences:
        fallen = len({claim.id for claim in claims if claim.failures()})
        print(f"pellucid: {fallen} of {len(claims)} claims don't stand", file=sys.stderr)
    return 1 if sentences else 0


def everything() -> list[tuple[Experiment, Result]]:
    """Run all experiments, side by side."""
    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[name]}"), console=console,
                  disable=not console.is_terminal, transient=True) as bar:  # fmt: skip
        task = bar.add_task("experiments", total=len(EXPERIMENTS), name="")
        found = []
        for one, result in run(EXPERIMENTS.values(), workers=min(MOST_WORKERS, os.cpu_count() or 1)):
            found.append((one, result))
            bar.update(task, advance=1, name=one.name)
    return found


def print_ledger(claims: Sequence[Claim]) -> None:
    """A table on a terminal, plain lines elsewhere; then how many there are of each verdict."""
    console = Console()
    if console.is_terminal:
        table = Table("claim", "verdict", "measured", "tolerance", "counter-example", show_lines=True)
        for claim in claims:
            verdict = f"[{COLOURS[claim.verdict]}]{CALLED[claim.verdict]}[/]{FALLEN if claim.failures() else ''}"
            measured, bound = f"{claim.measured:.3g}", f"{claim.relation} {claim.tolerance:g}"
            table.add_row(claim.statement, verdict, measured, bound, claim.counter_example or "")
        console.print(table)
    else:
        for claim in claims:
            print("\n".join(told(claim)))
    print(f"\n{counted(claims)}")


def counted(claims: Sequence[Claim]) -> str:
    """How many there are of each verdict."""
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in CALLED}
    return f"{len(claims)} claims: {', '.join(f'{count} {CALLED[verdict]}' for verdict, count in counts.items())}"


def told(claim: Claim) -> list[str]:
    """One claim in lines."""
    lines = [
        f"{CALLED[claim.verdict]:<11}  {claim.statement}{FALLEN if claim.failures() else ''}",
        f"{'':<11}  measured {claim.measured:.3g}, said to be {claim.relation} {claim.tolerance:g}  ({claim.id})",
    ]
    return lines + ([f"{'':<11}  {claim.counter_example}"] if claim.counter_example else [])


def page(one: Experiment, result: Result) -> list[str]:
    """The experiment's page: what is stated, what ran, what came out, and where it isn't so."""
    text = [one.title, "=" * len(one.title), "", one.statement, "", f"Formula: {one.formula}", ""]
    text += [f"Predict first: {one.predict}", "", "Code that ran:", "", one.code.rstrip(), "", "Numbers:", ""]
    width = max(map(len, result.numbers), default=0)
    text += [f"  {name:<{width}}  {_number(value)}" for name, value in result.numbers.items()]
    text += ["", "Verdicts:", ""]
    for claim in result.claims:
        text += told(claim)
        if claim.twin is not None:
            text.append(f"{'':<11}  its twin: {claim.twin.what}: {claim.twin.value:.3g}")
    return [*text, "", f"Where it fails: {one.fails}"]


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
