"""torchvision: its ViT calls nn.MultiheadAttention, the others write attention out over windows."""

from functools import partial
from typing import Any

from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import images
from zoo.stubs import load


def make(model: str, file: str, settings: dict[str, Any], size: int) -> tuple[nn.Module, Inputs]:
    library = load(f"torchvision.models.{file}")
    named = {name: getattr(library, x) if name in ("block", "downsample_layer") else x for name, x in settings.items()}
    return getattr(library, model)(num_classes=10, **named), {"x": images(size)}


VIT = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64}
SWIN = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
SWIN_V2 = SWIN | {"block": "SwinTransformerBlockV2", "downsample_layer": "PatchMergingV2"}
MAXVIT = {
    "input_size": (64, 64), "stem_channels": 16, "partition_size": 4, "block_channels": [16, 32],
    "block_layers": [1, 1], "head_dim": 8, "stochastic_depth_prob": 0.0,
}  # fmt: skip

ENTRIES = [
    Entry("torchvision", f"torchvision/{family}", name, "default", n, partial(make, *rest), quick=True)
    for family, name, n, *rest in [
        ("vit", "vit_b_16 small", 2, "VisionTransformer", "vision_transformer", VIT, 32),
        ("swin", "swin small", 4, "SwinTransformer", "swin_transformer", SWIN, 64),
        ("swin_v2", "swin_v2 small", 4, "SwinTransformer", "swin_transformer", SWIN_V2, 64),
        ("maxvit", "maxvit", 4, "MaxVit", "maxvit", MAXVIT, 64),
    ]
]
