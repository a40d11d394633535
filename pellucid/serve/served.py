"""The models that are served, by what they are called on the page, and what is said of them there."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pellucid.ready import ReadyForeign, ReadyModel, ReadyTranslator, load, shipped


def load_all(names: Sequence[str], device: torch.device | str = "cpu") -> dict[str, ReadyModel]:
    """Shipped ones by their name, others by their folder's."""
    sources = list(dict.fromkeys(names or shipped()))
    called = [
        name if name in shipped() else Path(name.rpartition(":")[2]).expanduser().resolve().name for name in sources
    ]
    if twice := [name for name, times in Counter(called).items() if times > 1]:
        raise ValueError(f"several models are called {twice[0]!r}; rename a folder, so that they can be told apart")
    return {name: load(source, device=device) for name, source in zip(called, sources, strict=True)}


def list_read(model: ReadyModel) -> tuple[str, ...]:
    """What it can be asked with: "text", "picture" or both."""
    if isinstance(model, ReadyForeign):
        return model.reads
    return ("text",) if isinstance(model, ReadyTranslator) else ("picture",)


def describe_model(model: ReadyModel) -> dict[str, Any]:
    reads = list_read(model)
    pictures = None if isinstance(model, ReadyForeign) or "picture" not in reads else model.reader
    return {
        "name": model.name,
        "kind": model.kind,
        "reads": list(reads),
        "image": pictures.size if pictures else model.reading.size if isinstance(model, ReadyForeign) else None,
        "channels": pictures.channels if pictures else 3 if "picture" in reads else None,
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "labels": list(model.labels),
    }
