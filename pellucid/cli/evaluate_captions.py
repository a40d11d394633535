"""pellucid evaluate, for a captioner: its scores, beside those of captions that were made without looking."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from pellucid.cli.verbs import Evaluate
from pellucid.config import from_json
from pellucid.data.augment import Normalise
from pellucid.data.caption_sources import CaptionData, load_captions
from pellucid.data.captions import CaptionSet, CaptionSplits
from pellucid.data.scenes import SceneSet
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.evaluation import jars
from pellucid.evaluation.captions import CAPTION_METRICS, References, tokenise_captions
from pellucid.evaluation.controls import Controls, controls
from pellucid.evaluation.pointing import Map, Pointing, pointing_at
from pellucid.evaluation.speech import blank_picture, captions_of, describe
from pellucid.hub.loading import normalisation
from pellucid.models.captioner import Captioner
from pellucid.models.pretrained import CONFIG
from pellucid.views.captions import Example, examples_figure
from pellucid.views.figures import check_path, save

BEAM, BATCH, EXAMPLES = 5, 64, 8
TO_CHOOSE = 1000  # scenes on which the map that points best is chosen
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
ROWS = ("shuffled", "blank", "fixed", "people")


@dataclass(frozen=True)
class Speaker:
    """A captioner with what it needs to speak."""

    model: Captioner
    tokenizer: CaptionTokenizer
    normalise: Normalise
    beam: int
    batch: int


def evaluate_captions(asked: Evaluate, model: Captioner, tokenizer: CaptionTokenizer) -> None:
    """Print the figures as a table or as JSON and, if asked for, write what the model says."""
    beam = BEAM if asked.beam is None else asked.beam
    check(asked, model, beam)
    official = [name for name in jars.JAVA_METRICS if getattr(asked, name)]
    for name in official:
        jars.find_jar(name)
    speaker = Speaker(model, tokenizer, normalisation(model), beam, asked.batch or BATCH)
    splits = load_captions(data_of(asked, model))
    part = _part(asked, splits)
    started = time.perf_counter()
    with _progress(asked.model, len(part)) as advance:
        said = captions_of(
            model, tokenizer, part.images, speaker.normalise, beam=beam, batch=speaker.batch, progress=advance
        )
    seconds = time.perf_counter() - started
    if asked.captions is not None:
        write_results(asked.captions, part.ids, said)
    blank = describe(model, tokenizer, blank_picture(model, speaker.normalise), speaker.normalise, beam=beam)[0][0]
    candidates = {str(i): caption for i, caption in enumerate(said)}
    references = {str(i): captions for i, captions in enumerate(part.captions)}
    if asked.examples is not None:
        draw_examples(asked.examples, part, said)
    training = [caption for captions in splits.train.captions for caption in captions]
    found = controls(candidates, references, blank=blank.caption, training=training)
    figures, failed = summary(found, blank.caption), None
    try:
        for name in official:
            with _progress(name.upper(), None):  # its program doesn't say how far it is
                figures |= jars.official(candidates, references, [name])
    except ValueError as error:
        failed = error  # told after the figures that there are
    if isinstance(part, SceneSet):
        figures |= exactness(part, said) | pointing_figures(speaker, part, _others(asked, splits))
        del figures["pointing_by"]
    figures |= {"captions_per_second": len(part) / seconds, "beam": beam, "data": asked.data, "split": asked.split}
    if asked.json:
        print(json.dumps(figures, allow_nan=False))
    else:
        print(table(figures, title=f"{asked.model} on the {len(part):,} {asked.split} images of {asked.data}"))
        if asked.captions is not None:
            print(f"\ncaptions: {asked.captions}")
        if asked.examples is not None:
            print(f"\nexamples: {asked.examples}")
    if failed is not None:
        raise failed


def check(asked: Evaluate, model: Captioner, beam: int) -> None:
    """What was asked for, before the work."""
    if beam < 1:
        raise ValueError(f"--beam is {beam}; expected one or more")
    if asked.confusion is not None:
        raise ValueError("--confusion is for classifiers; this model writes captions")
    if asked.examples is not None:
        check_path(asked.examples)
    if asked.captions is not None and not asked.captions.parent.is_dir():
        raise ValueError(f"the folder {str(asked.captions.parent)!r} doesn't exist; make it first")
    if model.config.encoder.channels != 3:
        raise ValueError(f"captioned images have 3 channels and the model sees {model.config.encoder.channels}")


def data_of(asked: Evaluate, model: Captioner) -> CaptionData:
    """What the model was trained on, if it is asked for by the same name and the model is a run; else what is there."""
    kept = Path(asked.model).expanduser() / CONFIG
    config = CaptionData(asked.data)
    if kept.is_file():
        data = json.loads(kept.read_text(encoding="utf-8")).get("data")
        if isinstance(data, dict) and data.get("name") == asked.data:
            config = from_json(CaptionData, data)
    images = config.images if asked.path is None else asked.path
    return replace(config, images=images, size=model.config.encoder.image)


def summary(found: Controls, blank: str) -> dict[str, Any]:
    """What the JSON holds of the scores: shares, and null where there is nothing to score."""
    return found.model | {
        "interval": {name: list(bounds) for name, bounds in found.interval.items()},
        "shuffled": found.shuffled,
        "blank": found.blank,
        "fixed": found.fixed,
        "people": found.people,
        "fixed_caption": found.fixed_caption,
        "blank_caption": blank,
        "images": found.images,
        "different": found.different,
        "never_said": found.never_said,
        "warning": found.warning,
    }


def scene_figures(speaker: Speaker, scenes: SceneSet, others: CaptionSet | None) -> dict[str, Any]:
    """What counts on scenes: exactly right captions, and looking at what is named; `pointing_by` is the map."""
    said = captions_of(
        speaker.model, speaker.tokenizer, scenes.images, speaker.normalise, beam=speaker.beam, batch=speaker.batch
    )
    return exactness(scenes, said) | pointing_figures(speaker, scenes, others)


def exactness(scenes: SceneSet, said: list[str]) -> dict[str, Any]:
    """How often the caption is the one true sentence: of all, with pairs seen in training or not, and by kind."""
    right = torch.tensor(
        [words.split() == truth.lower().split() for words, (truth, *_) in zip(said, scenes.captions, strict=True)]
    )
    kinds = sorted(set(scenes.kinds))
    return {
        "exact": _share(right),
        "exact_seen": _share(right[~scenes.unseen]),
        "exact_unseen": _share(right[scenes.unseen]),
        "exact_by_kind": {kind: _share(right[torch.tensor([k == kind for k in scenes.kinds])]) for kind in kinds},
    }


def table(figures: dict[str, Any], *, title: str) -> str:
    """The same for people: the official figures times 100, as they stand in papers."""
    lines = [title + f", beam {figures['beam']}", "", f"{'':9}" + "".join(f"{name:>12}" for name in NAMES)]
    for row in ("model", *ROWS):
        values = figures if row == "model" else figures[row]
        cells = ["–" if values is None else f"{100 * values[name]:.1f}" for name in CAPTION_METRICS]
        lines.append(f"{row:9}" + "".join(f"{cell:>12}" for cell in cells))
        if row == "model":
            bounds = [figures["interval"].get(name) for name in CAPTION_METRICS]
            spans = ["" if b is None else f"{100 * b[0]:.1f}–{100 * b[1]:.1f}" for b in bounds]
            lines.append(f"{'  95 %':9}" + "".join(f"{span:>12}" for span in spans))
    lines += ["", *_pairs(_facts(figures))]
    return "\n".join(lines + (["", f"warning: {figures['warning']}"] if figures["warning"] else []))


def draw_examples(path: Path, part: CaptionSet, said: list[str]) -> None:
    """Pictures at equal steps down the list of the model's captions, the best by CIDEr-D first: nobody chose them."""
    ids = [str(i) for i in range(len(said))]
    words = tokenise_captions(dict(zip(ids, said, strict=True)), dict(zip(ids, part.captions, strict=True)))
    scores = References(words[1]).cider_d(words[0])
    order = scores.argsort(kind="stable")[::-1]
    shown = order[np.linspace(0, len(order) - 1, min(EXAMPLES, len(order))).round().astype(int)]
    pixels = part.images.read(torch.from_numpy(shown.copy()))
    examples = [
        Example(picture, said[i], part.captions[i][0], float(scores[i]))
        for picture, i in zip(pixels, shown, strict=True)
    ]
    save(examples_figure(examples), path)


def write_results(path: Path, ids: tuple[str, ...], said: list[str]) -> None:
    """The format of COCO's results: a number where the image has one, its name elsewhere."""
    results = [
        {"image_id": int(name) if name.isdecimal() else name, "caption": caption}
        for name, caption in zip(ids, said, strict=True)
    ]
    path.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _facts(figures: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (name.upper(), f"{100 * figures[name]:.1f}") for name in jars.JAVA_METRICS if name in figures
    ] + [
        ("different captions", f"{figures['different']:,} of {figures['images']:,}"),
        ("words never said", _percent(figures["never_said"]) + " of the references' words"),
        ("captions/s", f"{figures['captions_per_second']:,.1f}"),
        ("of a blank picture", figures["blank_caption"]),
        ("best fixed caption", figures["fixed_caption"]),
    ]  # fmt: skip
    if "exact" in figures:
        facts += [("exact", _percent(figures["exact"]))]
        facts += [(f"  {which} pairs", _percent(figures[f"exact_{which}"])) for which in ("seen", "unseen")]
        facts += [(f"  {kind}", _percent(share)) for kind, share in figures["exact_by_kind"].items()]
        for name, label in (("pointing", "pointing"), ("pointing_rollout", "  through the encoder")):
            said = f"{_percent(figures[name])}, by chance {_percent(figures['pointing_chance'])}"
            facts += [(label, f"{said} ({figures[f'{name}_map']})")]
    return facts


def _pairs(facts: list[tuple[str, str]]) -> list[str]:
    wide = max(len(name) for name, _ in facts)
    return [f"{name:<{wide}}  {value}" for name, value in facts]


def pointing_figures(speaker: Speaker, part: SceneSet, others: CaptionSet | None) -> dict[str, Any]:
    """With the map of one head, or the mean of a layer's or of all, that points best on other scenes.

    Without others it is the mean of all, which is chosen by nobody.
    """
    figures: dict[str, Any] = {}
    for name, through in (("pointing", False), ("pointing_rollout", True)):
        which: Map = _pointed(speaker, others, through).best if isinstance(others, SceneSet) else (None, None)
        found = _pointed(speaker, part, through)
        figures |= {name: found.share(which), f"{name}_map": _called(which), "pointing_chance": found.chance}
        figures[f"{name}_tolerant"] = found.share(which, tolerant=True)
        figures["pointing_tolerant_chance"] = found.tolerant_chance
        figures.setdefault("pointing_by", which)
    return figures


def _pointed(speaker: Speaker, scenes: SceneSet, through: bool) -> Pointing:
    captions = [first for first, *_ in scenes.captions]
    return pointing_at(
        speaker.model,
        speaker.tokenizer,
        scenes.images,
        captions,
        scenes.boxes,
        speaker.normalise,
        through=through,
        batch=speaker.batch,
    )


def _called(which: Map) -> str:
    layer, head = which
    if layer is None:
        return "mean over layers and heads"
    return f"layer {layer}, " + ("mean over heads" if head is None else f"head {head}")


def _part(asked: Evaluate, splits: CaptionSplits) -> CaptionSet:
    found = getattr(splits, asked.split)
    if found is None or not len(found):
        there = ", ".join(name for name in ("train", "validation", "test") if getattr(splits, name))
        raise ValueError(f"{asked.data} has no {asked.split} images; it has {there}")
    return found


def _others(asked: Evaluate, splits: CaptionSplits) -> CaptionSet | None:
    """Images to choose by, none of those that are scored."""
    for name in ("validation", "train", "test"):
        other: CaptionSet | None = getattr(splits, name)
        if name != asked.split and other is not None:
            return other.subset(torch.arange(min(TO_CHOOSE, len(other))))
    return None


def _share(right: torch.Tensor) -> float | None:
    return right.double().mean().item() if len(right) else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Any]:
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
