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

from pellucid.cli import parse_words
from pellucid.cli.verbs import LabOptions
from pellucid.lab import EXPERIMENTS, Claim, Experiment, Outcome, draw_panels, experiment
from pellucid.lab.ledger import LEDGER, describe_claim, describe_experiment, failures, run_all
from pellucid.lab.page import check_html, write_lab
from pellucid.views.figures import check_path, save_figure

MOST_WORKERS = 4  # each takes about 400 MB
FALLEN = " (this does not stand: see below)"
VERDICT_COLOURS = {"true": "green", "false": "red", "conditional": "yellow"}
VERDICT_NAMES = {"true": "true", "false": "false", "conditional": "true when …"}


def lab(options: LabOptions, changes: Sequence[str] = ()) -> int:
    """The whole ledger, or one experiment with its parameters changed; 1 if a claim doesn't stand, else 0."""
    claims = run_ledger(options) if options.name is None else run_one(options, experiment(options.name), changes)
    if options.json:
        entries = [describe_claim(claim) for claim in claims]
        print(json.dumps({"claims": [{part: each[part] for part in LEDGER} for each in entries]}, ensure_ascii=False))
    return report_failures(claims)


def run_ledger(options: LabOptions) -> list[Claim]:
    """Run everything, print the ledger, and write the page if one is named."""
    if options.figure is not None:
        raise ValueError("--figure is of one experiment; name it: pellucid lab NAME --figure FILE")
    if options.out is not None:
        check_html(options.out)
    outcomes = run_everything()
    claims = [claim for _, outcome in outcomes for claim in outcome.claims]
    if options.out is not None:
        write_lab(outcomes, options.out)
    if not options.json:
        print_ledger(claims)
        if options.out is not None:
            print(f"page: {options.out}")
    return claims


def run_one(options: LabOptions, one: Experiment, changes: Sequence[str]) -> list[Claim]:
    """Run one experiment with these changes, print its page, and draw its figure if one is named."""
    if options.out is not None:
        raise ValueError("--out is a page of all experiments; leave the name out: pellucid lab --out FILE")
    if options.figure is not None:
        check_path(options.figure)
    parameters = parse_words(lambda: tyro.cli(one.parameters, prog=f"pellucid lab {one.name}", args=changes))
    try:
        outcome = one(parameters)
    except (ArithmeticError, IndexError, RuntimeError) as error:
        if not changes:
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{one.name} can't run with these parameters: {reason}") from None
    if options.figure is not None:
        save_figure(draw_panels(outcome.panels, one.title), options.figure)
    if not options.json:
        print("\n".join(page_lines(describe_experiment(one, parameters, outcome))))
        if options.figure is not None:
            print(f"\nfigure: {options.figure}")
    return list(outcome.claims)


def report_failures(claims: Sequence[Claim]) -> int:
    """Say which claims don't stand, if any; the exit code of the command."""
    sentences = failures(claims)
    for sentence in sentences:
        print(f"pellucid: {sentence}", file=sys.stderr)
    if sentences:
        fallen = len({claim.id for claim in claims if claim.failures()})
        print(f"pellucid: {fallen} of {len(claims)} claims don't stand", file=sys.stderr)
    return 1 if sentences else 0


def run_everything() -> list[tuple[Experiment, Outcome]]:
    """Run all experiments, side by side."""
    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[name]}"), console=console,
                  disable=not console.is_terminal, transient=True) as bar:  # fmt: skip
        task = bar.add_task("experiments", total=len(EXPERIMENTS), name="")
        outcomes = []
        for one, outcome in run_all(EXPERIMENTS.values(), workers=min(MOST_WORKERS, os.cpu_count() or 1)):
            outcomes.append((one, outcome))
            bar.update(task, advance=1, name=one.name)
    return outcomes


def print_ledger(claims: Sequence[Claim]) -> None:
    """A table on a terminal, plain lines elsewhere; then how many there are of each verdict."""
    console = Console()
    if console.is_terminal:
        table = Table("claim", "verdict", "measured", "tolerance", "counter-example", show_lines=True)
        for claim in claims:
            verdict = f"[{VERDICT_COLOURS[claim.verdict]}]{VERDICT_NAMES[claim.verdict]}[/]"
            measured, bound = f"{claim.measured:.3g}", f"{claim.relation} {claim.tolerance:g}"
            fallen = FALLEN if claim.failures() else ""
            table.add_row(claim.statement, verdict + fallen, measured, bound, claim.counter_example or "")
        console.print(table)
    else:
        for claim in claims:
            print("\n".join(claim_lines(describe_claim(claim))))
    print(f"\n{count_verdicts(claims)}")


def count_verdicts(claims: Sequence[Claim]) -> str:
    """How many there are of each verdict."""
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICT_NAMES}
    names = ", ".join(f"{count} {VERDICT_NAMES[verdict]}" for verdict, count in counts.items())
    return f"{len(claims)} claims: {names}"


def claim_lines(claim: dict[str, Any]) -> list[str]:
    """One claim in lines."""
    measured = "nan" if claim["measured"] is None else f"{claim['measured']:.3g}"
    lines = [
        f"{VERDICT_NAMES[claim['verdict']]:<11}  {claim['statement']}{'' if claim['stands'] else FALLEN}",
        f"{'':<11}  measured {measured}, said to be {claim['relation']} {claim['tolerance']:g}  ({claim['id']})",
    ]
    return lines + ([f"{'':<11}  {claim['counter_example']}"] if claim["counter_example"] else [])


def page_lines(page: dict[str, Any]) -> list[str]:
    """The experiment's page: what is stated, what ran, what came out, and where it isn't so."""
    text = [page["title"], "=" * len(page["title"]), "", page["statement"], "", f"Formula: {page['formula']}", ""]
    text += [f"Predict first: {page['predict']}", "", "Code that ran:", "", page["code"].rstrip(), "", "Numbers:", ""]
    width = max(map(len, page["numbers"]), default=0)
    for name, value in page["numbers"].items():
        text.append(f"  {name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
    text += ["", "Verdicts:", ""]
    for claim in page["claims"]:
        text += claim_lines(claim)
        if claim["twin"] is not None:
            text.append(f"{'':<11}  its twin: {claim['twin']}")
    return [*text, "", f"Where it fails: {page['fails']}"]
