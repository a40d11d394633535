"""open_clip: nn.MultiheadAttention in blocks of its own, and poolings that attend."""

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import BATCH, images
from zoo.stubs import load

VISION: dict[str, Any] = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32}
TEXT: dict[str, Any] = {"context_length": 12, "vocab_size": 99, "width": 32, "heads": 4, "layers": 2}
POOL = {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 4}
RESNET = {"layers": (1, 1, 1, 1), "width": 8, "image_size": 32, "head_width": 64}


def make(model: str, vision: dict[str, Any], text: dict[str, Any], **settings: Any) -> tuple[nn.Module, Inputs]:
    made = getattr(load("open_clip"), model)(embed_dim=32, vision_cfg=vision, text_cfg=text, **settings)
    if model == "CoCa":  # leaves its last projection as memory was
        nn.init.normal_(made.text_decoder.text_projection, std=0.2)
    return made, {"image": images(), "text": torch.randint(10, 99, (BATCH, 12))}


COCA = partial(
    make, "CoCa", VISION | POOL | {"output_tokens": True},
    TEXT | {"embed_cls": True, "output_tokens": True},
    multimodal_cfg=TEXT | {"dim_head": 8},
)  # fmt: skip

ENTRIES = [
    Entry("open_clip", "open_clip/CLIP", "CLIP", "default", 4, partial(make, "CLIP", VISION, TEXT)),
    Entry(
        "open_clip", "open_clip/CLIP attn-pool", "CLIP", "attentional_pool", 5,
        partial(make, "CLIP", VISION | POOL, TEXT), quick=True,
    ),
    # Picture 2, its pooling 1, text 2, and a decoder of 2 layers that attend to text and to the picture.
    Entry("open_clip", "open_clip/CoCa", "CoCa", "default", 9, COCA, quick=True),
    Entry("open_clip", "open_clip/RN", "CLIP RN", "default", 3, partial(make, "CLIP", RESNET, TEXT)),
]  # fmt: skip
