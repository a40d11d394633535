"""pellucid evaluate: how good a model is, as a table or as JSON, with pictures if asked for."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pellucid.cli.answers import check_place
from pellucid.cli.kept import KeptAnswers, KeptCaptions, keeping
from pellucid.cli.verbs import EvaluateOptions
from pellucid.config import read_json
from pellucid.devices import pick_device
from pellucid.evaluation import CaptioningReport, ClassificationReport, jars
from pellucid.evaluation.captions import CAPTION_METRICS
from pellucid.evaluation.multilabel import MultiLabelReport
from pellucid.processes import Processes, joined
from pellucid.ready import ReadyCaptioner, ReadyClassifier, ReadyTranslator, load
from pellucid.views.captions import Example, examples_figure
from pellucid.views.figures import check_path, save_figure
from pellucid.views.mistakes import write_report
from pellucid.views.training import confusion_figure

FOR_CAPTIONERS = ("captions", "examples", "meteor", "spice")
FOR_CLASSIFIERS = ("confusion", "classes", "report", "probe")
FOR_ANSWERS = ("classes", "calibrate", "out")
SPLITS = ("test", "validation", "train", "all")
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
CONTROL_ROWS = ("shuffled", "blank", "fixed", "people")


def evaluate(options: EvaluateOptions) -> None:
    """Check what was asked for before the work, then do it by the kind of the model."""
    if options.batch is not None and options.batch < 1:
        raise ValueError(f"--batch is {options.batch}; expected one or more")
    if not 0 <= options.tolerated <= 1:
        raise ValueError(f"--tolerated is {options.tolerated}; expected a share of the images, 0…1")
    if options.report is not None and options.report.suffix != ".html":
        raise ValueError(f"--report is {str(options.report)!r}; expected a page, FILE.html")
    for path in (options.confusion, options.examples):
        if path is not None:
            check_path(path)
    for path in (options.captions, options.translations, options.report):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"the folder {str(path.parent)!r} doesn't exist; make it first")
    if options.out is not None:
        check_place(options.out)
    device = pick_device(options.device)
    model = load(options.model, device=device)
    if isinstance(model, ReadyTranslator):
        evaluate_translations(options, model)
        return
    if options.split not in SPLITS:
        raise ValueError(f"--split is {options.split!r}; expected one of {', '.join(SPLITS)}")
    refuse(options, ("translations",), f"translators; this model is a {model.kind}")
    with joined(device) as processes:
        if isinstance(model, ReadyCaptioner):
            evaluate_captions(options, model, processes)
        else:
            evaluate_classes(options, model, processes)


def evaluate_classes(options: EvaluateOptions, model: ReadyClassifier, processes: Processes) -> None:
    """Accuracy and calibration and, if asked for, the confusion matrix; told by the first process."""
    refuse(options, ("beam", *FOR_CAPTIONERS), "captioners; this model is a classifier")
    how: dict[str, Any] = {"path": options.path, "batch": options.batch or 500, "tolerated": options.tolerated}
    if processes.world > 1 and (options.calibrate or options.probe):
        name = "--calibrate" if options.calibrate else "--probe"
        raise ValueError(f"{name} is for one process; leave out torchrun")
    if options.probe:
        refuse(options, FOR_ANSWERS, "what the model answers; a probe leaves that out")
        if options.views != 1:
            raise ValueError("--views is for what the model answers; a probe leaves that out")
        report = model.probe(options.data, options.split, options.probe, **how)
    else:
        how |= {"classes": read_classes(options.classes), "views": options.views}
        if options.calibrate:
            calibrate(options, model, how)
        with keeping(options.out if processes.first else None, KeptAnswers) as answers:
            report = model.evaluate(options.data, options.split, processes=processes, answers=answers, **how)
    if not processes.first:
        return
    if isinstance(report, MultiLabelReport):
        refuse(options, ("confusion", "report"), "images of one class each; here several may be true")
    if options.json:
        about = {"data": options.data, "split": options.split} | ({"probe": options.probe} if options.probe else {})
        print(json.dumps(report.figures | about, allow_nan=False))
    else:
        print(tabulate_classes(report, name_task(options, len(report.labels))))
    if options.report is not None and isinstance(report, ClassificationReport):
        write_report(report, name_task(options, len(report.labels)), options.report)
        if not options.json:
            print(f"\nreport: {options.report}")
    if options.confusion is not None and isinstance(report, ClassificationReport):
        save_figure(confusion_figure(report.confusion, report.classes), options.confusion)
        if not options.json:
            print(f"\nconfusion matrix: {options.confusion}")


def calibrate(options: EvaluateOptions, model: ReadyClassifier, how: dict[str, Any]) -> None:
    if model.folder is None:
        raise ValueError("--calibrate writes what it finds into a run; give the folder of one")
    before = model.temperature
    temperature = model.calibrate(options.data, options.split, **how)
    if not options.json:
        print(f"from now on answers are divided by {temperature:.3f}; until now by {before:.3f}\n")


def evaluate_captions(options: EvaluateOptions, model: ReadyCaptioner, processes: Processes) -> None:
    """Scores beside those of captions that were made without looking and, if asked for, what the model says."""
    refuse(options, FOR_CLASSIFIERS, "classifiers; this model writes captions")
    if options.split == "all":
        raise ValueError("--split all is for classifiers; captions are scored on test, validation or train")
    official = [name for name in jars.JAVA_METRICS if getattr(options, name)]
    for name in official:
        jars.find_jar(name)
    if options.calibrate:
        learn_doubt(options, model, processes)
    with show_bar(options.model) as progress:
        how = {"beam": 5 if options.beam is None else options.beam, "batch": options.batch or 64, "progress": progress}
        how |= {"path": options.path, "tolerated": options.tolerated, "processes": processes}
        with keeping(options.out if processes.first else None, KeptCaptions) as answers:
            report = model.evaluate(options.data, options.split, answers=answers, **how)
    if not processes.first:
        return
    figures: dict[str, Any] = report.figures | {"data": options.data, "split": options.split}
    failure = None
    if options.captions is not None:
        report.save_captions(options.captions)
    if options.examples is not None:
        save_figure(draw_examples(report), options.examples)
    try:
        for name in official:
            with show_bar(name.upper()):  # its program doesn't say how far it is
                figures |= report.official(name)
    except ValueError as error:
        failure = error  # told after the figures that there are
    if options.json:
        print(json.dumps(figures, allow_nan=False))
    else:
        print(tabulate_captions(figures, name_task(options, figures["images"])))
        for name in ("captions", "examples"):
            if getattr(options, name) is not None:
                print(f"\n{name}: {getattr(options, name)}")
    if failure is not None:
        raise failure


def learn_doubt(options: EvaluateOptions, model: ReadyCaptioner, processes: Processes) -> None:
    if processes.world > 1:
        raise ValueError("--calibrate is for one process; leave out torchrun")
    if model.folder is None:
        raise ValueError("--calibrate writes what it finds into a run; give the folder of one")
    how = {"path": options.path, "beam": 5 if options.beam is None else options.beam, "batch": options.batch or 64}
    doubt = model.learn_doubt(options.data, options.split, **how)
    if not options.json:
        low, high = (f"{share:.0%}" for share in (doubt.said[0], doubt.said[-1]))
        print(f"of the captions it is least sure of people say {low} of the words, of the surest {high}\n")


def evaluate_translations(options: EvaluateOptions, model: ReadyTranslator) -> None:
    """sacreBLEU's scores beside those of not reading the source and, if asked for, what the model says."""
    refuse(options, (*FOR_CLASSIFIERS, "calibrate"), "classifiers and captioners; this model translates")
    refuse(options, (*FOR_CAPTIONERS, "out"), "captioners; this model translates")
    with show_bar(options.model) as progress:
        how = {"beam": 5 if options.beam is None else options.beam, "batch": options.batch or 64}
        report = model.evaluate(options.data, options.split, progress=progress, **how)
    if options.translations is not None:
        report.save_translations(options.translations)
    if options.json:
        print(json.dumps(report.figures | {"data": options.data, "split": options.split}, allow_nan=False))
        return
    print(tabulate_translations(report.figures, f"{options.model} on {options.split} of {options.data}"))
    if options.translations is not None:
        print(f"\ntranslations: {options.translations}")


def refuse(options: EvaluateOptions, names: tuple[str, ...], whose: str) -> None:
    """An option that is for another kind of model is an error."""
    for name in names:
        if getattr(options, name) is not None and getattr(options, name) is not False:
            raise ValueError(f"--{name} is for {whose}")


def read_classes(path: Path | None) -> dict[str, str] | None:
    """What a file says the model calls the data's classes."""
    if path is None:
        return None
    classes = read_json(path)
    if not isinstance(classes, dict) or not all(isinstance(name, str) for name in classes.values()):
        raise ValueError(f'{path} holds no names of classes; expected an object such as {{"robin": "bird"}}')
    return classes


def name_task(options: EvaluateOptions, count: int) -> str:
    which = f"all {count:,}" if options.split == "all" else f"the {count:,} {options.split}"
    how = {None: "", "knn": " by its features' neighbours", "linear": " by one layer on its features"}[options.probe]
    return f"{options.model}{how} on {which} images of {options.data}"


def tabulate_classes(report: ClassificationReport | MultiLabelReport, title: str) -> str:
    """The figures for people, in percent."""
    if isinstance(report, MultiLabelReport):
        rows = [("mAP", f"{report.map:7.2%}"), ("F1", f"{report.f1:7.2%}"), ("all right", f"{report.exact:7.2%}")]
        return _tabulate(rows, report.classes, report.per_class, report.labels.sum(0).tolist(), title)
    rows = [
        ("top-1", f"{report.top1:7.2%}"),
        ("top-5", f"{report.top5:7.2%}"),
        ("ECE", f"{report.ece():7.2%}"),
        ("images/s", f"{report.images_per_second:7,.0f}"),
    ]
    return _tabulate(rows, report.classes, report.per_class, report.confusion.sum(1).tolist(), title)


def _tabulate(
    rows: list[tuple[str, str]], names: Sequence[str], shares: Sequence[float], counts: Sequence[int], title: str
) -> str:
    """Rows about all images, then a row for each class."""
    classes = [
        (name, f"{'–' if math.isnan(share) else f'{share:.2%}':>7}  of {count:,}")
        for name, share, count in zip(names, shares, counts, strict=True)
    ]
    lines = align([*rows, *classes])
    return "\n".join([title, "", *lines[: len(rows)], "", *lines[len(rows) :]])


def tabulate_captions(figures: dict[str, Any], title: str) -> str:
    """The official figures times 100, as they stand in papers, and the facts beside them."""
    lines = [title + f", beam {figures['beam']}", "", f"{'':9}" + "".join(f"{name:>12}" for name in NAMES)]
    for row in ("model", *CONTROL_ROWS):
        values = figures if row == "model" else figures[row]
        cells = (
            ["–"] * len(CAPTION_METRICS)
            if values is None
            else [f"{100 * values[name]:.1f}" for name in CAPTION_METRICS]
        )
        lines.append(f"{row:9}" + "".join(f"{cell:>12}" for cell in cells))
        if row == "model":
            bounds = [figures["interval"].get(name) for name in CAPTION_METRICS]
            spans = ["" if b is None else f"{100 * b[0]:.1f}–{100 * b[1]:.1f}" for b in bounds]
            lines.append(f"{'  95 %':9}" + "".join(f"{span:>12}" for span in spans))
    lines += ["", *align(list_facts(figures))]
    return "\n".join(lines + (["", f"warning: {figures['warning']}"] if figures["warning"] else []))


def tabulate_translations(figures: dict[str, Any], title: str) -> str:
    """BLEU beside its controls, and the facts about it."""
    low, high = figures["interval"]
    rows = [
        ("BLEU", f"{figures['bleu']:5.1f}  (95 %: {low:.1f}–{high:.1f})"),
        ("  of others' sources", f"{figures['shuffled']:5.1f}"),
        ("  of an empty source", f"{figures['empty']:5.1f}  {figures['empty_translation']}"),
        ("  of one for all", f"{figures['fixed']:5.1f}  {figures['fixed_translation']}"),
        ("  of the source", f"{figures['copy']:5.1f}"),
        ("chrF", f"{figures['chrf']:5.1f}"),
        ("TER", f"{figures['ter']:5.1f}"),
        ("length", f"{figures['length_ratio']:.3f} of the references'"),
        ("different", f"{figures['different']:,} of {figures['sentences']:,}"),
        ("sentences/s", f"{figures['sentences_per_second']:,.1f}"),
        ("signature", figures["signature"]),
    ]
    return "\n".join([f"{title}, {figures['direction']}, beam {figures['beam']}", "", *align(rows)])


def list_facts(figures: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (name.upper(), f"{100 * figures[name]:.1f}") for name in jars.JAVA_METRICS if name in figures
    ] + [
        ("different captions", f"{figures['different']:,} of {figures['images']:,}"),
        ("words never said", format_share(figures["never_said"]) + " of the references' words"),
        ("captions/s", f"{figures['captions_per_second']:,.1f}"),
        ("of a blank picture", figures["blank_caption"]),
        ("best fixed caption", figures["fixed_caption"]),
    ]  # fmt: skip
    if "exact" in figures:
        facts += [("exact", format_share(figures["exact"]))]
        facts += [(f"  {which} pairs", format_share(figures[f"exact_{which}"])) for which in ("seen", "unseen")]
        facts += [(f"  {kind}", format_share(share)) for kind, share in figures["exact_by_kind"].items()]
        for name, label in (("pointing", "pointing"), ("pointing_rollout", "  through the encoder")):
            shares = f"{format_share(figures[name])}, by chance {format_share(figures['pointing_chance'])}"
            facts += [(label, f"{shares} ({figures[f'{name}_map']})")]
    return facts


def draw_examples(report: CaptioningReport) -> Any:
    """Pictures at equal steps down the list of the model's captions, the best by CIDEr-D first: nobody chose them."""
    places = report.examples()
    pixels = report.images.images.read(torch.tensor([place for place, _ in places]))
    return examples_figure(
        [
            Example(picture, report.captions[place], report.images.captions[place][0], score)
            for picture, (place, score) in zip(pixels, places, strict=True)
        ]
    )


def align(facts: list[tuple[str, str]]) -> list[str]:
    wide = max(len(name) for name, _ in facts)
    return [f"{name:<{wide}}  {value}" for name, value in facts]


def format_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


@contextmanager
def show_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal that moves until it is told how much is done of how much."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
