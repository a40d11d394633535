"""A trained model by its name: a run's folder, a saved folder, or one that comes with the package.

A run's files are read as they lie on disk: this room does not know how training works, only what it leaves behind.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pellucid.config import from_json
from pellucid.data.augment import Normalise
from pellucid.models.pretrained import CONFIG, WEIGHTS, load_strictly, read_weights
from pellucid.models.vit import ViT, ViTConfig

SHIPPED = Path(__file__).parent / "weights"


def load(name: str | Path, device: torch.device | str = "cpu") -> ViT:
    """The model of a run (its best weights, else its last), of a saved folder, or a shipped one; in eval mode."""
    folder = _folder(name)
    data = _json(folder / CONFIG)
    is_run = "recipe" in data and isinstance(data.get("model"), dict)
    model = _of_a_run(folder, data) if is_run else _saved(folder, data)
    return model.to(device).eval()


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def normalisation(model: ViT) -> Normalise:
    """How the model wants its pixels."""
    mean, std = model.config.mean, model.config.std
    if mean is None or std is None:
        raise ValueError("the model doesn't say how its images were normalised; put mean and std into its config.json")
    return Normalise(mean, std)


def class_names(model: ViT) -> tuple[str, ...]:
    """What the model calls its answers; their numbers if it has no names for them."""
    return model.config.labels or tuple(str(i) for i in range(model.config.classes))


def _folder(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if (path / CONFIG).is_file():
        return path
    if str(name) in shipped():
        return SHIPPED / str(name)
    known = ", ".join(shipped()) or "none"
    why = f"has no {CONFIG}" if path.is_dir() else "is a file" if path.is_file() else "is not there"
    raise ValueError(
        f"no model {str(name)!r}: as a path it {why}, and the shipped models are: {known}; "
        f"give the folder of a run, a folder with {CONFIG} and {WEIGHTS}, or a shipped name"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no object; expected the config of a run or of a model")
    return data


def _built(config: Any, source: Path) -> ViT:
    try:
        return ViT(from_json(ViTConfig, config))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _saved(folder: Path, data: dict[str, Any]) -> ViT:
    kind = data.pop("model", ViT.__name__)
    if kind != ViT.__name__:
        raise ValueError(f"{folder / CONFIG} describes a {kind}; expected a {ViT.__name__}")
    model = _built(data, folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}; expected it beside {CONFIG}")
    load_strictly(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return model


def _of_a_run(folder: Path, data: dict[str, Any]) -> ViT:
    model = _built(data["model"], folder / CONFIG)
    best, last = (folder / "checkpoints" / f"{which}.safetensors" for which in ("best", "last"))
    source = best if best.is_file() else last
    if not source.is_file():
        raise ValueError(
            f"the run {folder} has kept no weights: there is neither {best.name} nor {last.name} in {best.parent}"
        )
    weights, average = _under(source, "model."), _under(source, "average.")
    if average:  # of what is learned; what only is remembered (buffers) has no average
        learned = dict(model.named_parameters())
        weights = {name: tensor for name, tensor in weights.items() if name not in learned} | average
    load_strictly(model, weights, source)
    return model


def _under(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it. The optimizers' memory is not read."""
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no checkpoint ({error})") from None
