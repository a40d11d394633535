"""A vision transformer that begins with what another one has learned: its tokens' maker, its blocks, its positions.

Or with the tokens' maker alone, if that is all that there is: `LearnedStem`.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from pellucid.layers.lite import SIDE, LiteStem
from pellucid.models.vit import ViT, ViTConfig
from pellucid.ops.positions import interpolate

# What needn't be alike: the head, the places of the patches, the tokens beside them, what acts in training only.
FREE = (
    *("classes", "image", "pooling", "registers", "norm_first", "zero_branches", "labels", "mean", "std"),
    *("dropout", "attention_dropout", "drop_path", "drop_token", "keep_aspect"),
)
SHAPE = tuple(field.name for field in fields(ViTConfig) if field.name not in FREE)


@dataclass(frozen=True)
class LearnedStem:
    """Convolutions that have learned to see, with no blocks on top, and how they want their pixels."""

    stem: LiteStem
    image: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def config(self, own: ViTConfig) -> ViTConfig:
        """Of a model of one's own on top of it."""
        pixels = {"image": self.image, "mean": own.mean or self.mean, "std": own.std or self.std}
        return replace(own, stem=self.stem.kind, patch=(SIDE, SIDE), channels=3, **pixels)


def adopt_config(own: ViTConfig, source: ViTConfig) -> ViTConfig:
    """The config of a model that begins as `source`: its shape and its normalisation of pixels, the rest one's own.

    Where no class token is pooled, the source's goes on as the first register.

    >>> adopt_config(ViTConfig(classes=3, image=(64, 64)), ViTConfig(width=64, depth=5)).depth
    5
    """
    return replace(
        own,
        **{name: getattr(source, name) for name in SHAPE},
        registers=source.registers + (source.pooling == "class" != own.pooling),
        norm_first=source.norm_first,
        mean=own.mean or source.mean,
        std=own.std or source.std,
    )


@torch.no_grad()
def start_from(model: ViT, source: ViT | LearnedStem) -> None:
    """Copy what the source has learned into the model, all but its head; positions are interpolated to another grid.

    A class token that the model doesn't pool becomes its first register, if it has one for it; registers are copied if
    there are as many.
    """
    if isinstance(source, LearnedStem):
        if model.config.stem != source.stem.kind:
            raise ValueError(f"the stem doesn't fit the encoder: it is {source.stem.kind!r}, not {model.config.stem!r}")
        model.embed.body.load_state_dict(source.stem.state_dict())
        return
    check_alike(model.config, source.config)
    for part in ("embed", "token_norm", "blocks", "norm"):
        getattr(model, part).load_state_dict(getattr(source, part).state_dict())
    if model.pool is not None and source.pool is not None:
        model.pool.load_state_dict(source.pool.state_dict())
    if model.class_token is not None and source.class_token is not None:
        model.class_token.load_state_dict(source.class_token.state_dict())
    if model.register_tokens is not None:
        fitting = [tokens for tokens in _lead(source) if len(tokens) == model.config.registers]
        if fitting:
            model.register_tokens.tokens.copy_(fitting[0])
    if model.grid is not None and source.grid is not None:
        model.grid.table.copy_(interpolate(source.grid.table, model.embed.grid(*model.config.image)))


def check_alike(own: ViTConfig, source: ViTConfig) -> None:
    """ValueError unless one can begin as the other."""
    differing = [name for name in SHAPE if getattr(source, name) != getattr(own, name) and name != "layer_scale"]
    if (source.layer_scale is None) != (own.layer_scale is None):
        differing.append("layer_scale")
    if differing:
        pairs = (f"{name} {getattr(source, name)!r}, not {getattr(own, name)!r}" for name in differing)
        raise ValueError(f"the vision transformer doesn't fit the encoder: it has {'; '.join(pairs)}")


def _lead(vit: ViT) -> list[Tensor]:
    """The tokens that stand before those of the patches, as they may go on: the registers alone, or all."""
    parts: list[Tensor] = [each.tokens for each in (vit.class_token, vit.register_tokens) if each is not None]
    return [*parts[-1:], torch.cat(parts)] if parts else []
