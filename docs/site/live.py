"""What is alive on the site: a trace of every shipped model in the viewer, and the lab with its sliders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch

import pellucid
from pellucid import cli
from pellucid.data import CaptionData, load_captions
from pellucid.data.scenes import SceneConfig
from pellucid.lab import Experiment, Outcome
from pellucid.lab.page import write_lab
from pellucid.views.page import to_html

SAMPLES = Path(cli.__file__).parent / "samples"
SENTENCE = "A man rides a horse."
ABOUT = """---
hide: [navigation, toc]
---

# Models to look into

Every model that comes with the package, looking at something. Point at a picture, move β, change a key, click a head:
your browser computes what comes of it, from the queries and keys that lie in the page. `pellucid attend MODEL PICTURE`
writes such a page of yours.
"""
LAB = """---
hide: [navigation, toc]
---

# The lab's sliders

β, masks, changed keys, the offset of two positions: move a slider, and the page computes softmax(β·q·kᵀ)·v
anew. Below them stand the experiments, with the code that ran. `pellucid lab --out lab.html` writes this page.

<iframe class="live" src="live/lab.html" title="The lab: sliders, and every experiment" loading="lazy"></iframe>

[On a page of its own](live/lab.html)
"""


def stage_models(site: Path, names: Sequence[str]) -> str:
    """Write a page with the viewer for each shipped model."""
    (site / "lookup" / "live").mkdir(parents=True, exist_ok=True)
    parts = [ABOUT]
    for name in names:
        model = pellucid.load(name)
        with torch.no_grad():
            traces = [model.trace(each) for each in shown_to(model)]
        to_html(traces, site / "lookup" / "live" / f"{name}.html", title=f"{name}: what it attends to")
        parts.append(
            f"## {name}\n\n[On a page of its own](live/{name}.html)\n\n"
            f'<iframe class="live" src="live/{name}.html" title="The viewer with {name}" loading="lazy"></iframe>\n'
        )
    (site / "lookup" / "models.md").write_text("\n".join(parts), encoding="utf-8")
    return "lookup/models.md"


def shown_to(model: Any) -> list[Any]:
    """What each kind of model is shown: pictures that lie in the tree, or a sentence."""
    if model.kind == "translator":
        return [SENTENCE]
    if model.kind == "classifier":
        return [SAMPLES / "ship.png", SAMPLES / "automobile.png"]
    if "scenes" in model.name:
        size = model.looks.image
        drawn = load_captions(CaptionData("scenes", size=size, scenes=SceneConfig(train=8, validation=2, test=8)))
        assert drawn.test is not None
        return list(drawn.test.images.read(torch.arange(2)))
    return [Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg", SAMPLES / "flower.jpg"]


def stage_lab(site: Path, outcomes: Sequence[tuple[Experiment, Outcome]]) -> str:
    """Write the lab's page."""
    (site / "lookup" / "live").mkdir(parents=True, exist_ok=True)
    write_lab(outcomes, site / "lookup" / "live" / "lab.html")
    (site / "lookup" / "lab.md").write_text(LAB, encoding="utf-8")
    return "lookup/lab.md"
