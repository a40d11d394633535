"""vit-pytorch: most of its models write attention out, with einops around it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import BATCH, images
from zoo.stubs import load

PLAIN: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64,
    "dim_head": 8,
}  # fmt: skip
FILM = {name: value for name, value in PLAIN.items() if name != "patch_size"}
STAGES = {f"s{i}_{part}": n for i in (1, 2, 3) for part, n in (("emb_dim", 16 * i), ("heads", i), ("depth", 1))}
TWINS = {
    f"s{i}_{part}": n
    for i in (1, 2, 3, 4)
    for part, n in (("emb_dim", 16 * i), ("local_patch_size", 2), ("global_k", 2), ("depth", 1))
}
CROSS = {"sm_dim": 16, "lg_dim": 32, "sm_patch_size": 8, "lg_patch_size": 16, "cross_attn_depth": 1} | {
    f"{part}_{name}": n
    for part in ("sm_enc", "lg_enc")
    for name, n in (("depth", 1), ("heads", 2), ("mlp_dim", 32), ("dim_head", 8))
}


def one(name: str = "img", size: int = 32) -> Inputs:
    return {name: images(size)}


def film() -> Inputs:
    return {"video": torch.randn(BATCH, 3, 4, 32, 32)}


def many(name: str) -> Inputs:
    """Pictures of different sizes."""
    pictures = [torch.randn(3, 32, 32), torch.randn(3, 16, 32)]
    return {name: [pictures] if name == "batched_images" else pictures}


def make(model: str, file: str, settings: dict[str, Any], inputs: Callable[[], Inputs]) -> tuple[nn.Module, Inputs]:
    return getattr(load(f"vit_pytorch.{file}"), model)(**settings), inputs()


# family, model, file, attentions, settings, what it is called with
MODELS: list[tuple[str, str, str, int, dict[str, Any], Callable[[], Inputs]]] = [
    ("ViT", "ViT", "vit", 2, PLAIN, one),
    ("SimpleViT", "SimpleViT", "simple_vit", 2, PLAIN, one),
    ("SimpleFlashViT", "SimpleViT", "simple_flash_attn_vit", 2, PLAIN, one),
    ("DeepViT", "DeepViT", "deepvit", 2, PLAIN, one),
    ("CaiT", "CaiT", "cait", 3, PLAIN | {"cls_depth": 1}, one),
    (
        "CrossViT", "CrossViT", "cross_vit", 4,
        CROSS | {"image_size": 32, "num_classes": 10, "depth": 1, "cross_attn_heads": 2, "cross_attn_dim_head": 8}, one,
    ),
    ("PiT", "PiT", "pit", 2, PLAIN | {"depth": (1, 1)}, one),
    (
        "LeViT", "LeViT", "levit", 3,
        {"image_size": 64, "num_classes": 10, "dim": (16, 32), "depth": 1, "heads": 2, "mlp_mult": 2, "stages": 2,
         "dim_key": 8, "dim_value": 8},
        partial(one, size=64),
    ),
    (  # one layer, and a pooling by the softmax of a learned query
        "CCT", "CCT", "cct", 2,
        {"img_size": 32, "embedding_dim": 32, "num_layers": 1, "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 10},
        partial(one, "x"),
    ),
    ("CvT", "CvT", "cvt", 3, STAGES | {"num_classes": 10}, partial(one, "x", 64)),
    ("NaViT-nested", "NaViT", "na_vit_nested_tensor", 3, PLAIN, partial(many, "images")),
    ("NaViT", "NaViT", "na_vit", 3, PLAIN, partial(many, "batched_images")),
    (
        "MaxViT", "MaxViT", "max_vit", 4,
        {"num_classes": 10, "dim": 16, "depth": (1, 1), "dim_head": 8, "window_size": 4}, partial(one, "x", 64),
    ),
    # Each stage has 1 + depth layers, and a layer attends locally and globally; in the last stage globally alone.
    ("Twins", "TwinsSVT", "twins_svt", 14, TWINS | {"num_classes": 10}, partial(one, "x", 64)),
    ("ViT-registers", "SimpleViT", "simple_vit_with_register_tokens", 2, PLAIN, one),
    ("ViT qk-norm", "SimpleViT", "simple_vit_with_qk_norm", 2, PLAIN, one),
    ("SmallDataset", "ViT", "vit_for_small_dataset", 2, PLAIN, one),
    (
        "3D ViT", "ViT", "vit_3d", 2, FILM | {"image_patch_size": 8, "frames": 4, "frame_patch_size": 2}, film,
    ),
]  # fmt: skip
QUICK = {"ViT", "DeepViT", "CaiT", "LeViT", "CCT", "CvT", "NaViT-nested", "NaViT", "Twins"}

ENTRIES = [
    Entry(
        "vit-pytorch", f"vit-pytorch/{family}", model, "default", attentions,
        partial(make, model, file, settings, inputs), family in QUICK,
    )
    for family, model, file, attentions, settings, inputs in MODELS
]  # fmt: skip
