"""Models on disk and on the Hub: config.json beside model.safetensors, through huggingface_hub's mixin.

Nothing is unpickled, and nothing is skipped: a key too many or too few is an error that names it.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from pellucid.config import MOST_SHOWN, brief, from_json, one_line, read_json, to_json
from pellucid.files import make_folder, replace_file, write_text
from pellucid.models.sizes import check_memory, outline

Config = TypeVar("Config")
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MOST_HEADER = 1 << 24  # bytes, for some 100,000 tensors; safetensors itself takes up to 100 MB
MOST_NAMED = 10  # of the tensors that don't fit, in a sentence
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
        model = build(cls, read_config(cls, files[0]), read_shapes(files[1]), files[1])
        load_strictly(model, read_weights(files[1]), files[1])
        return model.to(map_location).eval()


def read_config(cls: type[Pretrained], path: Path) -> Any:
    data = read_json(path)
    if isinstance(data, dict) and (kind := data.pop("model", cls.__name__)) != cls.__name__:
        raise ValueError(f"{path} describes a {brief(kind)}; expected a {cls.__name__}")
    try:
        return from_json(cls.config_class, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def build(cls: Any, config: Any, shapes: Mapping[str, torch.Size], source: Any) -> Any:
    """The module that a config describes, made once it is known that the weights fit it, and that there is memory."""
    planned = outline(cls, config)
    check_shapes(planned, shapes, source)
    check_memory(planned)
    return cls(config)


def open_tensors(path: Path) -> Any:
    """safetensors' reader of a file whose header is no larger than it needs to be."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MOST_HEADER:
        raise SafetensorError(f"its header is said to take {length:,} bytes; expected up to {MOST_HEADER:,}")
    return safe_open(path, framework="pt")


def read_shapes(path: Path) -> dict[str, torch.Size]:
    """The shape of each tensor in a safetensors file, by its name, from the header alone."""
    try:
        with open_tensors(path) as file:
            return {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, error) from None


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        with open_tensors(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged or no safetensors file ({one_line(str(error))[:300]})")


def write_weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that others may read: safetensors itself leaves it to its owner alone."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    path.chmod(0o644)


def check_shapes(model: nn.Module, shapes: Mapping[str, torch.Size], source: Any) -> None:
    """Every tensor of the model is there in its shape, and no other; ValueError if not."""
    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    problems = {
        "lacks": own.keys() - shapes.keys(),
        "has unknown": shapes.keys() - own.keys(),
        "has the wrong shape for": {name for name in own.keys() & shapes.keys() if own[name] != shapes[name]},
    }
    said = [f"{problem} {some_names(names)}" for problem, names in problems.items() if names]
    if said:
        raise ValueError(f"{source} doesn't fit this {type(model).__name__}: it {'; it '.join(said)}")


def load_strictly(model: nn.Module, weights: dict[str, Tensor], source: Any) -> None:
    """Copy the weights into the model, in the model's own precision; every key and shape must match."""
    check_shapes(model, {name: tensor.shape for name, tensor in weights.items()}, source)
    own = model.state_dict()
    if odd := [name for name, value in own.items() if value.is_floating_point() != weights[name].is_floating_point()]:
        raise ValueError(
            f"{source} doesn't fit this {type(model).__name__}: it has other than real numbers for {some_names(odd)}"
        )
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(weights[key])


def some_names(names: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    first = sorted(names)
    more = f" and {len(first) - MOST_NAMED:,} more" if len(first) > MOST_NAMED else ""
    return ", ".join(name[: 2 * MOST_SHOWN] for name in first[:MOST_NAMED]) + more


def _file(model_id: str, name: str, options: dict[str, Any]) -> Path:
    if Path(model_id).is_dir():
        path = Path(model_id) / name
        if not path.is_file():
            raise ValueError(f"{model_id} holds no {name}; expected a folder with {CONFIG} and {WEIGHTS}")
        return path
    return Path(hf_hub_download(model_id, name, **options))
