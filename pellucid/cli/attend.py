"""pellucid attend: one page that shows what a model looks at in pictures of yours."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from matplotlib.figure import Figure

from pellucid.cli.attend_any import attend_any, is_anybodys
from pellucid.cli.attend_sentences import attend_sentences
from pellucid.cli.pictures import check_all_read, find_pictures, number_file, read_pictures
from pellucid.cli.verbs import AttendOptions
from pellucid.data.images import ImageSet
from pellucid.devices import pick_device
from pellucid.explain.faithfulness import Faithfulness, faithfulness
from pellucid.explain.heads import CaptionHealth, caption_health
from pellucid.explain.maps import Map, Method
from pellucid.explain.timelapse import timelapse
from pellucid.explain.trace import Trace
from pellucid.models import ViT
from pellucid.ready import ReadyCaptioner, ReadyClassifier, ReadyTranslator, load, load_checkpoint
from pellucid.runs import RunFolder
from pellucid.views.bundle import SUFFIX, save_trace
from pellucid.views.draw import draw_head_report, draw_heads, draw_lapse, draw_word_heads
from pellucid.views.figures import check_path, save_figure
from pellucid.views.page import to_html
from pellucid.views.reports import BASELINE, faithfulness_figure

PAGES = (".html", ".htm")
NAMED = 3  # answers that are printed of a picture
STEPS = 16  # points of a curve of faithfulness


class Watched(NamedTuple):
    """A picture, what was seen of the model as it looked at it, and its answer as people read it."""

    path: Path
    trace: Trace
    answer: str


def attend(options: AttendOptions) -> None:
    """Watch a model look at every picture that can be read; the others get a sentence each, and exit code 2."""
    check_files(options)
    if is_anybodys(options.model):
        return attend_any(options)
    if options.audio is not None or options.generate is not None:
        raise ValueError(f"--audio and --generate are for hf: models; {options.model} is one of ours")
    methods: list[Method] = [cast(Method, method.replace("-", " ")) for method in options.method]
    model = load(options.model, device=pick_device(options.device))
    if isinstance(model, ReadyTranslator):
        return attend_sentences(replace(options, images=(*options.images, *options.text)), model)
    if options.text:
        raise ValueError(f"--text is for hf: models and translators; {options.model} looks at pictures")
    paths = find_pictures(options.images)
    check_kind(options, model)
    watched = [
        watch_picture(options, model, path, pixels, methods) for ((_, path, pixels),) in read_pictures(paths, model)
    ]
    if not watched:
        raise ValueError(f"none of {len(paths)} pictures could be read")
    traces = [each.trace for each in watched]
    measured = measure_faithfulness(model, methods, traces) if options.faithfulness else None
    health = measure_health(traces) if isinstance(model, ReadyCaptioner) else {}
    files = write_files(options, traces, measured)
    if options.json:
        print(json.dumps(summarise(options, watched, files, measured, health), allow_nan=False))
    else:
        print_findings(watched, files, measured, health)
    return check_all_read(len(watched), paths)


# What was asked for, before the work


def check_files(options: AttendOptions) -> None:
    if options.out.suffix.lower() not in PAGES:
        raise ValueError(f"--out is {str(options.out)!r}; expected a page, as report.html")
    if options.trace is not None and options.trace.suffix != SUFFIX:
        raise ValueError(f"--trace is {str(options.trace)!r}; expected a file that ends in {SUFFIX}")
    for path in (options.out, options.trace):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    for path in (options.heads, options.lapse, options.figure):
        if path is not None:
            check_path(path)
    if options.lapse is not None and not RunFolder(Path(options.model).expanduser()).checkpoints.listing():
        raise ValueError(f"--lapse follows a run through its checkpoints; {options.model} has none")
    if options.figure is None and (options.query is not None or (options.rescale and options.lapse is None)):
        option = "--query" if options.query is not None else "--rescale"
        raise ValueError(f"{option} is of a figure; give --figure too")
    if not options.method:
        raise ValueError("--method names no method; expected one or more")


def check_kind(options: AttendOptions, model: ReadyClassifier | ReadyCaptioner) -> None:
    """An option that is for the other kind of model is an error."""
    if isinstance(model, ReadyCaptioner):
        wrong = {"--target": options.target, "--faithfulness": options.faithfulness or None, "--lapse": options.lapse}
        for option, value in wrong.items():
            if value is not None:
                raise ValueError(f"{option} is for classifiers; {options.model} is a captioner")
        if options.beam is not None and options.beam < 1:
            raise ValueError(f"--beam is {options.beam}; expected one or more")
    elif options.beam is not None:
        raise ValueError(f"--beam is for captioners; {options.model} is a classifier")
    elif options.faithfulness and options.target is not None:
        raise ValueError("--faithfulness follows the likeliest class; leave out --target")
    else:
        _class_number(options.target, model.labels)


# What the model does


def watch_picture(
    options: AttendOptions,
    model: ReadyClassifier | ReadyCaptioner,
    path: Path,
    pixels: torch.Tensor,
    methods: list[Method],
) -> Watched:
    if isinstance(model, ReadyCaptioner):
        caption = model.caption(pixels, 5 if options.beam is None else options.beam)[0]
        return Watched(path, model.trace(pixels, caption=caption, methods=methods), caption.text)
    trace = model.trace(pixels, methods=methods, target=_class_number(options.target, model.labels))
    if not all(math.isfinite(share) for _, share in trace.answers):
        raise ValueError("the model's answer is no number; its weights are damaged")
    return Watched(path, trace, "  ".join(f"{label} {100 * share:.1f} %" for label, share in trace.answers[:NAMED]))


def measure_faithfulness(
    model: ReadyClassifier | ReadyCaptioner, methods: Sequence[Method], traces: list[Trace]
) -> Faithfulness:
    assert isinstance(model, ReadyClassifier)
    pictures = [trace.pictures[0].pixels for trace in traces]
    if len({picture.shape for picture in pictures}) > 1:
        raise ValueError("patches are deleted from pictures of one shape; these keep the ratio of their sides")
    images = torch.stack(pictures)
    every: list[Method] = [*(method for method in methods if method != BASELINE), BASELINE]
    steps = min(STEPS, math.prod(model.transformer.embed.grid(*images.shape[-2:])))
    unlabelled = ImageSet(images, torch.zeros(len(images), dtype=torch.int64), ("",))
    return faithfulness(model.transformer, unlabelled, every, steps=steps)


def measure_health(traces: list[Trace]) -> dict[str, CaptionHealth]:
    """Whether each method's maps of the words differ; of a model that says nothing there are none."""
    grid = next(stream.grid for stream in traces[0].streams if stream.grid is not None)
    health = {}
    for method in dict.fromkeys(each.method for trace in traces for each in trace.maps):
        words = [[each.values[-math.prod(grid) :] for each in trace.maps if each.method == method] for trace in traces]
        health[method] = caption_health([torch.stack(maps) for maps in words if maps], grid)
    return health


def _class_number(target: str | None, names: Sequence[str]) -> int | None:
    if target is None or target in names:
        return None if target is None else list(names).index(target)
    if target.isdecimal() and int(target) < len(names):
        return int(target)
    some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise ValueError(f"--target is {target!r}; expected one of {some}, or a number in 0…{len(names) - 1}")


# What is written


def write_files(options: AttendOptions, traces: list[Trace], measured: Faithfulness | None) -> dict[str, list[Path]]:
    """Write the page, then the figures and the traces that were asked for; where they are."""
    figures = [draw_query(options, trace) for trace in traces] if options.figure is not None else []
    to_html(traces, options.out)
    files: dict[str, list[Path]] = {"report": [options.out]}
    each: dict[str, Callable[[int, Path], None]] = {
        "figure": lambda i, path: save_figure(figures[i], path),
        "heads": lambda i, path: save_figure(draw_head_report(traces[i]), path),
        "trace": lambda i, path: save_trace(traces[i], path),
        "lapse": lambda i, path: save_figure(draw_checkpoints(options, traces[i]), path),
    }
    for name, write in each.items():
        path, count = getattr(options, name), len(traces)
        files[name] = [] if path is None else [number_file(path, number, count) for number in range(1, count + 1)]
        for i, place in enumerate(files[name]):
            write(i, place)
    files["faithfulness"] = []
    if measured is not None:
        files["faithfulness"].append(options.out.with_name(f"{options.out.stem}-faithfulness.png"))
        save_figure(faithfulness_figure(measured, title=traces[0].model), files["faithfulness"][0])
    return files


def draw_query(options: AttendOptions, trace: Trace) -> Figure:
    if trace.kind == "captioner" and options.query is None:
        return draw_word_heads(trace, rescale=options.rescale)
    query = int(options.query) if options.query is not None and options.query.isdecimal() else options.query
    return draw_heads(trace, query, rescale=options.rescale)


def draw_checkpoints(options: AttendOptions, trace: Trace) -> Figure:
    """What counted for the class that the page explains, after each checkpoint."""
    run = Path(options.model).expanduser()
    steps = {checkpoint.step: checkpoint.path for checkpoint in RunFolder(run).checkpoints.listing()}
    models = ((step, cast(ViT, load_checkpoint(run, path).model)) for step, path in steps.items())
    moments = timelapse(
        models, trace.pictures[0].pixels, cast(Method, trace.maps[0].method), target=trace.maps[0].target
    )
    grid = trace.streams[0].grid
    assert grid is not None
    return draw_lapse(trace.pictures[0].pixels, moments, grid, name=trace.model, rescale=options.rescale)


# What is said


def print_findings(
    watched: list[Watched],
    files: dict[str, list[Path]],
    measured: Faithfulness | None,
    health: dict[str, CaptionHealth],
) -> None:
    for path, _, answer in watched:
        print(f"{path}  {answer}")
    for method, each in health.items():
        for alarm in each.alarms:
            print(f"beware: by {method}, {alarm}")
    if measured is not None:
        print(f"{'':16}{'deletion':>24}{'insertion':>24}  areas: small and large ones are good")
        for method in measured.methods:
            print(f"{method:16}{measured.area('deletion', method)!s:>24}{measured.area('insertion', method)!s:>24}")
    for name, paths in files.items():
        for path in paths:
            print(f"{name}: {path}")


def summarise(
    options: AttendOptions,
    watched: list[Watched],
    files: dict[str, list[Path]],
    measured: Faithfulness | None,
    health: dict[str, CaptionHealth],
) -> dict[str, Any]:
    """The same as JSON."""
    images = []
    for i, (path, trace, answer) in enumerate(watched):
        listed: dict[str, Any] = {"image": str(path)}
        if trace.kind == "captioner":
            listed["caption"] = answer
            listed["words"] = [{"word": word, "probability": math.exp(log_prob)} for word, log_prob in trace.words]
        else:
            listed["answers"] = [{"label": label, "probability": share} for label, share in trace.answers]
        listed["maps"] = [_largest(trace, each) for each in trace.maps]
        listed |= {name: str(files[name][i]) for name in ("figure", "heads", "trace", "lapse") if files[name]}
        images.append(listed)
    first = watched[0].trace
    summary: dict[str, Any] = {"model": first.model, "kind": first.kind, "report": str(options.out), "images": images}
    if health:
        summary["health"] = {method: asdict(each) for method, each in health.items()}
    if measured is not None:
        summary["faithfulness"] = {
            method: {which: measured.area(which, method)._asdict() for which in ("deletion", "insertion")}
            for method in measured.methods
        }
    return summary


def _largest(trace: Trace, each: Map) -> dict[str, Any]:
    """Of one map: what it explains, and the token of the image that counts most."""
    place = int(each.values.argmax())
    most = {"most": trace.stream(each.stream).labels[place], "value": float(each.values[place])}
    return {"method": each.method, "target": each.target, "word": each.word} | most
