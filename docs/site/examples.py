"""Docstrings on the site: their examples (`>>>`) are set as code."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^[ \t]*>>> .*\n?(?:^[ \t]*\S.*\n?)*)+", re.MULTILINE)


class Examples(Extension):
    """Fences every example of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    r"""The text with its examples as blocks of code.

    >>> print(fence_examples("Adds.\n\n>>> 1 + 1\n2\n"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
