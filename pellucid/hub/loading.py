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
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.hub import parts
from pellucid.models.captioner import Captioner
from pellucid.models.pretrained import CONFIG, WEIGHTS, load_strictly, read_weights
from pellucid.models.vit import ViT

SHIPPED = Path(__file__).parent / "weights"
TOKENIZER = "tokenizer.json"
SECOND_STAGE = "critical"  # folder of a run in a run, which goes on from the weights of the first
KINDS: dict[str, type[ViT] | type[Captioner]] = {"ViT": ViT, "Captioner": Captioner}


def load(name: str | Path, device: torch.device | str = "cpu") -> ViT:
    """The vision transformer of a run (its best weights, else its last), of a saved folder, or a shipped one."""
    model = _model(_folder(name))
    if not isinstance(model, ViT):
        raise ValueError(f"{name} is a captioner; expected a classifier (pellucid caption says what a captioner sees)")
    return model.to(device).eval()


def load_captioner(name: str | Path, device: torch.device | str = "cpu") -> tuple[Captioner, CaptionTokenizer]:
    """The captioner of a run, of a saved folder, or a shipped one, and the words it speaks."""
    folder = _folder(name)
    model = _model(folder)
    if not isinstance(model, Captioner):
        raise ValueError(f"{name} is a classifier; expected a captioner (pellucid predict says what a classifier sees)")
    tokenizer = CaptionTokenizer.load(folder / TOKENIZER)
    if len(tokenizer) != model.config.vocabulary:
        raise ValueError(
            f"{folder / TOKENIZER} has {len(tokenizer)} tokens and the model {model.config.vocabulary}; "
            "they don't belong together"
        )
    return model.to(device).eval(), tokenizer


def kind_of(name: str | Path) -> type[ViT] | type[Captioner]:
    """What sort of model this is, by its config alone."""
    folder = _folder(name)
    return _kind(_json(folder / CONFIG), folder / CONFIG)


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def normalisation(model: ViT | Captioner) -> Normalise:
    """How the model wants its pixels."""
    config = model.config if isinstance(model, ViT) else model.config.encoder
    mean, std = config.mean, config.std
    if mean is None or std is None:
        raise ValueError("the model doesn't say how its images were normalised; put mean and std into its config.json")
    return Normalise(mean, std)


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


def _kind(data: dict[str, Any], source: Path) -> type[ViT] | type[Captioner]:
    said = data.get("model", "ViT")
    if isinstance(said, dict):  # of a run: the model's config, and a captioner has an encoder
        return Captioner if "encoder" in said else ViT
    if said not in KINDS:
        raise ValueError(f"{source} describes a {said}; expected a {' or a '.join(KINDS)}")
    return KINDS[said]


def _model(folder: Path) -> ViT | Captioner:
    data = _json(folder / CONFIG)
    kind = _kind(data, folder / CONFIG)
    if "recipe" in data and isinstance(data.get("model"), dict):
        model = _built(kind, data["model"], folder / CONFIG)
        second = folder / SECOND_STAGE
        fill_from_run(model, second if _weights(second) else folder)
        return model
    data.pop("model", None)
    model = _built(kind, data, folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} holds no {WEIGHTS}; expected it beside {CONFIG}")
    load_strictly(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    return model


def _built(kind: type[ViT] | type[Captioner], config: Any, source: Path) -> ViT | Captioner:
    try:
        return kind(from_json(kind.config_class, config))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _weights(run: Path) -> Path | None:
    """Where the best weights of a run lie, else its last ones: a file, or a folder if many processes wrote it."""
    checkpoints = run / "checkpoints"
    files = (checkpoints / f"{which}.safetensors" for which in ("best", "last"))
    return next((path for path in files if path.is_file()), parts.newest(checkpoints))


def fill_from_run(model: ViT | Captioner, folder: Path) -> None:
    """The best weights of a run, else its last; their average where there is one."""
    source = _weights(folder)
    if source is None:
        raise ValueError(
            f"the run {folder} has kept no weights: there is neither best.safetensors nor last.safetensors "
            f"in {folder / 'checkpoints'}"
        )
    weights, average = _under(source, "model."), _under(source, "average.")
    if average:  # of what is learned; what only is remembered (buffers) has no average
        learned = dict(model.named_parameters())
        weights = {name: tensor for name, tensor in weights.items() if name not in learned} | average
    load_strictly(model, weights, source)


def _under(path: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it. The optimizers' memory is not read."""
    if path.is_dir():
        return parts.read_under(path, prefix)
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise parts.damaged(path, error) from None
