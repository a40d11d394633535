"""The lab as one HTML file: the ledger, the page of every experiment, and sliders that the browser computes for."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pellucid.lab.frame import Experiment, Outcome, seeded
from pellucid.lab.ledger import describe_experiment
from pellucid.lab.sinusoids import SinusoidsSettings
from pellucid.views.page import VIEWER_FOLDER, self_contained, viewer_code, viewer_css

TOKENS, WIDTH = 8, 16  # of the attention under the sliders; its values have two numbers, so that they can be drawn


def slider_data(seed: int = 2) -> dict[str, Any]:
    """What the sliders begin with: queries, keys and values of one head, and how positions are encoded."""
    with seeded(seed):
        q, k = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
        v = torch.randn(TOKENS, 2, dtype=torch.float64)
    settings = SinusoidsSettings()
    positions = {"count": settings.positions, "width": settings.width, "base": settings.base}
    return {"q": q.tolist(), "k": k.tolist(), "v": v.tolist(), "positions": positions}


def lab_page(outcomes: Iterable[tuple[Experiment, Outcome]]) -> str:
    """The HTML file as text, from experiments that ran as they are."""
    data = {
        "live": slider_data(),
        "experiments": [describe_experiment(one, one.parameters(), outcome) for one, outcome in outcomes],
    }
    if not data["experiments"]:
        raise ValueError("the lab's page needs one experiment or more; got none")
    # Inside a script "<" could end it; as an escape it is the same JSON.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    code = f"{viewer_code('lab/lab')}\nlab_js.showLab(document);\n"
    waiting = "This page computes as you move its sliders: it needs JavaScript, and nothing from the network."
    body = f'<main><p>{waiting}</p></main>\n<script type="application/json">{text}</script>'
    return self_contained("The lab: every claim about attention, run and measured", lab_css(), code, body)


def write_lab(outcomes: Iterable[tuple[Experiment, Outcome]], path: Path) -> None:
    """Write the page to a file."""
    check_html(path)
    path.write_text(lab_page(outcomes), encoding="utf-8", newline="\n")


def check_html(path: Path) -> None:
    """Refuse what is no page's name, before anything runs for it."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page is .html; got {str(path)!r}")


@cache
def lab_css() -> str:
    """The viewer's style and the lab's."""
    return f"body {{ margin: 0; }}\n{viewer_css()}{(VIEWER_FOLDER / 'lab' / 'lab.css').read_text(encoding='utf-8')}"
