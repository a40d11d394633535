"""Pictures for people: figures, the trace as a file, and the viewer. They know nothing of the server.

In a notebook, `pellucid.show(trace)` shows a trace to look at, or several to choose from.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """This module, which can be called: showing is what it is for."""

    def __call__(self, traces: Any) -> Any:
        """The viewer of a trace, or of several, as the value of a notebook's cell."""
        from pellucid.show.widget import Viewer

        return Viewer(list(traces) if isinstance(traces, Sequence) else traces)


sys.modules[__name__].__class__ = _Room
