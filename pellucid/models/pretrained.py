"""Models on disk and on the Hub: config.json beside model.safetensors, through huggingface_hub's mixin.

Nothing is unpickled, and nothing is skipped: a key too many or too few is an error that names it.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pellucid.config import from_json, read_json, to_json
from pellucid.files import make_folder, replace_file, write_text

Config = TypeVar("Config")
CONFIG, WEIGHTS = "config.json", "model.safetensors"
FOR_THE_HUB = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class Pretrained(ModelHubMixin, Generic[Config], library_name="pellucid"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a module built from one config."""

    config: Config
    config_class: ClassVar[type]

    def __init_subclass__(cls, *, config_class: type | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if config_class is not None:
            cls.config_class = config_class

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """config.json and model.safetensors in a folder. options: for the Hub, as push_to_hub and repo_id."""
        make_folder(Path(save_directory))
        return super().save_pretrained(save_directory, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        assert isinstance(self, nn.Module)
        kind = {"model": type(self).__name__}
        text = json.dumps(kind | to_json(self.config), indent=2)
        write_text(save_directory / CONFIG, text + "\n")
        replace_file(save_directory / WEIGHTS, lambda part: write_weights(part, self.state_dict()))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, map_location: str = "cpu", **options: Any
    ) -> Self:
        """The model in a folder or on the Hub, for inference. options: for the Hub, as revision and cache_dir."""
        # The mixin's own method would read config.json too, and fall over what `read_config` says in a sentence.
        unknown = sorted(set(options) - set(FOR_THE_HUB))
        if unknown:
            raise ValueError(f"from_pretrained doesn't know {', '.join(unknown)}; expected {', '.join(FOR_THE_HUB)}")
        return cls._from_pretrained(model_id=str(pretrained_model_name_or_path), map_location=map_location, **options)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, map_location: str = "cpu", **options: Any) -> Self:
        files = [_file(model_id, name, options) for name in (CONFIG, WEIGHTS)]
        model = cls(read_config(cls, files[0]))  # pyright: ignore[reportCallIssue]
        assert isinstance(model, nn.Module)
        load_strictly(model, read_weights(files[1]), files[1])
        return model.to(map_location).eval()


def read_config(cls: type[Pretrained], path: Path) -> Any:
    data = read_json(path)
    if isinstance(data, dict) and (kind := data.pop("model", cls.__name__)) != cls.__name__:
        raise ValueError(f"{path} describes a {kind}; expected a {cls.__name__}")
    return from_json(cls.config_class, data)


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error})") from None


def write_weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that others may read: safetensors itself leaves it to its owner alone."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    path.chmod(0o644)


def load_strictly(model: nn.Module, weights: dict[str, Tensor], source: Any) -> None:
    """Copy the weights into the model, in the model's own precision; every key and shape must match."""
    own = model.state_dict()
    problems = {
        "lacks": sorted(set(own) - set(weights)),
        "has unknown": sorted(set(weights) - set(own)),
        "has the wrong shape for": sorted(k for k in own.keys() & weights.keys() if own[k].shape != weights[k].shape),
    }
    said = [f"{problem} {', '.join(keys)}" for problem, keys in problems.items() if keys]
    if said:
        raise ValueError(f"{source} doesn't fit this {type(model).__name__}: it {'; it '.join(said)}")
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(weights[key])


def _file(model_id: str, name: str, options: dict[str, Any]) -> Path:
    if Path(model_id).is_dir():
        path = Path(model_id) / name
        if not path.is_file():
            raise ValueError(f"{model_id} holds no {name}; expected a folder with {CONFIG} and {WEIGHTS}")
        return path
    return Path(hf_hub_download(model_id, name, **options))
