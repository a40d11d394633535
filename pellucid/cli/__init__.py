"""The command `pellucid`: from words to a verb, from a verb to its function, from any failure to one sentence."""

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pellucid import __version__

ABOUT = """Attention and the transformer from scratch, made visible to the last number.

Every verb explains itself: pellucid VERB --help. The version: pellucid --version."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 when a claim fell, 2 when it could not, with the reason in one sentence."""
    words = list(sys.argv[1:] if words is None else words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that can't write β still gets the numbers
    if words == ["--version"]:
        print(f"pellucid {__version__}")
        return 0
    try:
        with _speaking():
            code = _parse(words)()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has read enough, as in `pellucid shapes | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        return _fail(_sentence(error))
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return _fail("there is not enough memory for this; ask for less")
    except KeyboardInterrupt:
        return _fail("interrupted before the end", code=130)
    return code or 0


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """What the library warns of is said as everything else is. Without Pillow's remarks on damaged images: either they
    can be read all the same, or a sentence says why not."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    log, handler = logging.getLogger("pellucid"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pellucid: %(message)s"))
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        log.removeHandler(handler)


def _parse(words: list[str]) -> Callable[[], int | None]:
    """What the words ask for, ready to be called."""
    import tyro

    from pellucid.cli.verbs import VERBS, Exercises, Lab, Train

    if words[:2] == ["lab", "exercises"]:
        return parsed(lambda: tyro.cli(Exercises, prog="pellucid lab exercises", args=words[2:])).run
    open_verbs = {"train": Train, "lab": Lab}  # what follows the name may be the recipe's, or the experiment's
    if words[:1] and words[0] in open_verbs and len(words) > 1 and not words[1].startswith("-"):
        mine, prog = [word for word in words[1:] if word not in ("--help", "-h")], f"pellucid {words[0]}"
        verb, changes = parsed(lambda: tyro.cli(open_verbs[words[0]], prog=prog, args=mine, return_unknown_args=True))
        return lambda: verb.run(changes + [word for word in words if word in ("--help", "-h")])
    return parsed(
        lambda: tyro.extras.subcommand_cli_from_dict(VERBS, prog="pellucid", description=ABOUT, args=words)
    ).run


def parsed(parse: Callable[[], Any]) -> Any:
    """What tyro makes of the words. It reports mistakes in a box; here they become one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_unboxed(said.getvalue())) from None


def _unboxed(box: str) -> str:
    """The text of tyro's box (a title, rules between sections): what is wrong, which verbs there are, where help is."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("╭╮╰╯│ ")
        if line.startswith(("╭", "╰")) or set(text) <= {"─", "-"}:
            sections.append([])
        if not set(text) <= {"─", "-"}:
            sections[-1].append(text)
        if line.startswith("╭"):
            sections.append([])
    _, message, *others = (" ".join(lines).rstrip(".") for lines in sections if lines)
    others = [part for part in others if part.startswith(("Available", "For full helptext"))]
    return "; ".join([message, *(re.sub("For full helptext, (run|see)", "run", part) for part in others)])


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _fail(sentence: str, code: int = 2) -> int:
    print(f"pellucid: {sentence}", file=sys.stderr)
    return code
