"""How good a captioner is: its scores beside those of not looking; on scenes, whether it is right and looks there."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pellucid.data.captions import CaptionSet
from pellucid.data.reader import PictureReader
from pellucid.data.scenes import SceneSet
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.decode.captions import caption_all, write_captions
from pellucid.evaluation import jars
from pellucid.evaluation.captions import References, tokenise_captions
from pellucid.evaluation.controls import controls
from pellucid.evaluation.pointing import Pointing, PointingMap, pointing_at
from pellucid.models.captioner import Captioner
from pellucid.processes import Processes

TO_CHOOSE = 1000  # scenes on which the map that points best is chosen


@dataclass(frozen=True, eq=False)
class CaptioningReport:
    """What a captioner said of captioned images, and the figures of it. Shares, not percent.

    pointing_by: on scenes, the layer and head whose map points best on other scenes; None elsewhere.

    >>> import pellucid
    >>> from pellucid.data import CaptionData, load_captions
    >>> from pellucid.data.scenes import SceneConfig
    >>> scenes = load_captions(CaptionData("scenes", size=(48, 48), scenes=SceneConfig(train=4, validation=2, test=4)))
    >>> speaker = pellucid.load("captioner-scenes")
    >>> report = evaluate_captioner(speaker.model, speaker.tokenizer, scenes.test, beam=1)
    >>> len(report.captions), 0 <= report.figures["exact"] <= 1
    (4, True)
    """

    images: CaptionSet
    captions: list[str]
    figures: dict[str, Any]
    pointing_by: PointingMap | None = None

    def official(self, metric: str) -> dict[str, float]:
        """METEOR or SPICE by its own program, which takes a while."""
        candidates = {str(i): caption for i, caption in enumerate(self.captions)}
        references = {str(i): captions for i, captions in enumerate(self.images.captions)}
        return jars.official(candidates, references, [metric])

    def examples(self, count: int = 8) -> list[tuple[int, float]]:
        """Places at equal steps down the list of captions, the best by CIDEr-D first, and that: nobody chose them."""
        ids = [str(i) for i in range(len(self.captions))]
        said, meant = tokenise_captions(
            dict(zip(ids, self.captions, strict=True)), dict(zip(ids, self.images.captions, strict=True))
        )
        scores = References(meant).cider_d(said)
        order = scores.argsort(kind="stable")[::-1]
        places = order[np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)]
        return [(int(place), float(scores[place])) for place in places]

    def save_captions(self, path: Path) -> None:
        """The format of COCO's results: a number where the image has one, its name elsewhere."""
        results = [
            {"image_id": int(name) if name.isdecimal() else name, "caption": caption}
            for name, caption in zip(self.images.ids, self.captions, strict=True)
        ]
        path.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


class CaptionAnswers(Protocol):
    """Where captions are kept as they come, so that an evaluation goes on after a kill."""

    def begin(self, names: Sequence[str]) -> dict[int, str]:
        """What there is already, by the places of the images."""
        ...

    def add(self, places: list[int], captions: list[str]) -> None: ...

    def check_same(self, place: int, caption: str) -> None:
        """A sentence if what is kept of an image is another model's caption."""
        ...


def evaluate_captioner(
    model: Captioner,
    tokenizer: CaptionTokenizer,
    images: CaptionSet,
    *,
    training: CaptionSet | None = None,
    others: CaptionSet | None = None,
    beam: int = 5,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
    processes: Processes | None = None,
    answers: CaptionAnswers | None = None,
) -> CaptioningReport:
    """Caption all images, and compare with what people said, and with what is said without looking.

    training: captions among which the best fixed one is searched for; those of the images unless given.
    processes: write the captions together. answers: where they are kept as they come; those that are there stay.
    others: scenes, none of `images`, on which it is chosen which map points best.

    >>> import pellucid
    >>> from pellucid.data import CaptionData, load_captions
    >>> from pellucid.data.scenes import SceneConfig
    >>> scenes = load_captions(CaptionData("scenes", size=(48, 48), scenes=SceneConfig(train=4, validation=2, test=4)))
    >>> speaker = pellucid.load("captioner-scenes")
    >>> len(evaluate_captioner(speaker.model, speaker.tokenizer, scenes.test, beam=1).captions)
    4
    """
    started = time.perf_counter()
    how: dict[str, Any] = {"beam": beam, "batch": batch, "progress": progress, "processes": processes}
    if answers is not None:
        how |= {"known": (known := answers.begin(images.ids)), "keep": answers.add}
        for place in list(known)[:1]:
            pixels = images.images.read(torch.tensor([place]))
            answers.check_same(place, write_captions(model, tokenizer, pixels, beam=beam)[0][0].text)
    captions = caption_all(model, tokenizer, images.images, **how)
    seconds = time.perf_counter() - started
    blank = write_captions(model, tokenizer, PictureReader.of(model.config.encoder).blank()[None], beam=beam)[0][0].text
    compared = controls(
        {str(i): caption for i, caption in enumerate(captions)},
        {str(i): several for i, several in enumerate(images.captions)},
        blank=blank,
        training=None if training is None else [caption for several in training.captions for caption in several],
    )
    figures = compared.figures | {"blank_caption": blank}
    pointing_by = None
    if isinstance(images, SceneSet):
        pointing, pointing_by = measure_pointing(model, tokenizer, images, others, batch)
        figures |= measure_exactness(images, captions) | pointing
    figures |= {"captions_per_second": len(images) / seconds, "beam": beam}
    return CaptioningReport(images, captions, figures, pointing_by)


def measure_exactness(scenes: SceneSet, captions: list[str]) -> dict[str, Any]:
    """How often the caption is the one true sentence: of all, with pairs seen in training or not, and by kind."""
    pairs = zip(captions, scenes.captions, strict=True)
    right = torch.tensor([caption.split() == truth.lower().split() for caption, (truth, *_) in pairs])
    kinds = sorted(set(scenes.kinds))
    return {
        "exact": _share(right),
        "exact_seen": _share(right[~scenes.unseen]),
        "exact_unseen": _share(right[scenes.unseen]),
        "exact_by_kind": {kind: _share(right[torch.tensor([k == kind for k in scenes.kinds])]) for kind in kinds},
    }


def measure_pointing(
    model: Captioner, tokenizer: CaptionTokenizer, scenes: SceneSet, others: CaptionSet | None, batch: int
) -> tuple[dict[str, Any], PointingMap]:
    """With the map of one head, or the mean of a layer's or of all, that points best on other scenes; and which it is.

    Without others it is the mean of all, which is chosen by nobody.
    """
    figures: dict[str, Any] = {}
    choices: list[PointingMap] = []
    if others is not None:
        others = others.subset(torch.arange(min(TO_CHOOSE, len(others))))

    def point(at: SceneSet, through: bool) -> Pointing:
        captions = [first for first, *_ in at.captions]
        return pointing_at(model, tokenizer, at.images, captions, at.boxes, through=through, batch=batch)

    for name, through in (("pointing", False), ("pointing_rollout", True)):
        choice: PointingMap = point(others, through).best if isinstance(others, SceneSet) else (None, None)
        pointing = point(scenes, through)
        figures |= {name: pointing.share(choice), f"{name}_map": name_map(choice), "pointing_chance": pointing.chance}
        figures[f"{name}_tolerant"] = pointing.share(choice, tolerant=True)
        figures["pointing_tolerant_chance"] = pointing.tolerant_chance
        choices.append(choice)
    return figures, choices[0]


def name_map(choice: PointingMap) -> str:
    """Which map it is, in words.

    >>> name_map((None, None)), name_map((1, None)), name_map((0, 3))
    ('mean over layers and heads', 'layer 1, mean over heads', 'layer 0, head 3')
    """
    layer, head = choice
    if layer is None:
        return "mean over layers and heads"
    return f"layer {layer}, " + ("mean over heads" if head is None else f"head {head}")


def _share(right: Tensor) -> float | None:
    return right.double().mean().item() if len(right) else None
