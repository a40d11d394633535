"""pellucid attend: one page that shows what a model looks at in pictures of yours."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pellucid.cli.caption import pictures
from pellucid.cli.verbs import Attend
from pellucid.data.images import ImageSet, decode
from pellucid.evaluation.speech import describe
from pellucid.explain.faithfulness import Faithfulness, faithfulness
from pellucid.explain.heads import CaptionHealth, caption_health
from pellucid.explain.maps import Map, Method
from pellucid.explain.timelapse import timelapse
from pellucid.explain.trace import Trace, trace, trace_caption
from pellucid.hub.loading import kind_of, load, load_captioner, normalisation
from pellucid.models.captioner import Captioner
from pellucid.models.vit import ViT
from pellucid.training.distributed import pick_device
from pellucid.training.history import checkpoints_of, model_at
from pellucid.views import draw
from pellucid.views.bundle import SUFFIX, save_trace
from pellucid.views.figures import check_path, save
from pellucid.views.page import to_html
from pellucid.views.reports import BASELINE, faithfulness_figure

PAGES = (".html", ".htm")
NAMED = 3  # answers that are printed of a picture
STEPS = 16  # points of a curve of faithfulness

Watched = tuple[Trace, str]  # and what the model says, as people read it


def attend(asked: Attend) -> None:
    """Watch a model look at every picture that can be read; the others get a sentence each, and exit code 2."""
    _check_files(asked)
    methods: list[Method] = [cast(Method, method.replace("-", " ")) for method in asked.method]
    paths = pictures(asked.images)
    watch_one, model = _watcher(asked, methods)
    found: list[tuple[Path, Watched]] = []
    for path in paths:
        try:
            found.append((path, watch_one(path)))
        except ValueError as error:
            if len(paths) == 1:
                raise
            print(f"pellucid: {error}", file=sys.stderr)
    if not found:
        raise ValueError(f"none of {len(paths)} pictures could be read")
    traces = [seen for _, (seen, _) in found]
    measured = _measured(model, methods, traces) if asked.faithfulness else None
    health = _health(traces) if isinstance(model, Captioner) else {}
    files = _written(asked, traces, measured)
    if asked.json:
        print(json.dumps(_summary(asked, found, files, measured, health), allow_nan=False))
    else:
        for path, (_, said) in found:
            print(f"{path}  {said}")
        for method, each in health.items():
            for alarm in each.alarms:
                print(f"beware: by {method}, {alarm}")
        _tell(files, measured)
    if len(found) < len(paths):
        raise ValueError(f"{len(paths) - len(found)} of {len(paths)} pictures could not be read")


def _check_files(asked: Attend) -> None:
    """Before the work, not after it."""
    if asked.out.suffix.lower() not in PAGES:
        raise ValueError(f"--out is {str(asked.out)!r}; expected a page, as report.html")
    if asked.trace is not None and asked.trace.suffix != SUFFIX:
        raise ValueError(f"--trace is {str(asked.trace)!r}; expected a file that ends in {SUFFIX}")
    for path in (asked.out, asked.trace):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    if asked.heads is not None:
        check_path(asked.heads)
    if asked.lapse is not None:
        check_path(asked.lapse)
        if len(checkpoints_of(Path(asked.model).expanduser())) == 0:
            raise ValueError(f"--lapse follows a run through its checkpoints; {asked.model} has none")
    if asked.figure is not None:
        check_path(asked.figure)
    elif asked.query is not None or (asked.rescale and asked.lapse is None):
        raise ValueError(f"{'--query' if asked.query is not None else '--rescale'} is of a figure; give --figure too")
    if not asked.method:
        raise ValueError("--method names no method; expected one or more")


def _watcher(asked: Attend, methods: Sequence[Method]) -> tuple[Callable[[Path], Watched], ViT | Captioner]:
    """From a picture's file to what was seen of it."""
    device = pick_device(asked.device)
    name = Path(asked.model).expanduser().resolve().name
    if kind_of(asked.model) is Captioner:
        wrong = {"--target": asked.target, "--faithfulness": asked.faithfulness or None, "--lapse": asked.lapse}
        for option, given in wrong.items():
            if given is not None:
                raise ValueError(f"{option} is for classifiers; {asked.model} is a captioner")
        beam = 5 if asked.beam is None else asked.beam
        if beam < 1:
            raise ValueError(f"--beam is {beam}; expected one or more")
        speaker, tokenizer = load_captioner(asked.model, device)

        def told(path: Path) -> Watched:
            encoder = speaker.config.encoder
            pixels = decode(path, size=encoder.image, channels=encoder.channels, fit="stretch")
            caption = describe(speaker, tokenizer, pixels[None], normalisation(speaker), beam=beam)[0][0].caption
            return trace_caption(speaker, tokenizer, pixels, beam=beam, methods=methods, name=name), caption

        return told, speaker
    if asked.beam is not None:
        raise ValueError(f"--beam is for captioners; {asked.model} is a classifier")
    if asked.faithfulness and asked.target is not None:
        raise ValueError("--faithfulness follows the likeliest class; leave out --target")
    model = load(asked.model, device)
    normalisation(model)
    target = _class(asked.target, model.config.names)

    def seen(path: Path) -> Watched:
        pixels = decode(path, size=model.config.image, channels=model.config.channels)
        found = trace(model, pixels, name=name, methods=methods, target=target)
        if not all(math.isfinite(share) for _, share in found.answers):
            raise ValueError("the model's answer is no number; its weights are damaged")
        return found, "  ".join(f"{label} {100 * share:.1f} %" for label, share in found.answers[:NAMED])

    return seen, model


def _class(target: str | None, names: Sequence[str]) -> int | None:
    if target is None or target in names:
        return None if target is None else list(names).index(target)
    if target.isdecimal() and int(target) < len(names):
        return int(target)
    some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"--target is {target!r}; expected one of {some}, or a number in 0…{len(names) - 1}")


def _written(asked: Attend, traces: list[Trace], measured: Faithfulness | None) -> dict[str, list[Path]]:
    """Write the page, the figures and the traces; where they are."""
    drawn = [_drawn(asked, each) for each in traces] if asked.figure is not None else []
    to_html(traces, asked.out)
    files: dict[str, list[Path]] = {"report": [asked.out]}
    files |= {what: [] for what in ("figure", "heads", "trace", "lapse", "faithfulness")}
    if measured is not None:
        files["faithfulness"].append(asked.out.with_name(f"{asked.out.stem}-faithfulness.png"))
        save(faithfulness_figure(measured, title=traces[0].model), files["faithfulness"][0])
    for number, seen in enumerate(traces, 1):
        if asked.figure is not None:
            files["figure"].append(_numbered(asked.figure, number, len(traces)))
            save(drawn[number - 1], files["figure"][-1])
        if asked.heads is not None:
            files["heads"].append(_numbered(asked.heads, number, len(traces)))
            save(draw.head_report(seen), files["heads"][-1])
        if asked.trace is not None:
            files["trace"].append(_numbered(asked.trace, number, len(traces)))
            save_trace(seen, files["trace"][-1])
        if asked.lapse is not None:
            files["lapse"].append(_numbered(asked.lapse, number, len(traces)))
            save(_lapse(asked, seen), files["lapse"][-1])
    return files


def _lapse(asked: Attend, seen: Trace) -> Figure:
    """What counted for the class that the page explains, after each checkpoint."""
    run = Path(asked.model).expanduser()
    models = ((step, cast(ViT, model_at(run, file))) for step, file in dict(checkpoints_of(run)).items())
    moments = timelapse(models, seen.image, cast(Method, seen.maps[0].method), target=seen.maps[0].target)
    grid = seen.tokens[0].grid
    assert grid is not None
    return draw.lapse(seen.image, moments, grid, name=seen.model, rescale=asked.rescale)


def _drawn(asked: Attend, seen: Trace) -> Figure:
    if seen.kind == "captioner" and asked.query is None:
        return draw.word_heads(seen, rescale=asked.rescale)
    query = int(asked.query) if asked.query is not None and asked.query.isdecimal() else asked.query
    return draw.heads(seen, query, rescale=asked.rescale)


def _numbered(path: Path, number: int, count: int) -> Path:
    return path if count == 1 else path.with_stem(f"{path.stem}-{number}")


def _measured(model: ViT | Captioner, methods: Sequence[Method], traces: list[Trace]) -> Faithfulness:
    assert isinstance(model, ViT)
    images: Tensor = torch.stack([seen.image for seen in traces])
    every: list[Method] = [*(method for method in methods if method != BASELINE), BASELINE]
    steps = min(STEPS, math.prod(model.embed.grid(*images.shape[-2:])))
    unlabelled = ImageSet(images, torch.zeros(len(images), dtype=torch.int64), ("",))
    return faithfulness(model, unlabelled, every, steps=steps)


def _health(traces: list[Trace]) -> dict[str, CaptionHealth]:
    """Whether each method's maps of the words differ; of a model that says nothing there are none."""
    grid = next(tokens.grid for tokens in traces[0].tokens if tokens.grid is not None)
    found = {}
    for method in dict.fromkeys(each.method for seen in traces for each in seen.maps):
        words = [[each.values[-math.prod(grid) :] for each in seen.maps if each.method == method] for seen in traces]
        found[method] = caption_health([torch.stack(maps) for maps in words if maps], grid)
    return found


def _tell(files: dict[str, list[Path]], measured: Faithfulness | None) -> None:
    if measured is not None:
        print(f"{'':16}{'deletion':>24}{'insertion':>24}  areas: small and large ones are good")
        for method in measured.methods:
            print(f"{method:16}{measured.area('deletion', method)!s:>24}{measured.area('insertion', method)!s:>24}")
    for what, paths in files.items():
        for path in paths:
            print(f"{what}: {path}")


def _summary(
    asked: Attend,
    found: list[tuple[Path, Watched]],
    files: dict[str, list[Path]],
    measured: Faithfulness | None,
    health: dict[str, CaptionHealth],
) -> dict[str, Any]:
    images = []
    for i, (path, (seen, said)) in enumerate(found):
        listed: dict[str, Any] = {"image": str(path)}
        if seen.kind == "captioner":
            listed["caption"] = said
            listed["words"] = [{"word": word, "probability": math.exp(log_prob)} for word, log_prob in seen.words]
        else:
            listed["answers"] = [{"label": label, "probability": share} for label, share in seen.answers]
        listed["maps"] = [_largest(seen, each) for each in seen.maps]
        listed |= {what: str(files[what][i]) for what in ("figure", "heads", "trace", "lapse") if files[what]}
        images.append(listed)
    summary: dict[str, Any] = {"model": found[0][1][0].model, "kind": found[0][1][0].kind, "report": str(asked.out)}
    summary["images"] = images
    if health:
        summary["health"] = {method: asdict(each) for method, each in health.items()}
    if measured is not None:
        summary["faithfulness"] = {
            method: {which: measured.area(which, method)._asdict() for which in ("deletion", "insertion")}
            for method in measured.methods
        }
    return summary


def _largest(seen: Trace, found: Map) -> dict[str, Any]:
    """Of one map: what it explains, and the token of the image that counts most."""
    place = int(found.values.argmax())
    image = next(tokens for tokens in seen.tokens if tokens.grid is not None)
    most = {"most": image.labels[place], "value": float(found.values[place])}
    return {"method": found.method, "target": found.target, "word": found.word} | most
