"""The site, from the tree: lessons and experiments are executed, what is public is described, nothing is fetched.

    python docs/site/build.py                   # into .site/html; opens from disk
    python docs/site/build.py --quick --out X   # one lesson, one experiment, one model, no API: for tests

Fails at a link that leads nowhere, at a claim that doesn't stand, and at any warning of mkdocs.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from lessons import stage_exercises, stage_lessons
from live import stage_lab, stage_models
from lookup import stage_api, stage_commands, stage_ledger
from nav import LESSONS, ROOT, placed, sections
from staging import stage_page

import pellucid
from pellucid.cli.verbs import VERBS
from pellucid.lab import EXPERIMENTS

HERE = Path(__file__).parent
QUICK = ("shapes",)  # an experiment that takes no second
Nav = list[Any]  # pages, and {heading: pages}


def stage(site: Path, cache: Path, quick: bool = False) -> dict[str, list[str]]:
    """Write every page; give those that were made, by the section that they belong to."""
    outcomes = stage_ledger(site, cache, QUICK if quick else tuple(EXPERIMENTS), workers=1 if quick else 2)
    models = ["vit-cifar10"] if quick else pellucid.shipped()
    made = {
        "*lessons": stage_lessons(site, cache, LESSONS[:1] if quick else LESSONS),
        "*exercises": stage_exercises(site),
        "*live": [stage_models(site, models), stage_lab(site, outcomes)],
        "*ledger": ["lookup/ledger/index.md"],
        "*commands": [stage_commands(site, ["shapes"] if quick else list(VERBS))],
        "*api": [] if quick else stage_api(site),
    }
    places = placed()
    for page in dict.fromkeys(["docs/site/index.md", *(page for section in sections() for page in section.pages)]):
        stage_page(page, ROOT, site, places)
    shutil.copytree(HERE / "theme", site / "theme", dirs_exist_ok=True)
    return made


def navigation(made: dict[str, list[str]]) -> Nav:
    """The tabs, each with its pages under their headings."""
    places = placed()
    tabs: Nav = ["index.md"]
    for section in sections():
        pages: Nav = [places[section.first]]
        for heading, names in section.groups.items():
            group: Nav = [page for name in names for page in made.get(name, [places.get(name, "")])]
            if heading == "API":
                group = [{Path(page).stem: page} for page in made["*api"]]
            pages += [{heading: group}] if heading and group else group
        tabs.append({section.title: pages})
    return tabs


def configure(folder: Path, out: Path, nav: Nav) -> Path:
    """Write what mkdocs is told: mkdocs.yml with the folders and the pages."""
    text = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("EXAMPLES", f'"{HERE / "examples.py"}:Examples"').replace("PACKAGE", f'"{ROOT}"')
    told = {"docs_dir": str(folder / "pages"), "site_dir": str(out), "nav": nav}
    path = folder / "mkdocs.yml"
    path.write_text(text + yaml.safe_dump(told, allow_unicode=True), encoding="utf-8")
    return path


def build(out: Path, folder: Path, quick: bool = False) -> None:
    """Make the site; a warning is an error."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    from mkdocs.commands.build import build as make
    from mkdocs.config import load_config

    shutil.rmtree(folder / "pages", ignore_errors=True)
    (cache := folder / "cache").mkdir(parents=True, exist_ok=True)
    nav = navigation(stage(folder / "pages", cache, quick))
    make(load_config(str(configure(folder, out, nav)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".site" / "html", help="folder of the site")
    parser.add_argument("--quick", action="store_true", help="a little of each, and no API")
    options, begun = parser.parse_args(), time.perf_counter()
    build(options.out.resolve(), ROOT / ".site", options.quick)
    pages = sum(1 for _ in options.out.rglob("*.html"))
    print(f"{pages} pages in {time.perf_counter() - begun:.0f} s: {(options.out / 'index.html').resolve().as_uri()}")


if __name__ == "__main__":
    sys.exit(main())
