"""Vision transformers of timm, Hugging Face and torchvision as ours, and ours as theirs: the same numbers, renamed.

Three things are not only renamed. Their patch projection is a convolution (d c p q), ours a matrix (d, c·p·q). Their
q, k and v may be one matrix. And their class token and registers have positions, which are added to the tokens
themselves: the sum is all that a model ever sees. On the way back these positions are zero.

What acts in training only, as dropout, doesn't travel.
"""

import math
import re
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from pellucid.config import override
from pellucid.hub.describe import ACTIVATIONS
from pellucid.hub.names import HUGGINGFACE, LAYOUTS, TIMM, TORCHVISION, Layout, Names, recognise_layout
from pellucid.models.pretrained import some_names
from pellucid.models.sizes import outline
from pellucid.models.vit import SIZES, Pooling, ViT, ViTConfig

Weights = dict[str, Tensor]
UNSEEN = ("activation", "norm_eps", "labels", "mean", "std")
REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
APART = ("class_token.tokens", "register_tokens.tokens", "grid.table")


def read(
    weights: Weights,
    layout: Layout | None = None,
    *,
    heads: int | None = None,
    image: tuple[int, int] | None = None,
    pooling: Pooling | None = None,
    classes: int | None = None,
    **fields: Any,
) -> ViT:
    """The model that these weights of another library are, in their precision, with copies of them.

    layout: whose names they are; seen from the keys unless given.
    heads: no shape tells it. Needed unless width and depth are those of a usual size, or queries are normalised.
    image: (height, width) in pixels. Needed unless image and patches are squares.
    pooling: timm's class token is pooled unless the weights have an fc_norm; say so if the model does otherwise.
    classes: gives weights without a classifier one, at zero.
    fields: of ViTConfig, which weights don't hold: activation, norm_eps (the library's own unless given), labels, mean,
        std.

    A class token that isn't pooled becomes the first register. Every key must be used and every shape must fit.

    >>> model = ViT(ViTConfig(width=48, depth=2, heads=3))
    >>> again = read(write(model, "timm"), heads=3)
    >>> again.config == model.config
    True
    """
    unknown = sorted(set(fields) - set(UNSEEN))
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: the weights tell; expected only {', '.join(UNSEEN)}")
    names = recognise_layout(weights, layout)
    _refuse(weights, names)
    weights = _with_head(weights, names, classes)
    config = _config(weights, names, heads, image, pooling)
    eps = 1e-5 if config.norm_tokens else names.norm_eps
    config = override(config, {"norm_eps": eps} | fields)  # which looks at their types, too
    names = _for(names, config)
    model = outline(ViT, config)
    own = model.state_dict()
    _check(weights, _expected(weights, own, config, names))
    odd = [key for key, value in weights.items() if value.dtype not in REAL]
    if odd:
        raise ValueError(f"the weights have other than real numbers for {some_names(odd)}")
    dtype = reduce(torch.promote_types, {value.dtype for value in weights.values()})
    state = {key: _ours(weights, key, names).reshape(value.shape) for key, value in own.items() if key not in APART}
    state |= _tokens(weights, config, names)
    model.load_state_dict({key: value.to(dtype, copy=True) for key, value in state.items()}, assign=True)
    return model.eval()


def write(model: ViT, layout: Layout) -> Weights:
    """The model's weights under a layout's names, as copies: what the library's `load_state_dict` takes.

    "huggingface" writes the names of its files, which transformers 4 and 5 read by `from_pretrained`.

    >>> weights = write(ViT(ViTConfig(width=48, depth=1, heads=3)), "torchvision")
    >>> weights["conv_proj.weight"].shape, weights["encoder.pos_embedding"].shape
    (torch.Size([48, 3, 4, 4]), torch.Size([1, 65, 48]))
    """
    spellings = {"timm": TIMM, "huggingface": HUGGINGFACE, "torchvision": TORCHVISION}
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if layout == "pellucid":
        return {key: value.clone() for key, value in model.state_dict().items()}
    _must_fit(model.config, layout)
    return _theirs(model.state_dict(), model.config, _for(spellings[layout], model.config))


def _theirs(state: Weights, config: ViTConfig, names: Names) -> Weights:
    parts: dict[str, list[Tensor]] = {}
    for key, value in state.items():
        if key in APART:
            continue
        if key == "embed.project.weight":
            (p, q), c = config.patch, config.channels
            value = rearrange(value, "d (c p q) -> d c p q", c=c, p=p, q=q)
        parts.setdefault(names(key), []).append(value)  # packed q, k and v share a name, and come in this order
        if value.ndim == 2 and key.startswith("blocks.") and not config.bias:
            bias = names(key.removesuffix("weight") + "bias")
            parts.setdefault(bias, []).append(value.new_zeros(len(value)))
    written = {key: torch.cat(values) for key, values in parts.items()}
    table = state["grid.table"].flatten(0, 1)
    before = [state[key] for key in APART[:2] if key in state]
    for token, name in zip(APART[:2], (names.class_token, names.registers), strict=True):
        if token in state:
            assert name is not None
            written[name] = state[token][None].clone()
    written[names.positions] = torch.cat([*map(torch.zeros_like, before), table])[None]
    return written


def _ours(weights: Weights, key: str, names: Names) -> Tensor:
    """The part of their weights that is ours under `key`; a bias that they haven't is zero."""
    theirs = names(key)
    part = re.fullmatch(r"blocks\.\d+\.attention\.([qkv])\.(weight|bias)", key)
    if theirs not in weights and (key == "embed.project.bias" or (part and part[2] == "bias")):
        weight = _ours(weights, key.removesuffix("bias") + "weight", names)
        return weight.new_zeros(len(weight))
    if part and names.packed is not None:
        return weights[theirs].chunk(3)["qkv".index(part[1])]
    return weights[theirs]


def _tokens(weights: Weights, config: ViTConfig, names: Names) -> Weights:
    """Class token and registers, with their positions added to them, and the grid of the patches' positions."""
    rows, columns = _grid(config)
    places = weights[names.positions][0]
    lead = [weights[name][0] for name in (names.class_token, names.registers) if name in weights]
    tokens = torch.cat(lead) if lead else places[:0]
    if len(places) > rows * columns:
        tokens, places = tokens + places[: len(tokens)], places[len(tokens) :]
    state = {"grid.table": places.unflatten(0, (rows, columns))}
    if config.pooling == "class":
        state["class_token.tokens"], tokens = tokens[:1], tokens[1:]
    return state | ({"register_tokens.tokens": tokens} if len(tokens) else {})


def _config(
    weights: Weights, names: Names, heads: int | None, image: tuple[int, int] | None, pooling: Pooling | None
) -> ViTConfig:
    """What names and shapes tell of a model."""
    width, channels, *patch = _shape(weights, names("embed.project.weight"), "d c p q")
    depth, timm = names.depth(weights), names.layout == "timm"
    has_class = names.class_token in weights or not timm
    pooled_first = timm and "fc_norm.weight" in weights
    if pooling is None:
        pooling = "class" if has_class and not pooled_first else "mean"
    possible = [kind for kind, there in (("class", has_class), ("mean", timm)) if there]
    if pooling not in possible:
        raise ValueError(f"pooling is {pooling!r}; these weights allow {' or '.join(map(repr, possible))}")
    registers = _shape(weights, names.registers, "1 t d")[1] if names.registers in weights else 0
    q_norm = names("blocks.0.attention.q_norm.weight") if timm else ""
    if heads is None:
        heads = _heads(width, depth, len(weights[q_norm]) if q_norm in weights else None)
    hidden = _shape(weights, names("blocks.0.feed_forward.inner.weight"), "hidden d")[0]
    places = _shape(weights, names.positions, "1 t d")[1]
    return ViTConfig(
        classes=_shape(weights, names("head.weight"), "classes d")[0],
        image=_image(places, has_class + registers, (patch[0], patch[1]), image),
        channels=channels,
        patch=(patch[0], patch[1]),
        width=width,
        depth=depth,
        heads=heads,
        hidden=None if hidden == 4 * width else hidden,
        pooling=pooling,
        registers=has_class + registers - (pooling == "class"),
        norm_kind="rms" if timm and not any(re.search(r"norm\d?\.bias", key) for key in weights) else "layer",
        norm_tokens=timm and "norm_pre.weight" in weights,
        norm_first=not pooled_first,
        qk_norm=q_norm in weights,
        layer_scale=1e-5 if timm and any(key.endswith(".gamma") for key in weights) else None,  # their presence is all
    )


def _heads(width: int, depth: int, head: int | None) -> int:
    if head is not None:
        return width // head
    for usual_width, usual_depth, heads in SIZES.values():
        if (width, depth) == (usual_width, usual_depth):
            return heads
    raise ValueError(f"{depth} blocks of width {width} are no usual size, and no shape tells the heads; give heads")


def _image(places: int, tokens: int, patch: tuple[int, int], image: tuple[int, int] | None) -> tuple[int, int]:
    """The size of the images, from the number of positions: of the patches, and of the tokens before them or not."""
    counts = {places, places - tokens}
    if image is not None:
        patches = math.prod(side // step for side, step in zip(image, patch, strict=True))
        if patches not in counts or any(side % step for side, step in zip(image, patch, strict=True)):
            raise ValueError(
                f"image is {image}, which makes {patches} patches of {patch}; "
                f"expected {' or '.join(map(str, sorted(counts)))} patches, as there are positions"
            )
        return image
    squares = [count for count in counts if count > 0 and math.isqrt(count) ** 2 == count]
    if len(squares) != 1 or patch[0] != patch[1]:
        raise ValueError(
            f"{places} positions, with or without those of {tokens} class and register tokens, in patches of {patch}: "
            "they don't tell the shape of the image; give image"
        )
    side = math.isqrt(squares[0])
    return side * patch[0], side * patch[1]


def _grid(config: ViTConfig) -> tuple[int, int]:
    return config.image[0] // config.patch[0], config.image[1] // config.patch[1]


def _for(names: Names, config: ViTConfig) -> Names:
    """timm keeps the norm of a model that pools first under another name."""
    pools_first = names.layout == "timm" and not config.norm_first
    return replace(names, whole=names.whole | {"norm": "fc_norm"}) if pools_first else names


def _with_head(weights: Weights, names: Names, classes: int | None) -> Weights:
    weight, bias = names("head.weight"), names("head.bias")
    if weight in weights or bias in weights:
        if classes not in (None, len(weights.get(weight, weights.get(bias, ())))):
            raise ValueError(f"classes is {classes}; the weights have a classifier ({weight}) of another number")
        return weights
    if classes is None:
        raise ValueError(f"the weights have no classifier ({weight}, {bias}); give classes for one that starts at zero")
    width = _shape(weights, names("embed.project.weight"), "d c p q")[0]
    project = weights[names("embed.project.weight")]
    return weights | {weight: project.new_zeros(classes, width), bias: project.new_zeros(classes)}


def _refuse(weights: Weights, names: Names) -> None:
    for pattern, meaning in names.refused.items():
        keys = sorted(key for key in weights if re.match(pattern, key))
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise ValueError(f"{keys[0]}{more} {meaning}: no ViT of ours has that")


def _shape(weights: Weights, key: str, axes: str) -> list[int]:
    if key not in weights:
        raise ValueError(f"the weights lack {key}")
    if weights[key].ndim != len(axes.split()):
        raise ValueError(f"{key} has shape {list(weights[key].shape)}; expected axes ({axes})")
    if not weights[key].numel():
        raise ValueError(f"{key} has shape {list(weights[key].shape)}; expected one or more of everything")
    return list(weights[key].shape)


def _expected(weights: Weights, own: Weights, config: ViTConfig, names: Names) -> dict[str, tuple[int, ...]]:
    """Every key that must be there, with its shape: as we would write it, but for the freedoms that they have."""
    expected = {key: tuple(value.shape) for key, value in _theirs(own, config, names).items()}
    if config.pooling != "class" and names.class_token in weights:  # ours is a register, theirs a class token
        assert names.registers is not None
        expected[names.class_token] = (1, 1, config.width)
        expected[names.registers] = (1, config.registers - 1, config.width)
        if config.registers == 1:
            del expected[names.registers]
    patches = math.prod(_grid(config))
    if names.layout == "timm" and weights[names.positions].shape[1] == patches:
        expected[names.positions] = (1, patches, config.width)
    biases = {names(f"blocks.{i}.attention.{part}.bias") for i in range(config.depth) for part in "qkv"}
    if names.layout != "torchvision" and not biases & set(weights):  # qkv_bias=False
        expected = {key: shape for key, shape in expected.items() if key not in biases}
    patch_bias = names("embed.project.bias")
    if config.norm_tokens and patch_bias not in weights:  # CLIP's patches have none
        del expected[patch_bias]
    return expected


def _check(weights: Weights, expected: dict[str, tuple[int, ...]]) -> None:
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    wrong = sorted(key for key in expected.keys() & shapes.keys() if expected[key] != shapes[key])
    problems = {
        "lack": expected.keys() - shapes.keys(),
        "have unknown": shapes.keys() - expected.keys(),
        "have the wrong shape for": [f"{key} {list(shapes[key])} (expected {list(expected[key])})" for key in wrong],
    }
    said = [f"{problem} {some_names(keys)}" for problem, keys in problems.items() if keys]
    if said:
        raise ValueError(f"the weights {'; they '.join(said)}")


def _must_fit(config: ViTConfig, layout: Layout) -> None:
    c, timm = config, layout == "timm"
    needs = {
        "stem='linear'": c.stem == "linear",
        "positions='learned'": c.positions == "learned",
        "pooling='class' or 'mean'" if timm else "pooling='class'": c.pooling
        in (("class", "mean") if timm else ("class",)),
        "no registers": timm or not c.registers,
        "no layer_scale": timm or c.layer_scale is None,
        "norm_kind='layer'": timm or c.norm_kind == "layer",
        # timm makes the norms of queries and keys as it makes those of the blocks.
        "no qk_norm, unless norm_kind='rms'" if timm else "no qk_norm": not c.qk_norm
        or (timm and c.norm_kind == "rms"),
        "activation='gelu'" if layout == "torchvision" else "activation='gelu', 'relu' or 'quick_gelu'": c.activation
        == "gelu"
        or (layout != "torchvision" and c.activation in ACTIVATIONS),
        "no norm_tokens": not c.norm_tokens,
    }
    if layout == "torchvision":
        square = c.image[0] == c.image[1] and c.patch[0] == c.patch[1]
        needs |= {"square images and patches": square, "channels=3": c.channels == 3}
    missing = [need for need, holds in needs.items() if not holds]
    if missing:
        raise ValueError(f"{layout}'s vision transformer can't express this model; it needs {', '.join(missing)}")
