"""The command `pellucid`: from words to a verb, from a verb to its function, from any failure to one sentence."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from pellucid import __version__

ABOUT = """Attention and the transformer from scratch, made visible to the last number.

Every verb explains itself: pellucid VERB --help. The version: pellucid --version."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 when it could not, with the reason in one sentence."""
    words = list(sys.argv[1:] if words is None else words)
    if words == ["--version"]:
        print(f"pellucid {__version__}")
        return 0
    try:
        _parse(words).run()
    except (ValueError, OSError) as error:
        return _fail(_sentence(error))
    except KeyboardInterrupt:
        return _fail("interrupted before the end", code=130)
    return 0


def _parse(words: list[str]):
    """The verb that the words ask for. tyro reports mistakes in a box; here they become one sentence."""
    import tyro

    from pellucid.cli.verbs import VERBS

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(VERBS, prog="pellucid", description=ABOUT, args=words)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_unboxed(said.getvalue())) from None


def _unboxed(box: str) -> str:
    """The text of tyro's box up to its first rule, with the verbs there are, and where help is."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("╭╮╰╯│ \t")
        if set(text) <= {"─"}:
            sections.append([])
        elif not line.startswith(("╭", "╰")):
            sections[-1].append(text)
    parts = [" ".join(lines).rstrip(".") for lines in sections if lines]
    kept = [part for i, part in enumerate(parts) if i == 0 or part.startswith(("Available", "For full helptext"))]
    return "; ".join(kept).replace("For full helptext, run", "run").replace("For full helptext, see", "run")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _fail(sentence: str, code: int = 2) -> int:
    try:
        print(f"pellucid: {sentence}", file=sys.stderr)
    except BrokenPipeError:
        os.close(2)
    return code
