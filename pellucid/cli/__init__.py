"""The command `pellucid`: from words to a verb, from a verb to its function, from any failure to one sentence."""

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
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
    """What the words ask for, ready to be called: of `pellucid VERB`, the function VERB in the file VERB.py."""
    import tyro

    from pellucid.cli.verbs import VERBS, ExercisesOptions

    verb, rest, changes = words[0] if words else "", words[1:], ()
    if words[:2] == ["lab", "exercises"]:
        verb = "exercises"
        options = parse_words(lambda: tyro.cli(ExercisesOptions, prog="pellucid lab exercises", args=words[2:]))
    elif verb in ("train", "lab", "sweep", "rate") and rest and not rest[0].startswith("-"):
        # What follows the name may be the recipe's, or the experiment's; so may the help that is asked for.
        mine, help_words = ([w for w in rest if (w in ("--help", "-h")) == asks] for asks in (False, True))
        how = {"prog": f"pellucid {verb}", "args": mine, "return_unknown_args": True}
        options, unknown = parse_words(lambda: tyro.cli(VERBS[verb], **how))
        changes = (unknown + help_words,)
    else:
        how = {"prog": "pellucid", "description": ABOUT, "args": words}
        options = parse_words(lambda: tyro.extras.subcommand_cli_from_dict(VERBS, **how))
    return lambda: getattr(import_module(f"pellucid.cli.{verb}"), verb)(options, *changes)


def parse_words(parse: Callable[[], Any]) -> Any:
    """What tyro makes of the words. It reports mistakes in a box; here they become one sentence."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return parse()
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_unbox(box.getvalue())) from None


def _unbox(box: str) -> str:
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
