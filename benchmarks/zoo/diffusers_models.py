"""diffusers: attention with processors, PyTorch's kernel in the newer ones."""

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import BATCH, images
from zoo.stubs import load


def make(model: str, settings: dict[str, Any], *, processor: str = "", **shapes: Any) -> tuple[nn.Module, Inputs]:
    """shapes: of the tensors that it is called with; a number stands for a step or a class."""
    made = getattr(load("diffusers"), model)(**settings)
    if processor:
        made.set_attn_processor(getattr(load("diffusers.models.attention_processor"), processor)())
    given = {
        name: torch.full((BATCH,), shape) if isinstance(shape, int) else torch.randn(shape)
        for name, shape in shapes.items()
    }
    return made, given


def flux() -> tuple[nn.Module, Inputs]:
    settings = {
        "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": [4, 4, 8],
    }  # fmt: skip
    made, given = make(
        "FluxTransformer2DModel", settings, hidden_states=(BATCH, 16, 4), encoder_hidden_states=(BATCH, 7, 32),
        pooled_projections=(BATCH, 32), timestep=1,
    )  # fmt: skip
    return made, given | {"img_ids": torch.randn(16, 3), "txt_ids": torch.zeros(7, 3)}


def autoencoder() -> tuple[nn.Module, Inputs]:
    settings = {
        "block_out_channels": (16, 32), "norm_num_groups": 8, "latent_channels": 4, "layers_per_block": 1,
        "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    }  # fmt: skip
    return load("diffusers").AutoencoderKL(**settings), {"sample": images()}


UNET: dict[str, Any] = {
    "sample_size": 16, "in_channels": 4, "out_channels": 4, "layers_per_block": 1, "block_out_channels": (16, 32),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32, "attention_head_dim": 4, "norm_num_groups": 8,
}  # fmt: skip
# Down 1, in the middle 1, up 2 transformer blocks, each with attention to itself and to the text.
unet = partial(
    make, "UNet2DConditionModel", UNET, sample=(BATCH, 4, 16, 16), timestep=1, encoder_hidden_states=(BATCH, 7, 32)
)
DIT: dict[str, Any] = {
    "sample_size": 8, "in_channels": 4, "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16,
    "patch_size": 2, "num_embeds_ada_norm": 10,
}  # fmt: skip
SD3: dict[str, Any] = {
    "sample_size": 8, "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_attention_heads": 2,
    "attention_head_dim": 16, "patch_size": 2, "joint_attention_dim": 32, "caption_projection_dim": 32,
    "pooled_projection_dim": 32, "pos_embed_max_size": 8,
}  # fmt: skip
dit = partial(make, "DiTTransformer2DModel", DIT, hidden_states=(BATCH, 4, 8, 8), timestep=1, class_labels=3)
sd3 = partial(
    make, "SD3Transformer2DModel", SD3, hidden_states=(BATCH, 4, 8, 8), timestep=1,
    encoder_hidden_states=(BATCH, 7, 32), pooled_projections=(BATCH, 32),
)  # fmt: skip
old = partial(unet, processor="AttnProcessor")

ENTRIES = [
    Entry("diffusers", f"diffusers/{family}", model, implementation, attentions, build, quick=quick)
    for family, model, implementation, attentions, build, quick in [
        ("UNet2DCondition", "UNet2DConditionModel", "default", 8, unet, False),
        ("UNet sliced", "UNet2DConditionModel", "AttnProcessor (old)", 8, old, True),
        ("DiT", "DiTTransformer2DModel", "default", 2, dit, False),
        ("SD3", "SD3Transformer2DModel", "default", 2, sd3, True),
        ("Flux", "FluxTransformer2DModel", "default", 2, flux, True),
        ("VAE", "AutoencoderKL", "default", 2, autoencoder, False),
    ]
]
