"""The vision transformer (Dosovitskiy et al. 2021): an image as a sequence of patches."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pellucid.config import brief
from pellucid.layers import ClassToken, EncoderBlock, LearnedGrid, PatchEmbed, RegisterTokens, RotaryGrid
from pellucid.layers.embed import Stem
from pellucid.layers.feedforward import Activation
from pellucid.layers.lite import LiteKind
from pellucid.layers.norm import NormKind, make_norm
from pellucid.models.init import initialise
from pellucid.models.pretrained import Pretrained
from pellucid.models.sizes import (
    MOST_BLOCKS,
    MOST_CHANNELS,
    MOST_CLASSES,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_SIDE,
    MOST_TOKENS,
    MOST_WIDTH,
    check_sizes,
    outline,
)
from pellucid.ops.aspect import Patches, canvas_grid, find_patches, pick_places
from pellucid.ops.positions import Turns, sinusoidal_2d

Pooling = Literal["class", "mean", "sequence", "none"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "none"]


@dataclass(frozen=True)
class ViTConfig:
    """What a vision transformer is made of, what it calls its answers and how it wants its pixels.

    >>> config = ViTConfig(image=(64, 64), patch=(8, 8), classes=2)
    >>> config.width, config.heads, config.pooling
    (256, 8, 'class')
    """

    classes: int = 10
    """How many answers there are."""
    image: tuple[int, int] = (32, 32)
    """Height and width in pixels; other sizes are taken too, with positions interpolated."""
    keep_aspect: bool = False
    """Pictures keep the ratio of their sides, in as many patches as `image` has or a few less: a batch has one channel
    more, which says where on its canvas each picture lies, and what lies beside it is not attended to."""
    channels: int = 3
    """Of the image."""
    patch: tuple[int, int] = (4, 4)
    """Height and width in pixels."""
    width: int = 256
    """Of a token."""
    depth: int = 12
    """Number of blocks."""
    heads: int = 8
    """In each block."""
    hidden: int | None = None
    """Width of the feed-forward layer; 4·width unless given."""
    stem: Stem = "linear"
    """How patches become tokens: one linear map, halving convolutions, twice as many of those (deep), or those of
    EfficientNet-Lite (lite0, lite1, lite2), for patches of 32 pixels and with weights to begin with."""
    pooling: Pooling = "class"
    """What is read: the class token, the mean of the patches, their mean with learned weights (sequence), or every
    token as it is, with no answer (none)."""
    positions: PositionKind = "learned"
    """How a token knows its place."""
    rotary_base: float = 100.0
    """Of rotary positions, for two axes."""
    registers: int = 0
    """Learned tokens that belong to no patch."""
    activation: Activation = "gelu"
    """Of the feed-forward layer."""
    norm_kind: NormKind = "layer"
    """LayerNorm or RMSNorm."""
    norm_eps: float = 1e-6
    """Added to the variance."""
    norm_tokens: bool = False
    """Normalise the tokens before the first block too, as CLIP does."""
    norm_first: bool = True
    """Normalise, then pool; otherwise pool first, as timm does with the mean."""
    qk_norm: bool = False
    """Normalise queries and keys, head by head."""
    bias: bool = True
    """Of the blocks' linear maps."""
    layer_scale: float | None = None
    """Initial value of a learned factor for each feature of each branch (Touvron et al. 2021); None for no factor."""
    zero_branches: bool = False
    """Every residual branch starts as nothing: its last layer is zero."""
    dropout: float = 0.0
    """Of tokens and branches."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    drop_path: float = 0.0
    """Probability that the last block's branches are dropped, rising from zero."""
    drop_token: float = 0.0
    """Share of the patches left out in training."""
    labels: tuple[str, ...] | None = None
    """Names of the classes."""
    multi_label: bool = False
    """Several classes may be true of an image: each has a probability of its own."""
    mean: tuple[float, ...] | None = None
    """Of each channel, in 0…1, by which images are normalised."""
    std: tuple[float, ...] | None = None
    """Standard deviation of each channel, likewise."""

    def __post_init__(self) -> None:
        check_sizes(self, classes=MOST_CLASSES, image=MOST_SIDE, channels=MOST_CHANNELS, patch=MOST_SIDE)
        check_sizes(self, width=MOST_WIDTH, depth=MOST_BLOCKS, heads=MOST_HEADS)
        if self.hidden is not None:
            check_sizes(self, hidden=MOST_HIDDEN)
        if not 0 <= self.registers <= MOST_TOKENS:
            raise ValueError(f"registers is {brief(self.registers)}; expected none or more, up to {MOST_TOKENS:,}")
        patches = math.prod(side // step for side, step in zip(self.image, self.patch, strict=True))
        if patches > MOST_TOKENS:
            raise ValueError(
                f"an image of {self.image} in patches of {self.patch} pixels is {patches:,} tokens; "
                f"expected up to {MOST_TOKENS:,}"
            )
        if self.pooling not in ("class", "mean", "sequence", "none"):
            raise ValueError(f"pooling is {self.pooling!r}; expected 'class', 'mean', 'sequence' or 'none'")
        if self.positions not in ("learned", "sinusoidal", "rotary", "none"):
            raise ValueError(f"positions is {self.positions!r}; expected 'learned', 'sinusoidal', 'rotary' or 'none'")
        if self.keep_aspect and self.stem in get_args(LiteKind):
            raise ValueError(f"keep_aspect is for stems that see no padding; stem is {self.stem!r}")
        if self.keep_aspect and self.pooling == "none":
            raise ValueError("keep_aspect is for models that give one answer for a picture; pooling is 'none'")
        if self.positions == "sinusoidal" and self.width % 4:
            raise ValueError(f"sinusoidal positions of a grid need a width that is a multiple of 4; got {self.width}")
        if self.positions == "rotary" and self.width % (4 * self.heads):
            raise ValueError(
                f"rotary positions turn pairs of features for each of two axes; got a width of {self.width}, "
                f"expected a multiple of {4 * self.heads} for {self.heads} heads"
            )
        for name in ("dropout", "attention_dropout", "drop_path", "drop_token"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a share in [0, 1)")
        for name in ("rotary_base", "norm_eps"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected zero or more")
        if self.labels is not None and len(self.labels) != self.classes:
            raise ValueError(f"labels names {len(self.labels)} classes; expected {self.classes}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values is not None and len(values) != self.channels:
                raise ValueError(f"{name} has {len(values)} values; expected one for each of {self.channels} channels")

    @property
    def names(self) -> tuple[str, ...]:
        """What the classes are called; their numbers if they have no labels."""
        return self.labels or tuple(map(str, range(self.classes)))

    @classmethod
    def named(cls, size: str, **changes: Any) -> "ViTConfig":
        """The usual sizes, at 224 pixels with patches of 16 unless changed.

        >>> ViTConfig.named("small", classes=100).width
        384
        """
        if size not in SIZES:
            raise ValueError(f"size is {size!r}; expected one of {', '.join(SIZES)}")
        width, depth, heads = SIZES[size]
        usual = cls(classes=1000, image=(224, 224), patch=(16, 16), width=width, depth=depth, heads=heads)
        return replace(usual, **changes)


SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}


class ViT(nn.Module, Pretrained[ViTConfig], config_class=ViTConfig):
    """Images in, logits out; with pooling="none", the tokens themselves.

    >>> model = ViT(ViTConfig(classes=10, width=64, depth=2, heads=4))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> model.features(torch.randn(2, 3, 32, 48)).shape     # a class token and 8 × 12 patches, positions interpolated
    torch.Size([2, 97, 64])

    With keep_aspect, images (b c+1 y x) are pictures at the top left of canvases, where the last channel is 1.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        c = config
        self.embed = PatchEmbed(c.patch, c.width, channels=c.channels, stem=c.stem)
        grid = self.embed.grid(*c.image)
        self.grid = LearnedGrid(grid, c.width, many=c.keep_aspect) if c.positions == "learned" else None
        turning = c.positions == "rotary"
        head = c.width // c.heads
        self.turns = RotaryGrid(grid, head, base=c.rotary_base, many=c.keep_aspect) if turning else None
        self.class_token = ClassToken(c.width) if c.pooling == "class" else None
        self.register_tokens = RegisterTokens(c.registers, c.width) if c.registers else None
        self.token_norm = make_norm(c.norm_kind, c.width, eps=c.norm_eps) if c.norm_tokens else nn.Identity()
        self.dropout = nn.Dropout(c.dropout) if c.dropout else nn.Identity()
        self.blocks = nn.ModuleList(
            EncoderBlock(
                c.width,
                c.heads,
                norm="pre",
                norm_kind=c.norm_kind,
                norm_eps=c.norm_eps,
                hidden=c.hidden,
                activation=c.activation,
                bias=c.bias,
                dropout=c.dropout,
                attention_dropout=c.attention_dropout,
                drop_path=c.drop_path * i / max(1, c.depth - 1),
                layer_scale=c.layer_scale,
                qk_norm=c.qk_norm,
                rotary=c.rotary_base if turning else None,
            )
            for i in range(c.depth)
        )
        self.norm = make_norm(c.norm_kind, c.width, eps=c.norm_eps)
        self.pool = nn.Linear(c.width, 1, bias=False) if c.pooling == "sequence" else None
        self.head = nn.Linear(c.width, c.classes) if c.pooling != "none" else None
        initialise(self, zero_branches=c.zero_branches)

    @property
    def extra_tokens(self) -> int:
        """How many tokens stand before those of the patches: the class token first, then the registers."""
        return self.config.registers + (self.class_token is not None)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b ..."]:
        if self.head is None:
            return self.features(images)
        # In training, what nobody reads of the last block isn't computed: the class token asks, the others only answer.
        x, there = self.tokens(images, read=1 if self.class_token is not None and self.training else None)
        if self.config.norm_first:
            return self.head(self._pooled(self.norm(x), there))
        return self.head(self.norm(self._pooled(x, there)))

    def features(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b t d"]:
        """The tokens after the last block, normalised: class token, registers, patches row by row.

        Of pictures on canvases those of each picture's own grid come first; what follows them means nothing.
        """
        return self.norm(self.tokens(images)[0])

    def tokens(
        self, images: Float[Tensor, "b c y x"], read: int | None = None
    ) -> tuple[Float[Tensor, "b t d"], Bool[Tensor, "b n"] | None]:
        """The tokens after the last block, and which of those of patches are there; None if all are.

        read: only this many, the first, are wanted of the last block.
        """
        on_canvas = self.config.keep_aspect and images.shape[1] == self.config.channels + 1
        x, turns, there = self._embed_each(images) if on_canvas else (*self._embed(images), None)
        x, turns, there = self._drop_tokens(x, turns, there)
        for tokens in (self.register_tokens, self.class_token):
            x = x if tokens is None else tokens(x)
        if turns is not None:  # tokens of no patch stand at the origin, where nothing turns
            turns = Turns(
                *(
                    nn.functional.pad(t, (0, 0, self.extra_tokens, 0), value=v)
                    for t, v in zip(turns, (1.0, 0.0), strict=True)
                )
            )
        mask = None if there is None else nn.functional.pad(there, (self.extra_tokens, 0), value=True)[:, None, None]
        x = self.dropout(self.token_norm(x))
        for i, block in enumerate(self.blocks):
            x = block(x, mask, positions=turns, read=read if i == len(self.blocks) - 1 else None)
        return x, there

    def _embed(self, images: Tensor) -> tuple[Float[Tensor, "b t d"], Turns | None]:
        """Patches as tokens that know their places; and how attention turns by those, if it does."""
        x = self.embed(images)
        grid = self.embed.grid(*images.shape[-2:])
        if self.grid is not None:
            x = x + self.grid(grid).to(x.dtype)  # under autocast the tokens stay in half precision from here on
        elif self.config.positions == "sinusoidal":
            x = x + sinusoidal_2d(*grid, self.config.width, device=x.device, dtype=x.dtype).flatten(0, 1)
        return x, None if self.turns is None else self.turns(grid)

    def _embed_each(self, images: Tensor) -> tuple[Float[Tensor, "b n d"], Turns | None, Bool[Tensor, "b n"]]:
        """As `_embed`, of pictures on canvases, each with its own grid; and which of the tokens are there."""
        pixels, there = images[:, :-1], images[:, -1]
        patches = self._find_patches(there)
        height, across = self.embed.grid(*images.shape[-2:])
        x = pick_places(self.embed(pixels, there), patches, across)
        if self.grid is not None:
            x = x + self.grid.each(patches).to(x.dtype)
        elif self.config.positions == "sinusoidal":
            table = sinusoidal_2d(height, across, self.config.width, device=x.device, dtype=x.dtype)
            x = x + table[patches.y, patches.x]
        return x, None if self.turns is None else self.turns.each(patches), patches.there

    def _find_patches(self, there: Float[Tensor, "b y x"]) -> Patches:
        patches = find_patches(there, self.embed.patch, math.prod(self.embed.grid(*self.config.image)))
        if (
            len(there) and there.device.type == "cpu" and not torch.compiler.is_compiling()
        ):  # elsewhere, to look is to wait
            most, largest = patches.there.shape[1], int((patches.rows * patches.columns).max())
            if largest > most:
                raise ValueError(
                    f"a picture has {largest:,} patches; expected up to {most:,}, as many as {self.config.image}"
                )
            rows, columns = int(patches.rows.max()), int(patches.columns.max())
            tallest, widest = canvas_grid(self.embed.grid(*self.config.image))
            if rows > tallest or columns > widest:
                raise ValueError(
                    f"a picture has {rows} rows or {columns} columns of patches; expected up to {tallest} × {widest}"
                )
        return patches

    def _drop_tokens(
        self, x: Float[Tensor, "b t d"], turns: Turns | None, there: Tensor | None
    ) -> tuple[Tensor, Turns | None, Tensor | None]:
        """In training with drop_token: for each image, a random choice of its patches, in their order."""
        if not self.training or self.config.drop_token == 0.0:
            return x, turns, there
        b, t, _ = x.shape
        share = 1.0 - self.config.drop_token
        kept, draws = max(1, round(t * share)), torch.rand(b, t, device=x.device)
        if there is None:
            chosen = draws.argsort(1)[:, :kept].sort(1).values
        else:  # the same share of each; what isn't there comes last
            most = (there.sum(1, keepdim=True) * share).round().clamp(min=1)
            chosen = draws.masked_fill(~there, 2.0).argsort(1)[:, :kept]
            chosen = chosen.masked_fill(torch.arange(kept, device=x.device) >= most, t).sort(1).values
            there, chosen = chosen < t, chosen.clamp(max=t - 1)
        x = x.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
        if turns is not None:
            alike = turns.cos.ndim == 2  # for all pictures
            turns = Turns(*(t[chosen] if alike else t.take_along_dim(chosen[..., None], 1) for t in turns))
        return x, turns, there

    def _pooled(self, x: Float[Tensor, "b t d"], there: Tensor | None = None) -> Float[Tensor, "b d"]:
        if self.class_token is not None:
            return x[:, 0]
        x = x[:, self.extra_tokens :]
        if self.pool is None:
            return x.mean(1) if there is None else (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        weights = self.pool(x).squeeze(-1)
        weights = weights if there is None else weights.masked_fill(~there, -math.inf)
        return einsum(weights.softmax(-1), x, "b t, b t d -> b d")


def parameters_of(config: ViTConfig) -> int:
    """How many numbers a model of this config learns.

    >>> parameters_of(ViTConfig(width=64, depth=1, heads=4))
    58058
    """
    return sum(parameter.nelement() for parameter in outline(ViT, config).parameters())
