"""Pages on their way from the repository to the site: links that lead there lead on, and what they name comes along."""

import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
MARKS = re.compile(r"^<!-- (?:results:.+?|end) -->\n+|<!-- (?:results:.+?|end) -->", re.MULTILINE)
INSTEAD = {"results": "docs/results.md", "results/": "docs/results.md"}  # folders, and the page that shows them
# Pages that only the site has, by their titles: a cell of a table that holds one leads there.
MADE = {
    "The command line": "lookup/commands.md",
    "The ledger of claims": "lookup/ledger/index.md",
    "Models to look into": "lookup/models.md",
}


def stage_page(page: str, root: Path, site: Path, places: Mapping[str, str]) -> None:
    """Write one page of the repository where it stands on the site."""
    target = site / places[page]
    target.parent.mkdir(parents=True, exist_ok=True)
    text = (root / page).read_text(encoding="utf-8")
    target.write_text(relink(text, page, root, site, places), encoding="utf-8")


def relink(text: str, page: str, root: Path, site: Path, places: Mapping[str, str]) -> str:
    """The text of a page with its links as they are on the site; code is left alone."""
    here = posixpath.dirname(places[page])

    def follow(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        named = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        return f"{before}{posixpath.relpath(place(named, page, root, site, places), here)}{after}"

    parts = FENCED.split(MARKS.sub("", text))
    moved = "".join(part if i % 2 else LINK.sub(follow, part) for i, part in enumerate(parts))
    for title, made in MADE.items():
        if (site / made).is_file():
            moved = moved.replace(f"| {title} |", f"| [{title}]({posixpath.relpath(made, here)}) |")
    return moved


def place(named: str, page: str, root: Path, site: Path, places: Mapping[str, str]) -> str:
    """Where a file that a page links to stands on the site; what is no page is copied there."""
    named = INSTEAD.get(named, named)
    if named in places:
        return places[named]
    if not (root / named).is_file():
        if (site / named).is_file():  # made for the site
            return named
        raise ValueError(f"{page} links to {named}, which isn't there")
    target = f"files/{Path(named).name}"
    (site / "files").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(root / named, site / target)
    return target
