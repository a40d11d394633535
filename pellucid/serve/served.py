"""The models that are served, by what they are called on the page, and what is said of them there."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pellucid.ready import ReadyForeign, ReadyModel, ReadyTranslator, load, shipped


def load_all(names: Sequence[str], device: torch.device | str = "cpu") -> dict[str, ReadyModel]:
    """Shipped ones by their name, others by their folder's; the page looks at pictures, and leaves out what can't."""
    sources = list(dict.fromkeys(names or shipped()))
    called = [
        name if name in shipped() else Path(name.rpartition(":")[2]).expanduser().resolve().name for name in sources
    ]
    if twice := [name for name, times in Counter(called).items() if times > 1]:
        raise ValueError(f"several models are called {twice[0]!r}; rename a folder, so that they can be told apart")
    models = {name: load(source, device=device) for name, source in zip(called, sources, strict=True)}
    readers = [name for name, model in models.items() if isinstance(model, ReadyTranslator)]
    if names and readers:
        raise ValueError(f"{readers[0]} reads sentences, and the page shows pictures; ask it by pellucid translate")
    return {name: model for name, model in models.items() if name not in readers}


def describe_model(model: ReadyModel) -> dict[str, Any]:
    ours = not isinstance(model, ReadyForeign)
    return {
        "name": model.name,
        "kind": model.kind,
        "reads": ["picture"] if ours else list(model.reads),
        "image": model.reader.size if ours else model.reading.size,
        "channels": model.reader.channels if ours else 3 if "picture" in model.reads else None,
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "labels": list(model.labels),
    }
