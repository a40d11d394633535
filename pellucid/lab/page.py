"""The lab as one HTML file: the ledger, the page of every experiment, and sliders that the browser computes for."""

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pellucid.lab.frame import Experiment, Result, seeded
from pellucid.lab.ledger import page
from pellucid.lab.sinusoids import Sinusoids
from pellucid.views.page import VIEWER_FOLDER, self_contained, viewer_code, viewer_css

TOKENS, WIDTH = 8, 16  # of the attention under the sliders; its values have two numbers, so that they can be drawn


def told(experiment: Experiment, parameters: Any, result: Result) -> dict[str, Any]:
    """`ledger.page`, with how each claim's number stands to its tolerance; what is no finite number is None."""
    found = page(experiment, parameters, result)
    for claim, entry in zip(result.claims, found["claims"], strict=True):
        entry["relation"] = claim.relation
    return finite(found)


def finite(value: Any) -> Any:
    """The same data without NaN and ∞, which JSON has no words for.

    >>> finite({"x": [1.0, math.nan], "y": ("a", math.inf)})
    {'x': [1.0, None], 'y': ['a', None]}
    """
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def live(seed: int = 2) -> dict[str, Any]:
    """What the sliders begin with: queries, keys and values of one head, and how positions are encoded."""
    with seeded(seed):
        q, k = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
        v = torch.randn(TOKENS, 2, dtype=torch.float64)
    positions = Sinusoids()
    return {
        "q": q.tolist(),
        "k": k.tolist(),
        "v": v.tolist(),
        "positions": {"count": positions.positions, "width": positions.width, "base": positions.base},
    }


def lab_page(found: Iterable[tuple[Experiment, Result]]) -> str:
    """The HTML file as text, from experiments that ran as they are."""
    data = {"live": live(), "experiments": [told(one, one.parameters(), result) for one, result in found]}
    if not data["experiments"]:
        raise ValueError("the lab's page needs one experiment or more; got none")
    # Inside a script "<" could end it; as an escape it is the same JSON.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    code = f"{viewer_code('lab/lab')}\nlab_js.showLab(document);\n"
    waiting = "This page computes as you move its sliders: it needs JavaScript, and nothing from the network."
    body = f'<main><p>{waiting}</p></main>\n<script type="application/json">{text}</script>'
    return self_contained("The lab: every claim about attention, run and measured", lab_css(), code, body)


def to_html(found: Iterable[tuple[Experiment, Result]], path: Path) -> None:
    """Write the page to a file."""
    check_html(path)
    path.write_text(lab_page(found), encoding="utf-8", newline="\n")


def check_html(path: Path) -> None:
    """Refuse what is no page's name, before anything runs for it."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page is .html; got {str(path)!r}")


@cache
def lab_css() -> str:
    """The viewer's style and the lab's."""
    return f"body {{ margin: 0; }}\n{viewer_css()}{(VIEWER_FOLDER / 'lab' / 'lab.css').read_text(encoding='utf-8')}"
