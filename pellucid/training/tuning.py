"""A model made ready for fine-tuning: what of it stays, what moves beside LoRA's products, and each part's pace."""

import re
from typing import NamedTuple

import torch
from torch import nn

from pellucid.layers import LayerNorm, LayerScale, LearnedGrid, LearnedTokens, RMSNorm
from pellucid.models import Captioner, ViT
from pellucid.models.pretrained import some_names
from pellucid.runs.config import Run
from pellucid.runs.tuning import BODY, Tune
from pellucid.training.lora import HIDDEN, PRODUCT, adapt

IN_BLOCK = re.compile(r"(?:encoder\.)?blocks\.(\d+)\.")


class Pace(NamedTuple):
    """share: of the rate. begins: at which share of the run; before that it doesn't move."""

    share: float = 1.0
    begins: float = 0.0


def prepare(model: nn.Module, run: Run) -> None:
    """Freeze what a run says should stay as it is, and put LoRA's products where it says."""
    tune = run.tune
    if tune.rank:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not in_body(model, name))
        _adapt(model, tune, run.seed)
        _release(model, tune)
    for part in tune.freeze:
        _freeze(model, part)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"tune.freeze ({', '.join(tune.freeze)}) leaves nothing to train; leave some of it out")


def in_body(model: nn.Module, name: str) -> bool:
    """Whether a parameter was there before, where a model begins with trained weights."""
    return name.startswith("encoder.") if isinstance(model, Captioner) else not name.startswith("head.")


def paces(model: nn.Module, tune: Tune) -> dict[str, Pace]:
    """How fast each parameter moves that isn't as fast as the rate says, by name.

    >>> from pellucid.models import ViTConfig
    >>> model = ViT(ViTConfig(width=8, depth=2, heads=2))
    >>> slow = paces(model, Tune(layer_decay=0.5))
    >>> slow["blocks.1.attention.q.weight"].share, slow["embed.project.weight"].share, "head.weight" in slow
    (0.5, 0.125, False)
    """
    if tune.layer_decay == 1.0 and not tune.thaw:
        return {}
    encoder = model.encoder if isinstance(model, Captioner) else model
    if not isinstance(encoder, ViT):
        field = "thaw" if tune.thaw else "layer_decay"
        raise ValueError(
            f"tune.{field} goes from block to block of a vision transformer; leave it out for a {type(model).__name__}"
        )
    depth = encoder.config.depth
    return {
        name: Pace(tune.layer_decay**level, tune.thaw * level / (depth + 1))
        for name, _ in model.named_parameters()
        if (level := _level(name, depth) if in_body(model, name) else 0)
    }


def _level(name: str, depth: int) -> int:
    """How many blocks a parameter of the body is below the head; what makes the tokens is below all."""
    if match := IN_BLOCK.match(name):
        return depth - int(match[1])
    return 1 if name.removeprefix("encoder.").startswith(("norm.", "pool.")) else depth + 1


def count_trained(model: nn.Module) -> tuple[int, int]:
    """How many numbers training moves, and how many the model has when it is kept."""
    trained = sum(p.nelement() for p in model.parameters() if p.requires_grad)
    return trained, sum(p.nelement() for name, p in model.named_parameters() if PRODUCT not in name)


def _adapt(model: nn.Module, tune: Tune, seed: int) -> None:
    """Put products into the body's blocks; the same ones in every process."""
    generator = torch.Generator().manual_seed(seed)
    scale = 1.0 if tune.alpha is None else tune.alpha / tune.rank
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in tune.adapt and in_body(model, name)
        if "blocks" in name.split(".")
    ]
    if not layers:
        raise ValueError(
            f"tune.rank is {tune.rank}, but a {type(model).__name__} has no blocks of ours with {', '.join(tune.adapt)}"
        )
    for linear in layers:
        if tune.rank > min(linear.weight.shape):
            rows, columns = linear.weight.shape
            raise ValueError(
                f"tune.rank is {tune.rank}, and a matrix of {rows}×{columns} has no more than {min(rows, columns)}"
            )
        adapt(linear, tune.rank, scale, generator)


def _release(model: nn.Module, tune: Tune) -> None:
    """Let move what a run wants moved beside the products."""
    if "norms" in tune.beside:
        for module in model.modules():
            if isinstance(module, LayerNorm | RMSNorm | LayerScale):
                module.requires_grad_(True)
    if "tokens" in tune.beside:
        for module in model.modules():
            if isinstance(module, LearnedTokens | LearnedGrid):
                module.requires_grad_(True)
    if "biases" in tune.beside:
        biases = [p for name, p in model.named_parameters() if name.endswith(".bias") and HIDDEN not in name]
        for parameter in biases:
            parameter.requires_grad_(True)


def _freeze(model: nn.Module, part: str) -> None:
    names = dict(model.named_parameters())
    chosen = [name for name in names if (in_body(model, name) if part == BODY else f"{name}.".startswith(f"{part}."))]
    if not chosen:
        parts = {name.partition(".")[0] for name in names}
        raise ValueError(
            f"tune.freeze names {part!r}, and the model has no such part; it has body, {some_names(parts)}"
        )
    for name in chosen:
        names[name].requires_grad_(False)
