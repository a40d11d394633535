"""The viewer in a notebook: a widget where a kernel runs, and the same page in a frame where none does."""

import html
from collections.abc import Sequence
from typing import Any

from pellucid.explain.trace import Trace
from pellucid.extras import require
from pellucid.views.bundle import to_bytes
from pellucid.views.page import render_page, viewer_code, viewer_css

anywidget, traitlets = (require(name, "pellucid.show") for name in ("anywidget", "traitlets"))

VIEW = "application/vnd.jupyter.widget-view+json"
HEIGHT = 900  # pixels of the frame


class Viewer(anywidget.AnyWidget):
    """Traces to look at, live in Jupyter and VS Code.

    A notebook that is exported to HTML, or opened again with no kernel, has no widgets: so the self-contained page
    follows in a frame, which hides itself, and isn't loaded, as long as its widget stands on the same page.
    """

    _esm = f"{viewer_code('widget')}\nexport default {{ render: widget_js.render }};\n"
    _css = viewer_css()
    traces = traitlets.List(traitlets.Bytes()).tag(sync=True)
    name = traitlets.Unicode().tag(sync=True)

    def __init__(self, traces: Trace | Sequence[Trace]):
        several = [traces] if isinstance(traces, Trace) else list(traces)
        self.frame = render_page(several)
        super().__init__(traces=[to_bytes(each) for each in several])
        self.name = self.model_id

    def _ipython_display_(self) -> None:
        """Two outputs: exporters take a widget's for its code on a CDN, and would leave out what stands beside it."""
        from IPython.display import display

        bundle: Any = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id}}
        display({**bundle, "text/html": "", "text/plain": repr(self)}, raw=True)
        display({"text/html": self.fallback(), "text/plain": ""}, raw=True)

    def fallback(self) -> str:
        """The page in a frame, to be seen where the widget can't be."""
        hide = f'body:has([data-pellucid="{self.name}"]) #pellucid-{self.name} {{ display: none; }}'
        return (
            f"<style>{hide}</style>"
            f'<iframe id="pellucid-{self.name}" title="attention" loading="lazy" width="100%" height="{HEIGHT}" '
            f'style="border: 0" srcdoc="{html.escape(self.frame)}"></iframe>'
        )


def show(traces: Trace | Sequence[Trace]) -> Viewer:
    """The viewer of a trace, or of several, as the value of a notebook's cell.

    >>> import torch, pellucid
    >>> trace = pellucid.load("vit-cifar10").trace(torch.zeros(3, 32, 32))
    >>> len(show(trace).traces)
    1
    """
    return Viewer(traces)
