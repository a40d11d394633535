"""The captioner: a vision transformer looks, a decoder says what it sees, one token after the other."""

from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.layers import DecoderBlock, DecoderCache, KVCache, LearnedPositions, SinusoidalPositions, TokenEmbedding
from pellucid.layers.block import Placement
from pellucid.layers.feedforward import Activation
from pellucid.layers.linear import Linear
from pellucid.layers.norm import NormKind, make_norm
from pellucid.models.init import initialise
from pellucid.models.pretrained import Pretrained
from pellucid.models.sizes import MOST_BLOCKS, MOST_CLASSES, MOST_HEADS, MOST_HIDDEN, MOST_LENGTH, check_sizes
from pellucid.models.starting import LearnedStem, start_from
from pellucid.models.vit import ViT, ViTConfig

SequencePositions = Literal["sinusoidal", "learned", "rotary"]


@dataclass(frozen=True)
class CaptionerConfig:
    """What a captioner is made of. The decoder is as wide as the encoder.

    >>> config = CaptionerConfig(vocabulary=100, layers=2)
    >>> config.layers, config.encoder.pooling
    (2, 'none')
    """

    vocabulary: int = 6
    """How many tokens there are to say, the special ones included."""
    encoder: ViTConfig = field(default_factory=lambda: ViTConfig(pooling="none"))
    """What looks at the image; pooling is "none", for the decoder reads every token."""
    layers: int = 3
    """Number of the decoder's blocks."""
    heads: int = 8
    """In each of them."""
    hidden: int | None = None
    """Width of their feed-forward layer; 4·width unless given."""
    activation: Activation = "gelu"
    """Of their feed-forward layer."""
    norm: Placement = "pre"
    """Normalise before each branch, or after it is added."""
    norm_kind: NormKind = "layer"
    """LayerNorm or RMSNorm."""
    qk_norm: bool = False
    """Normalise queries and keys, head by head."""
    bias: bool = True
    """Of the blocks' linear maps."""
    positions: SequencePositions = "sinusoidal"
    """How a token knows its place in the sentence."""
    max_length: int = 40
    """How many tokens a sentence may have, the start token included."""
    tied: bool = True
    """One table reads tokens and scores them; otherwise the scores have a matrix of their own."""
    dropout: float = 0.0
    """Of tokens and branches."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    drop_path: float = 0.0
    """Probability that the last block's branches are dropped, rising from zero."""
    zero_branches: bool = False
    """Every residual branch starts as nothing: its last layer is zero."""

    def __post_init__(self) -> None:
        check_sizes(self, vocabulary=MOST_CLASSES, layers=MOST_BLOCKS, heads=MOST_HEADS, max_length=MOST_LENGTH)
        if self.hidden is not None:
            check_sizes(self, hidden=MOST_HIDDEN)
        if self.encoder.pooling != "none":
            raise ValueError(
                f"the encoder's pooling is {self.encoder.pooling!r}; a captioner reads every token: 'none'"
            )
        if self.encoder.width % self.heads:
            raise ValueError(
                f"the encoder's width {self.encoder.width} can't be split into {self.heads} heads; "
                f"expected a multiple of {self.heads}"
            )
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm is {self.norm!r}; expected 'pre' or 'post'")
        if self.positions not in ("sinusoidal", "learned", "rotary"):
            raise ValueError(f"positions is {self.positions!r}; expected 'sinusoidal', 'learned' or 'rotary'")
        parts = {"rotary": 2 * self.heads, "sinusoidal": 2}.get(self.positions, 1)
        if self.encoder.width % parts:
            raise ValueError(
                f"{self.positions} positions turn pairs of features; got a width of {self.encoder.width}, "
                f"expected a multiple of {parts}"
            )


class CaptionDecoder(nn.Module):
    """Tokens so far in, logits of the token after each of them out."""

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        c, width = config, config.encoder.width
        self.embedding = TokenEmbedding(c.vocabulary, width)
        self.positions = {
            "sinusoidal": lambda: SinusoidalPositions(width, c.max_length),
            "learned": lambda: LearnedPositions(c.max_length, width),
            "rotary": lambda: None,
        }[c.positions]()
        self.dropout = nn.Dropout(c.dropout) if c.dropout else nn.Identity()
        self.blocks = nn.ModuleList(
            DecoderBlock(
                width,
                c.heads,
                norm=c.norm,
                norm_kind=c.norm_kind,
                hidden=c.hidden,
                activation=c.activation,
                bias=c.bias,
                dropout=c.dropout,
                attention_dropout=c.attention_dropout,
                drop_path=c.drop_path * i / max(1, c.layers - 1),
                qk_norm=c.qk_norm,
                rotary=10_000 if c.positions == "rotary" else None,
            )
            for i in range(c.layers)
        )
        self.norm = make_norm(c.norm_kind, width) if c.norm == "pre" else nn.Identity()
        self.output = None if c.tied else Linear(width, c.vocabulary)
        initialise(self, zero_branches=c.zero_branches)

    def forward(
        self,
        tokens: Int[Tensor, "n t"],
        context: Float[Tensor, "b s d"],
        mask: Tensor | None,
        causal: bool,
        positions: Tensor | None,
        cache: list[DecoderCache] | None,
    ) -> Float[Tensor, "n t v"]:
        x = self.embedding(tokens)
        if self.positions is not None:
            before = len(cache[0].tokens) if cache else 0
            x = self.positions(x, before if positions is None else positions)
            positions = None
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            own = None if cache is None else cache[i]
            x = block(x, context, mask, causal=causal, positions=positions, cache=own)
        x = self.norm(x)
        return self.embedding.logits(x) if self.output is None else self.output(x)


class Captioner(nn.Module, Pretrained[CaptionerConfig], config_class=CaptionerConfig):
    """Images and the tokens said of them so far in, logits of each next token out.

    >>> import torch
    >>> encoder = ViTConfig(image=(32, 32), patch=(8, 8), width=64, depth=2, heads=4, pooling="none")
    >>> model = Captioner(CaptionerConfig(vocabulary=100, encoder=encoder, layers=2, heads=4))
    >>> images, tokens = torch.randn(2, 3, 32, 32), torch.randint(100, (6, 9))      # three captions for each image
    >>> model(images, tokens).shape
    torch.Size([6, 9, 100])
    """

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = config
        self.encoder = ViT(config.encoder)
        self.decoder = CaptionDecoder(config)

    def forward(
        self,
        images: Float[Tensor, "b c y x"],
        tokens: Int[Tensor, "n t"],
        causal: bool = True,
        mask: Tensor | None = None,
    ) -> Float[Tensor, "n t v"]:
        """The logits at place i speak of token i + 1 and see no token beyond i; all tokens, if causal is False.

        n is a multiple of b: captions of one image stand side by side, and the image is looked at once.
        mask: which tokens may be seen, as `ops.masks.padding(lengths)`. Padding that comes last needs none if causal.
        """
        return self.decode(tokens, self.encode(images), mask=mask, causal=causal)

    def encode(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b s d"]:
        """What the decoder reads: registers first, then patches row by row."""
        return self.encoder(images)

    def decode(
        self,
        tokens: Int[Tensor, "n t"],
        context: Float[Tensor, "b s d"],
        *,
        mask: Tensor | None = None,
        causal: bool = True,
        positions: Tensor | None = None,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "n t v"]:
        """Logits for these tokens; with a cache, they follow the tokens of the calls before.

        positions: (t) of the tokens; counted on from the cache unless given.
        """
        if positions is None:
            self._check_length(tokens.shape[1] + (len(cache[0].tokens) if cache else 0))
        return self.decoder(tokens, context, mask, causal, positions, cache)

    def cache(self, length: int | None = None) -> list[DecoderCache]:
        """An empty cache for step-by-step decoding of one batch, with room for `length` tokens from the start."""
        self._check_length(length or 0)
        return [DecoderCache(KVCache(length)) for _ in self.decoder.blocks]

    def _check_length(self, length: int) -> None:
        if length > self.config.max_length:
            raise ValueError(
                f"axis t (tokens): {length} tokens; expected at most max_length = {self.config.max_length}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of an image of the usual size; config.encoder.registers tokens come before."""
        return self.encoder.embed.grid(*self.config.encoder.image)

    def start_from(self, source: ViT | LearnedStem) -> None:
        """Copy what a trained vision transformer knows into the encoder; positions are interpolated to its grid."""
        start_from(self.encoder, source)
