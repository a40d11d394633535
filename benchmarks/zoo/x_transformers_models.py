"""x-transformers: one attention with many options, through PyTorch's kernel ("flash") or written out with einsum."""

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import BATCH, words
from zoo.stubs import load

LAYERS: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}


def make(kind: str, flash: bool, options: dict[str, Any]) -> tuple[nn.Module, Inputs]:
    library = load("x_transformers")
    load("loguru").logger.disable("x_transformers")  # it has advice for training
    layers = getattr(library, kind)(**LAYERS, **options, attn_flash=flash)
    model = library.TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
    context = {"context": torch.randn(BATCH, 7, 32)} if "cross_attend" in options else {}
    return model, {"x": words()} | context


def translator() -> tuple[nn.Module, Inputs]:
    """Its output is a loss, whose softmax is none of attention."""
    side = {"num_tokens": 99, "depth": 2, "heads": 4, "max_seq_len": 32, "attn_flash": True, "attn_dim_head": 8}
    options = {f"{part}_{name}": value for part in ("enc", "dec") for name, value in side.items()}
    return load("x_transformers").XTransformer(dim=32, **options), {"src": words(), "tgt": words(7)}


# family, kind of layers, attentions, options
BOTH: list[tuple[str, str, int, dict[str, Any]]] = [
    ("Encoder", "Encoder", 2, {}),
    ("Decoder", "Decoder", 2, {}),
    ("Decoder rotary gqa", "Decoder", 2, {"rotary_pos_emb": True, "attn_kv_heads": 2}),
    ("Decoder alibi", "Decoder", 2, {"alibi_pos_bias": True, "alibi_num_heads": 2}),
    ("Decoder qk_norm", "Decoder", 2, {"attn_qk_norm": True}),
    ("Decoder mem_kv", "Decoder", 2, {"attn_num_mem_kv": 3}),
    ("Decoder cross", "Decoder", 4, {"cross_attend": True}),
]
WRITTEN_OUT: list[tuple[str, str, int, dict[str, Any]]] = [
    ("talking heads", "Decoder", 2, {"attn_pre_talking_heads": True, "attn_post_talking_heads": True}),
    ("sparse topk", "Decoder", 2, {"attn_sparse_topk": 3}),
    ("softclamp", "Decoder", 2, {"attn_softclamp_logits": True}),
]
QUICK = {  # by family and flash
    ("Decoder rotary gqa", True), ("Decoder", False), ("Decoder alibi", False), ("Decoder mem_kv", False),
    ("Decoder cross", False), ("talking heads", False), ("sparse topk", False), ("softclamp", False),
}  # fmt: skip


def entry(family: str, kind: str, attentions: int, options: dict[str, Any], flash: bool) -> Entry:
    name, quick = f"x-transformers/{family}", (family, flash) in QUICK
    return Entry(
        "x-transformers",
        name,
        "TransformerWrapper",
        f"{flash=}",
        attentions,
        partial(make, kind, flash, options),
        quick,
    )


ENTRIES = [entry(*row, flash) for flash in (True, False) for row in BOTH]
ENTRIES += [entry(*row, False) for row in WRITTEN_OUT]
ENTRIES += [Entry("x-transformers", "x-transformers/XTransformer", "XTransformer", "flash=True", 6, translator)]
