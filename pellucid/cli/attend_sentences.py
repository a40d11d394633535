"""pellucid attend, for a translator: one page that shows what it reads of sentences of yours as it translates them."""

import json
import math
from typing import Any, cast

from pellucid.cli.pictures import number_file
from pellucid.cli.verbs import AttendOptions
from pellucid.explain.sentences import PAIR_METHODS, PairMethod
from pellucid.ready import ReadyTranslator
from pellucid.views.bundle import save_trace
from pellucid.views.page import to_html

OF_PICTURES = ("target", "figure", "query", "rescale", "heads", "lapse", "faithfulness")


def attend_sentences(options: AttendOptions, model: ReadyTranslator) -> None:
    """Watch it translate each sentence; the page, and the traces that were asked for."""
    for name in OF_PICTURES:
        if getattr(options, name):
            raise ValueError(f"--{name} is of pictures; pellucid translate {options.model} … --figure draws alignments")
    methods = check_methods(options)
    translations = model.translate(list(options.images), 5 if options.beam is None else options.beam)
    best = [several[0] for several in translations]
    traces = [model.trace(each.source, translation=each, methods=methods) for each in best]
    to_html(traces, options.out)
    listed: list[dict[str, Any]] = []
    for number, (translation, trace) in enumerate(zip(best, traces, strict=True), 1):
        words = [{"word": word, "probability": math.exp(log_prob)} for word, log_prob in trace.words]
        listed.append({"source": translation.source, "translation": translation.text, "words": words})
        if options.trace is not None:
            place = number_file(options.trace, number, len(best))
            save_trace(trace, place)
            listed[-1]["trace"] = str(place)
    if options.json:
        summary = {"model": model.name, "kind": model.kind, "report": str(options.out), "sentences": listed}
        print(json.dumps(summary, allow_nan=False, ensure_ascii=False))
        return
    for each in listed:
        print(f"{each['source']}  {each['translation']}")
    print(f"report: {options.out}")
    for each in listed:
        if "trace" in each:
            print(f"trace: {each['trace']}")


def check_methods(options: AttendOptions) -> list[PairMethod]:
    for method in options.method:
        if method not in PAIR_METHODS:
            raise ValueError(f"--method {method} is of pictures; a translator's are {', '.join(PAIR_METHODS)}")
    return [cast(PairMethod, method) for method in options.method]
