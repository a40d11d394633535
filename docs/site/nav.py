"""Which page stands where: four kinds of pages, each with its own voice. What isn't named here is a task of its own."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LESSONS = tuple(sorted((ROOT / "docs").glob("[0-9][0-9]_*.py")))


class Section(NamedTuple):
    """A tab of the site: its folder, its heading, and its pages by their path in the repository, the first one its index."""

    folder: str
    title: str
    pages: tuple[str, ...]


LEARN = Section("learn", "Learn", ("docs/learn.md",))  # lessons and exercises follow, as they are executed
DO = Section(
    "do",
    "Do",
    (
        "docs/do.md",
        "docs/look.md",
        "docs/attend.md",
        "docs/fused.md",
        "docs/folder.md",
        "docs/finetune.md",
        "docs/mine.md",
        "docs/translate.md",
        "docs/many.md",
        "docs/proxy.md",
        "docs/paper.md",
    ),
)
UNDERSTAND = Section(
    "understand",
    "Understand",
    (
        "docs/ideas.md",
        "docs/explanation.md",
        "docs/limits.md",
        "docs/comparisons.md",
        "ARCHITECTURE.md",
    ),
)
LOOK_UP = Section(
    "lookup",
    "Look up",
    (
        "docs/lookup.md",
        "docs/parts.md",
        "docs/watch.md",
        "docs/train.md",
        "docs/caption.md",
        "docs/explain.md",
        "docs/serve.md",
        "docs/trace.md",
        "docs/results.md",
        "docs/glossary.md",
        "docs/stability.md",
        "docs/security.md",
        "CHANGELOG.md",
        "LOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
    ),
)


def sections(root: Path = ROOT) -> list[Section]:
    """The four kinds with the pages that are there; a page that no kind names is something to do.

    >>> [section.title for section in sections()]
    ['Learn', 'Do', 'Understand', 'Look up']
    """
    four = [LEARN, DO, UNDERSTAND, LOOK_UP]
    named = {page for section in four for page in section.pages}
    others = [f"docs/{path.name}" for path in sorted((root / "docs").glob("*.md")) if f"docs/{path.name}" not in named]
    asked = [section._replace(pages=(*section.pages, *others)) if section is DO else section for section in four]
    return [
        section._replace(pages=tuple(page for page in section.pages if (root / page).is_file())) for section in asked
    ]


def placed(root: Path = ROOT) -> dict[str, str]:
    """Where each file of the repository that is a page stands on the site."""
    places = {"docs/site/index.md": "index.md", "README.md": "index.md"}
    for section in sections(root):
        for i, page in enumerate(section.pages):
            name = "index.md" if i == 0 else Path(page).name.lower()
            places[page] = f"{section.folder}/{name}"
    for lesson in LESSONS:
        places[f"docs/{lesson.name}"] = f"learn/{lesson.stem}.md"
    return places
