"""pellucid predict: what a model sees in pictures of yours."""

import json

from pellucid.cli.pictures import check_all_read, read_pictures
from pellucid.cli.verbs import PredictOptions
from pellucid.ready import load_classifier


def predict(options: PredictOptions) -> None:
    """Name the likeliest classes of every picture that can be read; the others get a sentence each, and exit code 2."""
    if options.top < 1:
        raise ValueError(f"--top is {options.top}; expected one or more")
    if not options.images:
        raise ValueError("no pictures are given; name one or more files")
    model = load_classifier(options.model)
    listed = []
    for ((_, path, pixels),) in read_pictures(options.images, model):
        best = model.predict(pixels, options.top)
        listed.append({"image": str(path), "predictions": [each._asdict() for each in best]})
        if not options.json:
            print("  ".join([str(path), *(f"{label} {100 * share:.1f} %" for label, share in best)]))
    if options.json:
        print(json.dumps(listed, allow_nan=False))
    check_all_read(len(listed), options.images)
