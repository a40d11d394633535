"""Vision transformers in folders and files, whosever they are: read as ours, and written as theirs."""

import copy
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.config import brief, override, read_json
from pellucid.files import make_folder, sync, sync_named
from pellucid.hub.convert import read, write
from pellucid.hub.describe import describe_config, interpret_config, interpret_preprocessor
from pellucid.hub.names import Layout
from pellucid.hub.pickled import read_pickled
from pellucid.models.pretrained import CONFIG, WEIGHTS, read_weights, write_weights
from pellucid.models.vit import ViT

PICKLED = (".pt", ".pth", ".bin")


def read_folder(
    source: Path,
    heads: int | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> ViT:
    """The model in a folder (config.json and weights) or in a file of weights, with what lies beside it.

    mean, std: how its training images were normalised, where that isn't said or is wrong: one number, or one a channel.
    """
    _check_moments(mean, std)
    model = _read(source, heads)
    if mean is not None and std is not None:
        channels = model.config.channels
        moments = {
            name: list(values) * (channels if len(values) == 1 else 1)
            for name, values in (("mean", mean), ("std", std))
        }
        model.config = override(model.config, moments)
    return model


def _read(source: Path, heads: int | None) -> ViT:
    if not source.exists():
        raise ValueError(f"{source} doesn't exist; expected a folder with {CONFIG} and {WEIGHTS}, or a file of weights")
    if source.is_file():
        moments = interpret_preprocessor(_preprocessor(source.parent) or {})
        return read(read_tensors(source), **moments | _given(heads=heads))
    data = read_object(source / CONFIG)
    if "model" in data:
        model = ViT.from_pretrained(source)
        if heads not in (None, model.config.heads):
            raise ValueError(f"--heads is {heads}, but {source / CONFIG} says {model.config.heads}")
        return model
    layout, known = interpret_config(data, _preprocessor(source))
    if heads not in (None, known.get("heads", heads)):
        raise ValueError(f"--heads is {heads}, but {source / CONFIG} says {known['heads']}")
    return read(read_tensors(find_weights(source)), layout, **known | _given(heads=heads))


def write_folder(model: ViT, out: Path, layout: Layout, *, half: bool = False) -> None:
    """The model under a layout's names, with the files from which that library builds it; in a folder that is free.

    half: in half precision, for our own layout.
    """
    if half and layout != "pellucid":
        raise ValueError(f"half precision is for the layout pellucid; leave it out for {layout}")
    if layout == "pellucid":
        _into(out, (copy.deepcopy(model).half() if half else model).save_pretrained)
        return
    weights = write(model, layout)
    files = describe_config(model.config, layout, str(next(model.parameters()).dtype).removeprefix("torch."))
    _into(out, lambda folder: _save(folder, weights, files))


def _preprocessor(folder: Path) -> dict[str, Any] | None:
    path = folder / "preprocessor_config.json"
    return read_object(path) if path.is_file() else None


def _check_moments(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    if (mean is None) != (std is None):
        given, lacking = ("mean", "std") if std is None else ("std", "mean")
        raise ValueError(f"{given} is given without {lacking}; expected both, as --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5")
    if std is not None and not all(0 < value < math.inf for value in std):
        raise ValueError(f"std is {' '.join(map(str, std))}; expected numbers above zero, for pixels in 0…1")
    if mean is not None and not all(0 <= value <= 1 for value in mean):
        raise ValueError(f"mean is {' '.join(map(str, mean))}; expected numbers in 0…1, as pixels are")


def check_free(out: Path) -> None:
    """Refuse a folder that holds something, before anything is read for it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already; give a folder that is empty or not there yet")


def find_weights(folder: Path) -> Path:
    names = (WEIGHTS, "pytorch_model.bin")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(f"{folder} holds no {' and no '.join(names)}")
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_weights(path)
    if path.suffix not in PICKLED:
        raise ValueError(f"{path} is no file of weights; expected .safetensors or {', '.join(PICKLED)}")
    return read_pickled(path)


def read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no {path.name}")
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {brief(data)}; expected an object")
    return data


def _save(folder: Path, weights: dict[str, Tensor], files: dict[str, dict[str, Any]]) -> None:
    write_weights(folder / WEIGHTS, weights, {"format": "pt"})  # transformers reads no file without this word
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _into(out: Path, save: Callable[[Path], Any]) -> None:
    """Save beside `out` and rename, so that `out` is never half a model."""
    make_folder(out.parent)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    unfinished.mkdir()
    try:
        save(unfinished)
        if out.exists():
            out.rmdir()
        sync_named(unfinished)
        unfinished.rename(out)
        sync(out.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
