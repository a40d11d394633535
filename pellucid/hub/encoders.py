"""Encoders of images from other libraries, to begin with: whatever stands on top of them is left out.

    timm            ViT, DeiT, DeiT III, CLIP, DINOv2
    Hugging Face    ViT, DeiT, DINOv2 with registers or without, CLIP (alone, or in a model of text and images)
    torchvision     ViT
    PyTorch         the blocks of an `nn.TransformerEncoder`, alone or in a model of one's own
    EfficientNet    Lite 0, 1 and 2: the convolutions, on which blocks of one's own are put

Hugging Face's names are first made timm's, which can say all of it; `convert.read` does the rest.
"""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from pellucid.config import one_line
from pellucid.hub.convert import Weights, read
from pellucid.hub.describe import interpret_config, interpret_encoder, interpret_preprocessor
from pellucid.hub.folders import find_weights, read_object, read_tensors
from pellucid.hub.lite import check_lite, is_lite, read_lite
from pellucid.layers.torch_blocks import load_torch_weights
from pellucid.models.pretrained import CONFIG, some_names
from pellucid.models.starting import LearnedStem
from pellucid.models.vit import ViT, ViTConfig

log = logging.getLogger("pellucid")

PREPROCESSOR = "preprocessor_config.json"
WRAPPERS = re.compile(r"(module|model|backbone)\.")
FAMILIES = re.compile(r"(vit|deit|dinov2|dinov2_with_registers|vision_model)\.")
ON_TOP = re.compile(
    r"(head|heads|head_dist|classifier|cls_classifier|distillation_classifier|pooler|visual_projection|text_projection"
    r"|text_model)\.|logit_scale$|logit_bias$|(.*\.)?(mask_token|position_ids)$"
)
HUGGINGFACE = (
    (r"embeddings\.(cls_token|class_embedding)$", "cls_token"),
    (r"embeddings\.distillation_token$", "dist_token"),
    (r"embeddings\.register_tokens$", "reg_token"),
    (r"embeddings\.position_embeddings?(\.weight)?$", "pos_embed"),
    (r"embeddings\.patch_embeddings?(\.projection)?\.", "patch_embed.proj."),
    (r"(encoder\.)?layers?\.(\d+)\.", r"blocks.\2."),
    (r"(?<=\d\.)(attention\.attention\.|attention\.|self_attn\.)(q)(uery|_proj)\.", "attn.q."),
    (r"(?<=\d\.)(attention\.attention\.|attention\.|self_attn\.)(k)(ey|_proj)\.", "attn.k."),
    (r"(?<=\d\.)(attention\.attention\.|attention\.|self_attn\.)(v)(alue|_proj)\.", "attn.v."),
    (r"(?<=\d\.)(attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.", "attn.proj."),
    (r"(?<=\d\.)(layernorm_before|layer_norm1)\.", "norm1."),
    (r"(?<=\d\.)(layernorm_after|layer_norm2)\.", "norm2."),
    (r"(?<=\d\.)intermediate\.dense\.", "mlp.fc1."),
    (r"(?<=\d\.)output\.dense\.", "mlp.fc2."),
    (r"(?<=\d\.)layer_scale([12])\.lambda1$", r"ls\1.gamma"),
    (r"^(layernorm|post_layernorm)\.", "norm."),
    (r"^pre_layrnorm\.", "norm_pre."),
)
IN_A_STACK = re.compile(r"(.*?)layers\.0\.self_attn\.in_proj_weight")


def read_encoder(
    source: Path, own: ViTConfig, *, heads: int | None = None, image: tuple[int, int] | None = None
) -> ViT | LearnedStem:
    """The encoder in a folder (config.json and weights) or a file of weights, without what stood on top of it.

    own: the model that is to begin with it: what an `nn.TransformerEncoder` has not is as this says, and new.
    heads, image: where no shape and no config.json tells them.
    """
    said: dict[str, Any] = {"heads": heads, "image": image}
    if source.is_file():
        weights = read_tensors(source)
        beside = source.parent / PREPROCESSOR
        said |= interpret_preprocessor(read_object(beside)) if beside.is_file() else {}
    else:
        weights = read_tensors(find_weights(source))
        if is_lite(strip(weights)):
            check_lite(source, read_object(source / CONFIG))
        else:
            said |= _interpret_folder(source)
    weights = strip(weights)
    if is_lite(weights):
        return read_lite(weights, image=image, mean=said.get("mean"), std=said.get("std"))
    if stacks := sorted({match[1] for key in weights if (match := IN_A_STACK.fullmatch(key))}):
        return _read_stack(weights, stacks, own, source)
    renamed, family = as_timm(weights)
    return read(renamed, classes=1, **family | {name: value for name, value in said.items() if value is not None})


def download_encoder(name: str) -> Path:
    """The folder on this machine that holds a model of the Hub, by its name OWNER/MODEL."""
    try:
        folder = Path(hf_hub_download(name, CONFIG)).parent
        try:
            hf_hub_download(name, "model.safetensors")
        except EntryNotFoundError:
            hf_hub_download(name, "pytorch_model.bin")
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        why = one_line(str(error)).split(". ")[0][:300]
        raise ValueError(f"{name} is no path and no shipped model, and the Hub doesn't give it: {why}") from None
    try:
        hf_hub_download(name, PREPROCESSOR)
    except (EntryNotFoundError, LocalEntryNotFoundError):
        log.warning("%s doesn't say how its images were normalised; those that are trained on are measured", name)
    return folder


def strip(weights: Weights) -> Weights:
    """The weights of the encoder alone, under the names that they have in it."""
    for wrapper in (WRAPPERS, WRAPPERS, FAMILIES):
        inside = [key for key in weights if not ON_TOP.match(key)]
        match = wrapper.match(inside[0]) if inside else None
        if match and all(key.startswith(match[0]) for key in inside):
            weights = {key.removeprefix(match[0]): weights[key] for key in inside}
    return {key: value for key, value in weights.items() if not ON_TOP.match(key)}


def as_timm(weights: Weights) -> tuple[Weights, dict[str, Any]]:
    """The weights under timm's names if they are Hugging Face's, and what their family does that no shape tells."""
    if odd := [key for key in weights if "relative_position" in key or re.search(r"\.lambda_[12]$", key)]:
        raise ValueError(
            f"{odd[0]} is BEiT's, which adds a bias for relative positions to its scores: no ViT of ours does"
        )
    family: dict[str, Any] = {}
    if any(key.startswith("embeddings.") for key in weights):
        family = {"norm_eps": 1e-12}
        if "embeddings.class_embedding" in weights:
            family = {"norm_eps": 1e-5, "activation": "quick_gelu"}
        elif any(".layer_scale1." in key for key in weights):
            family = {"norm_eps": 1e-6}
        weights = _pack({_rename(key): value for key, value in weights.items()})
    if "pos_embed" in weights and (family or "dist_token" in weights):
        weights = _place(weights)
    return weights, family


def _rename(key: str) -> str:
    for pattern, theirs in HUGGINGFACE:
        key = re.sub(pattern, theirs, key)
    return key


def _pack(weights: Weights) -> Weights:
    """q, k and v of each block in one matrix, one below the other."""
    packed = {key: value for key, value in weights.items() if not re.search(r"\.attn\.[qkv]\.", key)}
    for key in (key for key in weights if ".attn.q." in key):
        parts = [weights[name] for part in "qkv" if (name := key.replace(".attn.q.", f".attn.{part}.")) in weights]
        packed[key.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    return packed


def _place(weights: Weights) -> Weights:
    """The tokens that have positions with these added to them; DeiT's second token, which has one, as a register."""
    places = weights["pos_embed"].reshape(1, -1, weights["pos_embed"].shape[-1])
    names = [name for name in ("cls_token", "dist_token") if name in weights]
    placed = {name: weights[name].reshape(1, 1, -1) + places[:, i : i + 1] for i, name in enumerate(names)}
    registers = [each for each in (placed.pop("dist_token", None), weights.get("reg_token")) if each is not None]
    if registers:
        placed["reg_token"] = torch.cat(registers, 1)
    others = {key: value for key, value in weights.items() if key != "dist_token"}
    return others | placed | {"pos_embed": places[:, len(names) :]}


def _interpret_folder(folder: Path) -> dict[str, Any]:
    """What the files beside the weights tell."""
    data = read_object(folder / CONFIG)
    preprocessor = read_object(folder / PREPROCESSOR) if (folder / PREPROCESSOR).is_file() else {}
    known = interpret_encoder(data, preprocessor) if "model_type" in data else interpret_config(data)[1]
    return {name: value for name, value in known.items() if name not in ("labels", "pooling")}


def _read_stack(weights: Weights, stacks: list[str], own: ViTConfig, source: Path) -> ViT:
    """A new vision transformer around the blocks of an `nn.TransformerEncoder`, which normalises first."""
    stacks = [prefix for prefix in stacks if not prefix.endswith("decoder.")]
    if len(stacks) != 1:
        raise ValueError(f"{source} holds {len(stacks)} stacks of blocks ({some_names(stacks)}); expected one encoder")
    inside = {key.removeprefix(stacks[0]): value for key, value in weights.items() if key.startswith(stacks[0])}
    numbers = [int(match[1]) for key in inside if (match := re.match(r"layers\.(\d{1,4})\.norm1\.weight", key))]
    hidden, width = inside["layers.0.linear1.weight"].shape
    shape = {"width": width, "depth": len(numbers), "hidden": None if hidden == 4 * width else hidden}
    config = replace(own, **shape, bias="layers.0.linear1.bias" in inside, norm_kind="layer", qk_norm=False)
    log.warning(
        "no shape tells the heads of an nn.TransformerEncoder, its activation, or where it normalises: %s is taken "
        "to have %d heads (model.heads) and %s (model.activation), and norm_first",
        source, config.heads, config.activation,
    )  # fmt: skip
    model = ViT(replace(config, layer_scale=None, norm_eps=1e-5))
    for number, block in enumerate(model.blocks):
        prefix = f"layers.{number}."
        load_torch_weights(block, {k.removeprefix(prefix): v for k, v in inside.items() if k.startswith(prefix)})
    if "norm.weight" in inside:
        model.norm.load_state_dict({key: inside[f"norm.{key}"] for key in model.norm.state_dict()})
    return model.eval()
