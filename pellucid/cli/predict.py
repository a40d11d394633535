"""pellucid predict: what a model sees in pictures of yours."""

import json
import sys
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.cli.verbs import Predict
from pellucid.data.augment import normalised
from pellucid.data.images import decode
from pellucid.hub.loading import load, normalisation
from pellucid.models import ViT

Prediction = list[tuple[str, float]]  # the likeliest labels, first first


def predict(asked: Predict) -> None:
    """Name the likeliest classes of every picture that can be read; the others get a sentence each, and exit code 2."""
    if asked.top < 1:
        raise ValueError(f"--top is {asked.top}; expected one or more")
    if not asked.images:
        raise ValueError("no pictures are given; name one or more files")
    model = load(asked.model)
    normalise = normalisation(model)
    found: list[tuple[Path, Prediction]] = []
    for path in asked.images:
        try:
            pixels = decode(path, size=model.config.image, channels=model.config.channels)
        except ValueError as error:
            if len(asked.images) == 1:
                raise
            print(f"pellucid: {error}", file=sys.stderr)
            continue
        found.append((path, prediction(model, normalised(pixels[None], normalise), asked.top)))
        if not asked.json:
            print("  ".join([str(path), *(f"{label} {100 * share:.1f} %" for label, share in found[-1][1])]))
    if asked.json:
        listed = [
            {"image": str(path), "predictions": [{"label": label, "probability": share} for label, share in best]}
            for path, best in found
        ]
        print(json.dumps(listed, allow_nan=False))
    if len(found) < len(asked.images):
        raise ValueError(f"{len(asked.images) - len(found)} of {len(asked.images)} pictures could not be read")


@torch.no_grad()
def prediction(model: ViT, image: Float[Tensor, "1 c y x"], top: int) -> Prediction:
    """The `top` likeliest labels of one normalised image, or all of them if the model has fewer."""
    logits = model(image)[0].float()
    if not logits.isfinite().all():
        raise ValueError("the model's answer is no number; its weights are damaged")
    shares, places = logits.softmax(-1).topk(min(top, model.config.classes))
    names = model.config.names
    return [(names[place], share) for place, share in zip(places.tolist(), shares.tolist(), strict=True)]
