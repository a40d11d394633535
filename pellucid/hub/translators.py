"""Encoder–decoders of PyTorch and of Hugging Face's Marian as ours, and ours as theirs: the same numbers, renamed.

Marian keeps the sines of a position before the cosines, we in turns. So the features of every token stand in another
order there: rows and columns that belong to tokens are put in ours.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.layers.torch_blocks import torch_weight
from pellucid.models import Transformer, TransformerConfig

ATTENTIONS = {"attention": "self_attn", "cross_attention": "encoder_attn"}
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
OTHERS = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
READING = ("q", "k", "v", "inner")  # their columns are features of a token; of all others the rows
ACTIVATIONS = ("relu", "gelu")


def from_marian(config: Any, weights: Mapping[str, Tensor]) -> Transformer:
    """A Marian model as a Transformer: config as Hugging Face's, weights its state dict."""
    check_marian(config, weights)
    model = Transformer(
        TransformerConfig(
            vocabulary=config.vocab_size,
            width=config.d_model,
            heads=config.encoder_attention_heads,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            hidden=config.encoder_ffn_dim,
            activation=config.activation_function,
            max_length=config.max_position_embeddings,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
    )
    order = interleaved(config.d_model)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, theirs, axis in marian_names(own):
            value = weights[theirs]
            own[name].copy_(value if axis is None else value.index_select(axis, order))
    return model.to(weights["model.shared.weight"].dtype).eval()


def to_marian(model: Transformer) -> dict[str, Tensor]:
    """A Transformer's weights as the state dict of a MarianMTModel with the same sizes."""
    c = model.config
    plain = {
        "norm='post'": c.norm == "post", "norm_kind='layer'": c.norm_kind == "layer", "no final norm": not c.final_norm,
        "no qk_norm": not c.qk_norm, "sinusoidal positions": c.positions == "sinusoidal", "tied=True": c.tied,
        "biases": c.bias, f"activation {' or '.join(ACTIVATIONS)}": c.activation in ACTIVATIONS,
    }  # fmt: skip
    if missing := [name for name, holds in plain.items() if not holds]:
        raise ValueError(f"Marian can't express this transformer; it needs {', '.join(missing)}")
    back = interleaved(c.width).argsort()
    own = dict(model.named_parameters())
    weights = {
        theirs: own[name].detach().clone() if axis is None else own[name].detach().index_select(axis, back)
        for name, theirs, axis in marian_names(own)
    }
    words = weights["model.shared.weight"]
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = words
    table = nn.Parameter(model.source_positions(torch.zeros(1, c.max_length, c.width, dtype=words.dtype))[0][:, back])
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = table.detach()
    return weights | {"final_logits_bias": words.new_zeros(1, c.vocabulary)}


def check_marian(config: Any, weights: Mapping[str, Tensor]) -> None:
    alike = {
        "heads": (config.encoder_attention_heads, config.decoder_attention_heads),
        "hidden widths": (config.encoder_ffn_dim, config.decoder_ffn_dim),
    }
    for name, (first, second) in alike.items():
        if first != second:
            raise ValueError(f"the encoder and the decoder have other {name}, {first} and {second}; expected the same")
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"the activation is {config.activation_function!r}; expected one of {', '.join(map(repr, ACTIVATIONS))}"
        )
    if not config.scale_embedding:
        raise ValueError("the embeddings are not multiplied by √d; expected scale_embedding=True")
    bias = weights.get("final_logits_bias")
    if bias is not None and bool((bias != 0).any()):
        raise ValueError("the logits have a bias of their own (final_logits_bias), which a Transformer hasn't")


def marian_names(own: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None]]:
    """Our name of each parameter, theirs, and which of its axes are features of a token."""
    for name in own:
        if name == "source_embedding.table.weight":
            yield name, "model.shared.weight", 1
            continue
        side, _, number, *path, kind = name.split(".")
        part = ".".join(path)
        theirs = f"{ATTENTIONS[path[0]]}.{PROJECTIONS[path[1]]}" if path[0] in ATTENTIONS else OTHERS[part]
        axis = 0
        if path[-1] in READING:
            axis = 1 if kind == "weight" else None
        yield name, f"model.{side}.layers.{number}.{theirs}.{kind}", axis


def interleaved(width: int) -> Tensor:
    """Where Marian keeps each of our features.

    >>> interleaved(6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return torch.arange(width).view(2, -1).t().flatten()


# PyTorch's own


def from_torch_transformer(theirs: nn.Transformer, vocabulary: int, **changes: Any) -> Transformer:
    """The two stacks of an nn.Transformer with embeddings, positions and logits of ours around them.

    changes: fields of the config, as max_length=128.
    """
    layer: Any = theirs.encoder.layers[0]
    activation = {nn.functional.relu: "relu", nn.functional.gelu: "gelu"}.get(layer.activation)
    if activation is None:
        raise ValueError(f"the activation is {layer.activation}; expected relu or gelu")
    config = TransformerConfig(
        **{
            "vocabulary": vocabulary,
            "width": theirs.d_model,
            "heads": theirs.nhead,
            "encoder_layers": len(theirs.encoder.layers),
            "decoder_layers": len(theirs.decoder.layers),
            "hidden": layer.linear1.out_features,
            "activation": activation,
            "norm": "pre" if layer.norm_first else "post",
            "final_norm": True,
            "dropout": layer.dropout.p,
        }
        | changes
    )
    model = Transformer(config).to(layer.linear1.weight.dtype)
    weights = theirs.state_dict()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith(("encoder.", "decoder.")):
                p.copy_(stack_weight(weights, name))
    return model.train(theirs.training)


def to_torch_transformer(model: Transformer) -> nn.Transformer:
    """An nn.Transformer with the two stacks of ours; batch first. Embeddings, positions and logits stay with us."""
    c = model.config
    has_final = c.norm == "pre" if c.final_norm is None else c.final_norm
    plain = {
        "norm_kind='layer'": c.norm_kind == "layer", "a final norm": has_final, "no qk_norm": not c.qk_norm,
        f"activation {' or '.join(ACTIVATIONS)}": c.activation in ACTIVATIONS, "biases": c.bias,
    }  # fmt: skip
    if missing := [name for name, holds in plain.items() if not holds]:
        raise ValueError(f"nn.Transformer can't express this transformer; it needs {', '.join(missing)}")
    theirs = nn.Transformer(
        c.width, c.heads, c.encoder_layers, c.decoder_layers, c.hidden, c.dropout, c.activation,
        norm_first=c.norm == "pre", batch_first=True,
    ).to(model.source_embedding.table.weight.dtype)  # fmt: skip
    weights = theirs.state_dict()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith(("encoder.", "decoder.")):
                stack_weight(weights, name).copy_(p)
    return theirs.train(model.training)


def stack_weight(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Where nn.Transformer keeps one of our parameters; of its packed projections the rows."""
    side, part, *path = name.split(".")
    if part == "norm":
        return weights[name]
    prefix = f"{side}.layers.{path[0]}."
    inside = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    theirs = torch_weight(inside, ".".join(path[1:]), has_cross=side == "decoder")
    assert theirs is not None, "a Transformer without biases is refused"
    return theirs
