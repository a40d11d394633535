"""Pages to look things up in, made from what is there: every public name, every command, every claim."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any

from lessons import fenced, source_digest

import pellucid
from pellucid.cli.verbs import VERBS
from pellucid.lab import EXPERIMENTS, Claim, Experiment, Outcome, draw_panels
from pellucid.lab.ledger import failures, run_all
from pellucid.views.figures import save_figure

VERDICTS = {"true": "true", "false": "false", "conditional": "true under a condition"}


def public_names() -> dict[str, dict[str, Any]]:
    """Every public name with what it stands for, by the module that offers it."""
    offered = {"pellucid": {name: getattr(pellucid, name) for name in sorted(pellucid.__all__)}}
    for room in pellucid._ROOMS:
        module = importlib.import_module(f"pellucid.{room}")
        names = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        inner = {name: value for name, value in names.items() if isinstance(value, ModuleType)}
        offered[module.__name__] = {name: value for name, value in names.items() if name not in inner}
        for name, value in inner.items():
            offered[f"{module.__name__}.{name}"] = {
                each: got
                for each, got in vars(value).items()
                if callable(got) and getattr(got, "__module__", "") == value.__name__ and not each.startswith("_")
            }
    return {module: names for module, names in offered.items() if names}


def stage_api(site: Path) -> list[str]:
    """Write a page for each module: what it is, and every name that it offers, with an example."""
    folder, pages = site / "lookup" / "api", []
    folder.mkdir(parents=True, exist_ok=True)
    for module, names in public_names().items():
        about = (importlib.import_module(module).__doc__ or "").partition("\n")[0].partition(": ")
        said = about[2] if module == "pellucid" else "".join(about)
        lines = [f"# {module}", "", said[:1].upper() + said[1:], ""]
        for name, value in names.items():
            lines += [f"::: {source_name(module, name, value)}", ""]
        (folder / f"{module}.md").write_text("\n".join(lines), encoding="utf-8")
        pages.append(f"lookup/api/{module}.md")
    return pages


def source_name(module: str, name: str, value: object) -> str:
    """What a name is called in the sources: a function that is called as its file is would be taken for the file."""
    home = getattr(value, "__module__", "")
    return f"{home}.{name}" if home.rpartition(".")[2] == name else f"{module}.{name}"


def stage_commands(site: Path, verbs: Sequence[str]) -> str:
    """Write what every verb of the command line says of itself."""
    lines = ["# The command line", "", "What each verb takes, as `pellucid VERB --help` says it.", ""]
    with ThreadPoolExecutor(2) as pool:
        helps = pool.map(command_help, verbs)
    for verb, text in zip(verbs, helps, strict=True):
        example = re.search(r"Example: (.+)", VERBS[verb].__doc__ or "")
        lines += [f"## pellucid {verb}", ""]
        lines += [fenced(example[1], "sh"), ""] if example else []
        lines += [fenced(text, "text"), ""]
    (site / "lookup").mkdir(parents=True, exist_ok=True)
    (site / "lookup" / "commands.md").write_text("\n".join(lines), encoding="utf-8")
    return "lookup/commands.md"


def command_help(verb: str) -> str:
    """What the verb prints when it is asked for help."""
    code = f"import sys; from pellucid.cli import main; sys.exit(main(['{verb}', '--help']))"
    environment = {
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PYTHONPATH": str(Path(pellucid.__file__).parents[1]),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    lines = (line.rstrip() for line in done.stdout.strip().splitlines())
    return "\n".join(line if line[:1] in "╭│╰" else fill(line, 100) for line in lines)


def stage_ledger(site: Path, cache: Path, names: Sequence[str], workers: int = 2) -> list[tuple[Experiment, Outcome]]:
    """Run these experiments; write the ledger, a page for each claim, and figures; fail if a claim falls."""
    asked = [EXPERIMENTS[name] for name in names]
    outcomes = [(one, one()) for one in asked] if workers == 1 else list(run_all(asked, workers))
    if fallen := failures(claim for _, outcome in outcomes for claim in outcome.claims):
        raise ValueError("; ".join(fallen))
    folder = site / "lookup" / "ledger"
    folder.mkdir(parents=True, exist_ok=True)
    for one, outcome in outcomes:
        drawn = cache / f"{one.name}-{source_digest()}.svg"
        if not drawn.is_file():
            save_figure(draw_panels(outcome.panels, one.title), drawn)
        (folder / f"{one.name}.svg").write_bytes(drawn.read_bytes())
        for claim in outcome.claims:
            (folder / f"{claim.id}.md").write_text(claim_page(one, claim), encoding="utf-8")
    (folder / "index.md").write_text(ledger_page(outcomes), encoding="utf-8")
    return outcomes


def ledger_page(outcomes: Iterable[tuple[Experiment, Outcome]]) -> str:
    """Every claim in a line, under the experiment that decides it."""
    outcomes = list(outcomes)
    claims = [claim for _, outcome in outcomes for claim in outcome.claims]
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    lines = [
        "# The ledger of claims",
        "",
        f"{len(claims)} sentences about attention, each put to the test when this site was built: {counts['true']} are "
        f"true, {counts['false']} false, {counts['conditional']} true under a condition. Every true or false one has a "
        "twin: a measurement that must come out the other way. Each leads to its page, with the numbers and the code.",
    ]
    for one, outcome in outcomes:
        lines += [
            "",
            f"## {one.title}",
            "",
            one.statement,
            "",
            "| what is said | verdict | measured |",
            "| --- | --- | ---: |",
        ]
        for claim in outcome.claims:
            lines.append(
                f"| [{escaped(claim.statement)}]({claim.id}.md) | {coloured(claim.verdict)} | {claim.measured:.3g} |"
            )
    return "\n".join(lines) + "\n"


def claim_page(one: Experiment, claim: Claim) -> str:
    """One claim: its verdict, every number that decided it, its twin, and the experiment."""
    verdict = coloured(claim.verdict, VERDICTS[claim.verdict].capitalize())
    sentence = f"{verdict}. {claim.truth}".strip()
    rows = [(case, "as said") for case in claim.holds] + [(case, "not so") for case in claim.breaks]
    rows += [(claim.twin, "its twin")] if claim.twin else []
    return "\n".join(
        [
            f"# {escaped(claim.statement)}",
            "",
            sentence,
            "",
            f"To hold, a number has to be {claim.relation} {claim.tolerance:g}. When this site was built it was:",
            "",
            "| of what | measured | case |",
            "| --- | ---: | --- |",
            *(f"| {escaped(case.what)} | {case.value:.3g} | {what} |" for case, what in rows),
            "",
            f"## {one.title}",
            "",
            one.statement,
            "",
            fenced(one.formula, "text"),
            "",
            f"**Predict first.** {one.predict}",
            "",
            f"![{one.title}: what was measured]({one.name}.svg)",
            "",
            f"**Where it isn't so.** {one.fails}",
            "",
            fenced(f"pellucid lab {one.name} --figure {one.name}.png", "sh"),
            "",
            '??? note "The code that ran"',
            "",
            fenced(one.code, "python", "    "),
            "",
            f"Known as `{claim.id}`. [The whole ledger](index.md)",
            "",
        ]
    )


def coloured(verdict: str, said: str = "") -> str:
    return f'<span class="verdict-{verdict}">{said or VERDICTS[verdict]}</span>'


def escaped(text: str) -> str:
    """A sentence that Markdown takes for nothing else."""
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", text)
