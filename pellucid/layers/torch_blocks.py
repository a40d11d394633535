"""PyTorch's layers of a transformer as blocks of ours, and ours as PyTorch's: the same numbers under other names."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pellucid.layers.norm import LayerNorm

TorchLayer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu"}
ATTENTIONS = {"attention": "self_attn", "cross_attention": "multihead_attn"}


def torch_weight(weights: Mapping[str, Tensor], name: str, *, has_cross: bool) -> Tensor | None:
    """Where PyTorch's layer keeps a parameter of our block: itself, or its rows of the packed projections.

    None for the biases of norms in a layer without biases.
    """
    part, *path, kind = name.split(".")
    if part in ATTENTIONS:
        if path == ["out"]:
            return weights[f"{ATTENTIONS[part]}.out_proj.{kind}"]
        return weights[f"{ATTENTIONS[part]}.in_proj_{kind}"].chunk(3)["qkv".index(path[0])]
    if part == "feed_forward":
        return weights[f"{'linear1' if path == ['inner'] else 'linear2'}.{kind}"]
    norms = {"attention_norm": 1, "cross_attention_norm": 2, "feed_forward_norm": 3 if has_cross else 2}
    return weights.get(f"norm{norms[part]}.{kind}")


@torch.no_grad()
def load_torch_weights(block: nn.Module, weights: Mapping[str, Tensor], *, has_cross: bool = False) -> None:
    """Give our block the weights of a layer of PyTorch's."""
    for name, parameter in block.named_parameters():
        theirs = torch_weight(weights, name, has_cross=has_cross)
        parameter.zero_() if theirs is None else parameter.copy_(theirs)


def describe_layer(layer: TorchLayer) -> dict[str, Any]:
    """What makes a block of ours like a layer of PyTorch's."""
    activation = layer.activation
    if isinstance(activation, nn.ReLU | nn.GELU):
        activation = F.relu if isinstance(activation, nn.ReLU) else F.gelu
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation is {activation}; expected relu or gelu")
    return {
        "width": layer.linear1.in_features,
        "heads": layer.self_attn.num_heads,
        "norm": "pre" if layer.norm_first else "post",
        "norm_eps": layer.norm1.eps,
        "hidden": layer.linear1.out_features,
        "activation": ACTIVATIONS[activation],
        "bias": layer.linear1.bias is not None,
        "dropout": layer.dropout.p,
        "attention_dropout": layer.self_attn.dropout,
    }


def make_layer(block: Any) -> Any:
    """A layer of PyTorch's with the weights of our block; batch first."""
    attention, feed = block.attention, block.feed_forward
    identities = (block.attention_scale, attention.q_norm, block.feed_forward_scale, block.drop_path)
    norms = [module for name, module in block.named_children() if name.endswith("_norm")]
    plain = {
        "norm_kind='layer'": all(isinstance(norm, LayerNorm) for norm in norms),
        "activation='relu' or 'gelu'": feed.activation in ACTIVATIONS.values(),
        "no layer_scale, qk_norm and drop_path": all(isinstance(each, nn.Identity) for each in identities),
        "kv_heads equal to heads": attention.kv_heads == attention.heads,
        "no rotary": attention.rotary is None,
        "biases, or none in its norms": feed.inner.bias is not None
        or not any(p.any() for name, p in block.named_parameters() if name.endswith("_norm.bias")),
    }
    if missing := [name for name, holds in plain.items() if not holds]:
        raise ValueError(f"PyTorch's layer can't express this block; it needs {', '.join(missing)}")
    kind = nn.TransformerDecoderLayer if block.reads_context else nn.TransformerEncoderLayer
    dropout = block.dropout.p if isinstance(block.dropout, nn.Dropout) else 0.0
    layer = kind(
        attention.width, attention.heads, feed.inner.out_features, dropout, feed.activation, norms[0].eps,
        batch_first=True, norm_first=block.norm == "pre", bias=feed.inner.bias is not None,
    ).to(feed.inner.weight)  # fmt: skip
    for each in filter(None, (layer.self_attn, getattr(layer, "multihead_attn", None))):
        each.dropout = attention.dropout
    weights = layer.state_dict()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            theirs = torch_weight(weights, name, has_cross=block.reads_context)
            if theirs is not None:
                theirs.copy_(parameter)
    return layer.train(block.training)
