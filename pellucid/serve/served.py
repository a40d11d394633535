"""The models that are served: what each is, what it makes of a file, and what it answers to a batch of pictures."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from pellucid.data.augment import normalised
from pellucid.data.images import decode
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.evaluation.speech import Said, describe
from pellucid.explain.trace import trace, trace_caption
from pellucid.hub.loading import kind_of, load, load_captioner, normalisation, shipped
from pellucid.models import Captioner, ViT
from pellucid.views.bundle import to_bytes

Pixels = UInt8[Tensor, "c y x"]


class Classifier:
    """A vision transformer that names what it sees."""

    kind = "classifier"

    def __init__(self, name: str, model: ViT):
        self.name, self.model = name, model
        self.labels, self.normalise = model.config.names, normalisation(model)

    def read(self, data: bytes, pixels: int) -> Pixels:
        """The picture in a file, as `pellucid predict` reads it."""
        config = self.model.config
        return decode(data, config.image, config.channels, pixels, name="the picture")

    @torch.no_grad()
    def classify(self, images: list[Pixels]) -> list[Float[Tensor, " classes"]]:
        """The probabilities of all classes, picture by picture."""
        device = next(self.model.parameters()).device
        logits = self.model(normalised(torch.stack(images).to(device), self.normalise)).float()
        if not logits.isfinite().all():
            raise ValueError("the model's answer is no number; its weights are damaged")
        return list(logits.softmax(-1).cpu())

    def best(self, probabilities: Float[Tensor, " classes"], top: int) -> list[tuple[str, float]]:
        """The likeliest labels, first first; all of them if there are fewer than `top`."""
        shares, places = probabilities.topk(min(top, len(self.labels)))
        return [(self.labels[place], share) for place, share in zip(places.tolist(), shares.tolist(), strict=True)]

    def trace(self, images: list[Pixels], *, target: str | None = None) -> list[bytes]:
        """All that its attention follows from, as a file for the viewer, picture by picture."""
        return [to_bytes(trace(self.model, image, name=self.name, target=target)) for image in images]

    def about(self) -> dict[str, Any]:
        config = self.model.config
        return _about(self, config.image, config.channels) | {"labels": list(self.labels)}


class Speaker:
    """A captioner, with the words it speaks."""

    kind = "captioner"

    def __init__(self, name: str, model: Captioner, tokenizer: CaptionTokenizer):
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.normalise = normalisation(model)

    def read(self, data: bytes, pixels: int) -> Pixels:
        """The picture in a file, as `pellucid caption` reads it."""
        config = self.model.config.encoder
        return decode(data, config.image, config.channels, pixels, name="the picture", fit="stretch")

    def describe(self, images: list[Pixels], *, beam: int, n_best: int) -> list[list[Said]]:
        """The best captions, picture by picture."""
        return describe(self.model, self.tokenizer, torch.stack(images), self.normalise, beam=beam, n_best=n_best)

    def trace(self, images: list[Pixels]) -> list[bytes]:
        """All that its attention follows from, as a file for the viewer, picture by picture."""
        return [to_bytes(trace_caption(self.model, self.tokenizer, image, name=self.name)) for image in images]

    def about(self) -> dict[str, Any]:
        config = self.model.config.encoder
        return _about(self, config.image, config.channels) | {"labels": []}


Served = Classifier | Speaker


def load_all(names: Sequence[str], device: torch.device | str = "cpu") -> dict[str, Served]:
    """The models by what they are called on the page: shipped ones by their name, others by their folder's."""
    wanted = list(dict.fromkeys(names or shipped()))
    called = [name if name in shipped() else Path(name).expanduser().resolve().name for name in wanted]
    if twice := [name for name, times in Counter(called).items() if times > 1]:
        raise ValueError(f"several models are called {twice[0]!r}; rename a folder, so that they can be told apart")
    return {name: _load(name, where, device) for name, where in zip(called, wanted, strict=True)}


def _load(name: str, where: str, device: torch.device | str) -> Served:
    if kind_of(where) is Captioner:
        return Speaker(name, *load_captioner(where, device))
    return Classifier(name, load(where, device))


def said(caption: Said) -> dict[str, Any]:
    """One caption, as JSON: the probability of each word, and of the whole sentence with its end."""
    words = zip(caption.words, caption.word_log_probs, strict=True)
    return {
        "caption": caption.caption,
        "log_prob": caption.log_prob,
        "score": caption.score,
        "words": [{"word": word, "probability": math.exp(log_prob)} for word, log_prob in words],
    }


def _about(served: Served, image: tuple[int, int], channels: int) -> dict[str, Any]:
    size = sum(p.numel() for p in served.model.parameters())
    return {"name": served.name, "kind": served.kind, "image": image, "channels": channels, "parameters": size}
