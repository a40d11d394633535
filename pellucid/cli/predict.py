"""pellucid predict: what a model sees in pictures of yours."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pellucid.cli.answers import answer_into, predictions
from pellucid.cli.pictures import check_all_read, find_images, name_of, read_pictures
from pellucid.cli.verbs import PredictOptions
from pellucid.data.decoding import Item
from pellucid.devices import pick_device
from pellucid.processes import Processes, joined
from pellucid.ready import ReadyClassifier, load_classifier
from pellucid.ready.classifier import Prediction


def predict(options: PredictOptions) -> None:
    """Name the likeliest classes of every picture that can be read; the others get a sentence each, and exit code 2."""
    for name, value in (("--top", options.top), ("--batch", options.batch)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected one or more")
    if options.json and options.out:
        raise ValueError("--json prints what --out writes; give one of the two")
    images = find_images(options.images)
    device = pick_device(options.device)
    model = load_classifier(options.model, device)
    with joined(device) as processes:
        if options.out:
            form = predictions(min(options.top, len(model.labels)))

            def ask(pixels: list) -> list[list[Prediction]]:
                return model.predict(pixels, options.top, options.views)

            answer_into(options.out, form, images, options.batch, model, ask, processes)
        else:
            _print(options, model, images, processes)


def _print(
    options: PredictOptions, model: ReadyClassifier, images: Sequence[Path | Item], processes: Processes
) -> None:
    listed = []
    for answers, complaints in _answer_all(model, images, options, processes):
        for complaint in complaints if processes.first else ():
            print(f"pellucid: {complaint}", file=sys.stderr)
        for image, best in answers:
            listed.append({"image": image, "predictions": [each._asdict() for each in best]})
            if processes.first and not options.json:
                print("  ".join([image, *(f"{label} {100 * share:.1f} %" for label, share in best)]), flush=True)
    if processes.first and options.json:
        print(json.dumps(listed, allow_nan=False))
    check_all_read(len(listed), images)


def _answer_all(
    model: ReadyClassifier, images: Sequence[Path | Item], options: PredictOptions, processes: Processes
) -> Iterator[tuple[list[tuple[str, list[Prediction]]], list[str]]]:
    """Batch by batch, the answers and what is said of pictures that can't be read; each process does its share."""
    parts = [images[start : start + options.batch] for start in range(0, len(images), options.batch)]
    alone = len(images) == 1  # then what is wrong with it is all that there is to say

    def answer(part: Sequence[Path | Item]) -> tuple[list[tuple[str, list[Prediction]]], list[str]]:
        complaints: list[str] = []
        read = next(read_pictures(part, model, len(part), None if alone else complaints.append), [])
        best = model.predict([each.pixels for each in read], options.top, options.views) if read else []
        return [(name_of(each.path), its) for each, its in zip(read, best, strict=True)], complaints

    return processes.share_work(parts, answer)
