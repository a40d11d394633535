"""What a run has kept of itself: its weights at each checkpoint, so that a picture can be followed through training."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from pellucid.models import Captioner, ViT
from pellucid.models.pretrained import load_strictly
from pellucid.training.checkpoint import read_facts
from pellucid.training.config import CaptionerRun
from pellucid.training.folder import RunFolder


def checkpoints_of(run: Path) -> list[tuple[int, Path]]:
    """The weights that a run has kept, with the steps they are of, the earliest first. Damaged ones are left out."""
    found = [
        (step, file) for file in (run / "checkpoints").glob("*.safetensors") if (step := step_of(file)) is not None
    ]
    return sorted(found, key=lambda each: (each[0], each[1].name))


def step_of(checkpoint: Path) -> int | None:
    """When in training it was written; None if it can't be told."""
    try:
        step = read_facts(checkpoint).get("step")
    except (ValueError, OSError):
        return None
    return step if isinstance(step, int) and step >= 0 else None


def model_at(run: Path, checkpoint: Path) -> ViT | Captioner:
    """The run's model with these weights; their average where there is one."""
    config = RunFolder(run).config()
    try:
        tensors = load_file(checkpoint)
    except SafetensorError as error:
        raise ValueError(f"the checkpoint {checkpoint.stem} is damaged ({error})") from None
    weights = {}
    for prefix in ("model.", "average."):  # in this order: what has an average is looked at by it
        weights |= {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    model = Captioner(config.model) if isinstance(config, CaptionerRun) else ViT(config.model)
    load_strictly(model, weights, checkpoint)
    return model.eval()
