"""How other libraries spell a vision transformer: tables of names, ours on the left and theirs on the right.

A name stands for a module, whose weight and bias follow, or for one parameter.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

Layout = Literal["pellucid", "timm", "huggingface", "torchvision"]


@dataclass(frozen=True)
class Names:
    """One library's spelling.

    sign: matches a key that only this spelling has.
    block: before the names of block i. packed: the one matrix that q, k and v lie in, one below the other.
    refused: what a key that matches means, and that no model of ours can do.
    """

    layout: Layout
    sign: str
    whole: dict[str, str]
    block: str
    inside: dict[str, str]
    class_token: str
    positions: str
    packed: str | None = None
    registers: str | None = None
    norm_eps: float = 1e-6
    refused: dict[str, str] = field(default_factory=dict)

    def __call__(self, key: str) -> str:
        """Their name of our key.

        >>> TIMM("blocks.3.attention.k.bias")
        'blocks.3.attn.qkv.bias'
        """
        if match := re.fullmatch(r"blocks\.(\d+)\.(.+)", key):
            block, key = self.block.format(match[1]), match[2]
            if self.packed is not None and (part := re.fullmatch(r"attention\.[qkv]\.(weight|bias)", key)):
                return block + self.packed.format(part[1])
            return block + _spelled(self.inside, key)
        return _spelled(self.whole, key)

    def depth(self, keys: Iterable[str]) -> int:
        """How many blocks these keys speak of; ValueError if they leave one out."""
        pattern = re.compile(re.escape(self.block).replace(r"\{\}", r"(\d{1,9})\b"))
        numbers = {int(match[1]) for key in keys if (match := pattern.match(key))}
        missing = next(i for i in range(len(numbers) + 1) if i not in numbers)
        if missing < len(numbers):
            raise ValueError(f"the weights have {len(numbers)} blocks, up to number {max(numbers)}, but no {missing}")
        return len(numbers)


def _spelled(table: dict[str, str], key: str) -> str:
    module, _, parameter = key.rpartition(".")
    return table[key] if key in table else f"{table[module]}.{parameter}"


TIMM = Names(
    layout="timm",
    sign=r"blocks\.\d+\.attn\.",
    whole={"embed.project": "patch_embed.proj", "token_norm": "norm_pre", "norm": "norm", "head": "head"},
    block="blocks.{}.",
    inside={
        "attention_norm": "norm1",
        "attention.q_norm": "attn.q_norm",
        "attention.k_norm": "attn.k_norm",
        "attention.out": "attn.proj",
        "attention_scale.factor": "ls1.gamma",
        "feed_forward_norm": "norm2",
        "feed_forward.inner": "mlp.fc1",
        "feed_forward.outer": "mlp.fc2",
        "feed_forward_scale.factor": "ls2.gamma",
    },
    packed="attn.qkv.{}",
    class_token="cls_token",
    registers="reg_token",
    positions="pos_embed",
    refused={
        r"dist_token|head_dist\.": "is a second, distilled class token with a head of its own",
        r"patch_embed\.(norm|backbone)": "embeds the patches by more than one projection",
        r"attn_pool\.": "pools by attention",
        r"pre_logits\.": "is a layer between pooling and head",
        r"blocks\.\d+\.attn\.(q|k)_norm\.bias": "normalises queries and keys by LayerNorm; ours does by RMSNorm",
        r"blocks\.\d+\.attn\.(norm|gate)\.": "changes the attention's output before its projection",
        r"blocks\.\d+\.mlp\.(norm|fc1_g|fc1_x|w12|w3)\b": "is a feed-forward layer with a gate or a norm inside",
    },
)

HUGGINGFACE = Names(
    layout="huggingface",
    sign=r"vit\.encoder\.layer\.",
    whole={
        "embed.project": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "head": "classifier",
    },
    block="vit.encoder.layer.{}.",
    inside={
        "attention_norm": "layernorm_before",
        "attention.q": "attention.attention.query",
        "attention.k": "attention.attention.key",
        "attention.v": "attention.attention.value",
        "attention.out": "attention.output.dense",
        "feed_forward_norm": "layernorm_after",
        "feed_forward.inner": "intermediate.dense",
        "feed_forward.outer": "output.dense",
    },
    class_token="vit.embeddings.cls_token",
    positions="vit.embeddings.position_embeddings",
    norm_eps=1e-12,
    refused={
        r"vit\.pooler\.": "is a layer that ViTForImageClassification doesn't use; leave it out",
        r"vit\.embeddings\.mask_token": "is for pretraining with masked patches; leave it out",
    },
)

# transformers 5 renamed the modules. Its files keep the names above, which 4 and 5 both read; its state dicts don't.
HUGGINGFACE_5 = replace(
    HUGGINGFACE,
    sign=r"vit\.layers\.",
    block="vit.layers.{}.",
    inside=HUGGINGFACE.inside
    | {
        "attention.q": "attention.q_proj",
        "attention.k": "attention.k_proj",
        "attention.v": "attention.v_proj",
        "attention.out": "attention.o_proj",
        "feed_forward.inner": "mlp.fc1",
        "feed_forward.outer": "mlp.fc2",
    },
)

TORCHVISION = Names(
    layout="torchvision",
    sign=r"encoder\.layers\.encoder_layer_\d+\.",
    whole={"embed.project": "conv_proj", "norm": "encoder.ln", "head": "heads.head"},
    block="encoder.layers.encoder_layer_{}.",
    inside={
        "attention_norm": "ln_1",
        "attention.out": "self_attention.out_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.inner": "mlp.0",
        "feed_forward.outer": "mlp.3",
    },
    packed="self_attention.in_proj_{}",
    class_token="class_token",
    positions="encoder.pos_embedding",
    refused={
        r"heads\.pre_logits\.": "is a layer between pooling and head",
        r"conv_proj\.(conv_bn_relu|conv_last)": "is a stem of convolutions with batch norm",
    },
)

TORCHVISION_OLD = replace(  # the names in older files
    TORCHVISION,
    sign=r"encoder\.layers\.encoder_layer_\d+\.mlp\.linear_",
    inside=TORCHVISION.inside | {"feed_forward.inner": "mlp.linear_1", "feed_forward.outer": "mlp.linear_2"},
)

SPELLINGS = (TIMM, HUGGINGFACE, HUGGINGFACE_5, TORCHVISION_OLD, TORCHVISION)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def recognise_layout(keys: Iterable[str], layout: Layout | None = None) -> Names:
    """The spelling of these keys; of those that the layout has, if it is given."""
    keys = list(keys)
    if layout not in (*LAYOUTS, None):
        raise ValueError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if layout == "pellucid" or (layout is None and any(re.match(r"blocks\.\d+\.attention\.", key) for key in keys)):
        raise ValueError(
            "these are pellucid's own names, whose shapes don't tell the patch; "
            "load the folder with its config.json: ViT.from_pretrained(folder)"
        )
    for names in SPELLINGS:
        if layout in (names.layout, None) and any(re.match(names.sign, key) for key in keys):
            return names
    whose = "timm's, Hugging Face's or torchvision's vision transformer" if layout is None else f"{layout}'s"
    few = ", ".join(sorted(keys)[:3]) or "nothing"
    raise ValueError(f"the weights hold {few}{' …' if len(keys) > 3 else ''}; expected the names of {whose}")
