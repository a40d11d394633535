"""Which page stands where: four kinds of pages, each with its own voice. What isn't named here is a task of its own."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LESSONS = tuple(sorted((ROOT / "docs").glob("[0-9][0-9]_*.py")))


class Section(NamedTuple):
    """A tab of the site: its folder, its title, its first page, and the others under headings (or under none, "").

    Pages are named by their path in the repository; what has a `*` is made, and stands where the star is.
    """

    folder: str
    title: str
    first: str
    groups: dict[str, tuple[str, ...]]

    @property
    def pages(self) -> list[str]:
        """Its pages that lie in the repository."""
        return [self.first, *(page for group in self.groups.values() for page in group if not page.startswith("*"))]


LEARN = Section("learn", "Learn", "docs/learn.md", {"Lessons": ("*lessons",), "Exercises": ("*exercises",)})
DO = Section(
    "do",
    "Do",
    "docs/do.md",
    {
        "Look": ("docs/attend.md", "docs/look.md", "docs/fused.md", "docs/paper.md"),
        "Train": ("docs/folder.md", "docs/own.md", "docs/finetune.md", "docs/many.md"),
        "Ask": ("docs/describe.md", "docs/translate.md", "docs/proxy.md"),
    },
)
UNDERSTAND = Section(
    "understand",
    "Understand",
    "docs/ideas.md",
    {"": ("docs/explanation.md", "docs/record.md", "docs/limits.md", "docs/comparisons.md", "ARCHITECTURE.md")},
)
LOOK_UP = Section(
    "lookup",
    "Look up",
    "docs/lookup.md",
    {
        "Alive": ("*live",),
        "": ("*ledger", "*commands"),
        "API": ("*api",),
        "In full": (
            "docs/parts.md",
            "docs/watch.md",
            "docs/train.md",
            "docs/caption.md",
            "docs/viewer.md",
            "docs/explain.md",
            "docs/serve.md",
        ),
        "Facts": ("docs/results.md", "docs/trace.md", "docs/glossary.md", "docs/stability.md", "docs/security.md"),
        "The project": ("CHANGELOG.md", "LOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    },
)
TASKS = ("attend", "fused", "paper", "folder", "describe", "many", "proxy")  # every block of them is run by a test
NAMES = {"SECURITY.md": "weakness.md"}  # else it would lie where docs/security.md does


def sections(root: Path = ROOT) -> list[Section]:
    """The four kinds with the pages that are there; a page that no kind names is something to do.

    >>> [section.title for section in sections()]
    ['Learn', 'Do', 'Understand', 'Look up']
    """
    four = [LEARN, DO, UNDERSTAND, LOOK_UP]
    named = {page for section in four for page in section.pages}
    there = [f"docs/{path.name}" for path in sorted((root / "docs").glob("*.md"))]
    more = {"More": tuple(page for page in there if page not in named)}
    asked = [section._replace(groups=section.groups | more) if section is DO else section for section in four]
    return [
        section._replace(
            groups={
                heading: kept
                for heading, pages in section.groups.items()
                if (kept := tuple(page for page in pages if page.startswith("*") or (root / page).is_file()))
            }
        )
        for section in asked
    ]


def placed(root: Path = ROOT) -> dict[str, str]:
    """Where each file of the repository that is a page stands on the site."""
    places = {"docs/site/index.md": "index.md", "README.md": "index.md"}
    for section in sections(root):
        for page in section.pages:
            name = "index.md" if page == section.first else NAMES.get(page, Path(page).name.lower())
            places[page] = f"{section.folder}/{name}"
    for lesson in LESSONS:
        places[f"docs/{lesson.name}"] = f"learn/{lesson.stem}.md"
    return places
