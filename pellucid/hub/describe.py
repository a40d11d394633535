"""The config.json of other libraries: what it tells of a model, and what to write into one."""

import re
from typing import Any

from pellucid.config import MOST_SHOWN, brief
from pellucid.hub.names import Layout
from pellucid.models.pretrained import some_names
from pellucid.models.vit import ViTConfig

ACTIVATIONS = ("gelu", "relu", "quick_gelu")
# What timm's model_args may say: what the weights say too, what acts in training only, and what `_timm` reads.
SEEN = (
    *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "qk_norm"),
    *("init_values", "pre_norm", "class_token", "no_embed_class", "reg_tokens", "fc_norm", "norm_layer", "proj_bias"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "dynamic_img_size", "strict_img_size", "act_layer", "num_heads", "global_pool"),
)


def interpret_config(data: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> tuple[Layout, dict[str, Any]]:
    """Whose config.json this is, and what it tells `convert.read` beyond the weights.

    >>> interpret_config({"model_type": "vit", "num_attention_heads": 3, "image_size": 32, "layer_norm_eps": 1e-12})
    ('huggingface', {'heads': 3, 'image': (32, 32), 'norm_eps': 1e-12})
    """
    if "model_type" in data:
        return "huggingface", _huggingface(data, preprocessor or {})
    if "architecture" in data:
        return "timm", _timm(data)
    if {"num_layers", "hidden_dim"} <= set(data):
        return "torchvision", _given({"heads": _get(data, "num_heads", int), "image": _size(data, "image_size")})
    raise ValueError(
        f"config.json has {some_names(data) or 'no fields'}; expected Hugging Face's (model_type), timm's "
        "(architecture), torchvision's arguments (num_layers, hidden_dim) or pellucid's (model)"
    )


def _huggingface(data: dict[str, Any], preprocessor: dict[str, Any]) -> dict[str, Any]:
    if (kind := _get(data, "model_type", str)) != "vit":
        raise ValueError(f"config.json describes a {brief(kind)} model; expected Hugging Face's 'vit'")
    labels = {"labels": _labels(_get(data, "id2label", dict))}
    return interpret_encoder(data, preprocessor) | _given(labels)


def interpret_encoder(data: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> dict[str, Any]:
    """What Hugging Face's config.json of an encoder of images tells beyond its weights, whatever family it is of."""
    vision = _get(data, "vision_config", dict) or data  # where a model of text and images has two encoders
    known = {
        "heads": _get(vision, "num_attention_heads", int),
        "image": _size(vision, "image_size"),
        "norm_eps": _get(vision, "layer_norm_eps", float),
        "activation": _activation(vision, "hidden_act"),
    }
    return _given(known) | interpret_preprocessor(preprocessor or {})


def interpret_preprocessor(preprocessor: dict[str, Any]) -> dict[str, Any]:
    """What Hugging Face's preprocessor_config.json says of how images were normalised."""
    if preprocessor.get("do_normalize") is False:
        return {}
    return _given({"mean": _get(preprocessor, "image_mean", list), "std": _get(preprocessor, "image_std", list)})


def _timm(data: dict[str, Any]) -> dict[str, Any]:
    name = _get(data, "architecture", str) or ""
    args, pretrained = (_get(data, field, dict) or {} for field in ("model_args", "pretrained_cfg"))
    if not re.match(r"(vit|deit3?)_", name):
        raise ValueError(f"config.json describes timm's {name[:MOST_SHOWN]}; expected a plain vit_… or deit_…")
    unknown = sorted(set(args) - set(SEEN))
    if unknown:
        raise ValueError(f"model_args in config.json has {some_names(unknown)}, which nothing here understands")
    pool = args.get("global_pool", data.get("global_pool"))
    if pool not in ("token", "avg", None):
        raise ValueError(f"global_pool in config.json is {brief(pool)}; expected 'token' or 'avg'")
    known = {
        "heads": _get(args, "num_heads", int),
        "image": _size(args, "img_size")
        or _size({"input_size": (_get(pretrained, "input_size", list) or [])[1:]}, "input_size"),
        "pooling": {"token": "class", "avg": "mean", None: None}[pool],
        "activation": _activation(args, "act_layer") or ("quick_gelu" if "quickgelu" in name else None),
        "labels": _get(data, "label_names", list),
        "mean": _get(pretrained, "mean", list),
        "std": _get(pretrained, "std", list),
    }
    return _given(known)


def describe_config(config: ViTConfig, layout: Layout, dtype: str = "float32") -> dict[str, dict[str, Any]]:
    """The files, by name, from which a library builds a model for the weights that `convert.write` gives."""
    c = config
    hidden = 4 * c.width if c.hidden is None else c.hidden
    if layout == "torchvision":
        sizes = {"num_layers": c.depth, "num_heads": c.heads, "hidden_dim": c.width, "mlp_dim": hidden}
        args = {"image_size": c.image[0], "patch_size": c.patch[0], "num_classes": c.classes}
        return {"config.json": args | sizes}
    if layout == "timm":
        return {"config.json": _for_timm(c, hidden)}
    names = c.labels or tuple(f"LABEL_{i}" for i in range(c.classes))
    described = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "dtype": dtype,
        "image_size": _single(c.image),
        "patch_size": _single(c.patch),
        "num_channels": c.channels,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": hidden,
        "hidden_act": c.activation,
        "layer_norm_eps": c.norm_eps,
        "qkv_bias": True,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if c.mean is None or c.std is None:
        return {"config.json": described}
    height, width = c.image
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(c.mean),
        "image_std": list(c.std),
    }
    return {"config.json": described, "preprocessor_config.json": preprocessor}


def _for_timm(c: ViTConfig, hidden: int) -> dict[str, Any]:
    """What `timm.create_model("local-dir:FOLDER", pretrained=True)` reads. The architecture is where timm starts."""
    ratio = hidden / c.width
    args = {
        "img_size": list(c.image),
        "patch_size": list(c.patch),
        "in_chans": c.channels,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": ratio if int(c.width * ratio) == hidden else (hidden + 0.5) / c.width,  # timm rounds down
        "num_classes": c.classes,
        "global_pool": "token" if c.pooling == "class" else "avg",
        "class_token": c.pooling == "class",
        "reg_tokens": c.registers,
        "fc_norm": not c.norm_first,
        "act_layer": c.activation,
        "norm_layer": "layernorm" if c.norm_kind == "layer" else "rmsnorm",
        "qk_norm": c.qk_norm,
    }
    normalised = {} if c.mean is None or c.std is None else {"mean": list(c.mean), "std": list(c.std)}
    return {
        "architecture": "vit_base_patch16_224",
        "num_classes": c.classes,
        "num_features": c.width,
        "global_pool": args["global_pool"],
        **({} if c.labels is None else {"label_names": list(c.labels)}),
        "model_args": args if c.layer_scale is None else args | {"init_values": c.layer_scale},
        "pretrained_cfg": {
            "input_size": [c.channels, *c.image],
            "num_classes": c.classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            **normalised,
        },
    }


def _get(data: dict[str, Any], field: str, kind: type) -> Any:
    value = data.get(field)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{field} in config.json is {brief(value)}; expected {kind.__name__}")
    return value


def _size(data: dict[str, Any], field: str) -> tuple[int, int] | None:
    """A height and a width, or one number for both."""
    size = data.get(field)
    sides = [size, size] if isinstance(size, int) else size
    if not sides:
        return None
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int for side in sides):
        raise ValueError(f"{field} in config.json is {brief(size)}; expected one or two whole numbers")
    return sides[0], sides[1]


def _activation(data: dict[str, Any], field: str) -> str | None:
    name = data.get(field)
    if name not in (*ACTIVATIONS, None):
        raise ValueError(
            f"{field} in config.json is {brief(name)}; expected one of {', '.join(map(repr, ACTIVATIONS))}"
        )
    return name


def _labels(names: dict[str, str] | None) -> tuple[str, ...] | None:
    """The names of the classes in their order; None for LABEL_0, LABEL_1, …, which name nothing."""
    if not names:
        return None
    try:
        labels = tuple(names[str(i)] for i in range(len(names)))
    except KeyError as missing:
        raise ValueError(f"id2label in config.json has {len(names)} names but none for class {missing}") from None
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(labels)) else labels


def _single(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _given(known: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in known.items() if value is not None
    }
