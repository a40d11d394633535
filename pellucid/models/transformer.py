"""The encoder–decoder of "Attention Is All You Need" (Vaswani et al. 2017)."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.layers import (
    DecoderBlock,
    DecoderCache,
    EncoderBlock,
    KVCache,
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
)
from pellucid.layers.block import Placement
from pellucid.layers.feedforward import Activation
from pellucid.layers.linear import Linear
from pellucid.layers.norm import NormKind, make_norm
from pellucid.models.init import initialise
from pellucid.models.pretrained import Pretrained
from pellucid.models.sizes import (
    MOST_BLOCKS,
    MOST_CLASSES,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_TOKENS,
    MOST_WIDTH,
    check_sizes,
)


@dataclass(frozen=True)
class TransformerConfig:
    """The paper's base model, but for the vocabularies.

    >>> config = TransformerConfig(vocabulary=1000)
    >>> config.width, config.heads, config.norm
    (512, 8, 'post')
    """

    vocabulary: int = 6
    """How many tokens there are, the special ones included."""
    target_vocabulary: int | None = None
    """The same as `vocabulary` unless given."""
    width: int = 512
    """Of a token."""
    heads: int = 8
    """In each attention."""
    encoder_layers: int = 6
    """Blocks that read the source."""
    decoder_layers: int = 6
    """Blocks that say the target."""
    hidden: int = 2048
    """Width of the feed-forward layers."""
    activation: Activation = "relu"
    """Of the feed-forward layers."""
    norm: Placement = "post"
    """Normalise before each branch, or after it is added, as the paper does."""
    norm_kind: NormKind = "layer"
    """LayerNorm or RMSNorm."""
    final_norm: bool | None = None
    """After the last block of each stack; by default with "pre" alone, as the stream needs it there."""
    qk_norm: bool = False
    """Normalise queries and keys, head by head."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How a token knows its place."""
    max_length: int = 512
    """How many tokens a sentence may have: learned positions, and steps of decoding."""
    tied: bool = True
    """One table for source, target and output; the vocabularies must then be the same."""
    bias: bool = True
    """Of the blocks' linear maps."""
    dropout: float = 0.1
    """Of tokens and branches."""
    attention_dropout: float | None = None
    """Of attention weights; as much as of the branches unless given."""
    zero_branches: bool = False
    """Every residual branch starts as nothing: its last layer is zero."""
    languages: tuple[str, ...] = ()
    """Of a translator: the language that it reads, and the one that it says unless another is asked for."""

    def __post_init__(self) -> None:
        check_sizes(
            self, vocabulary=MOST_CLASSES, width=MOST_WIDTH, heads=MOST_HEADS, hidden=MOST_HIDDEN,
            encoder_layers=MOST_BLOCKS, decoder_layers=MOST_BLOCKS, max_length=MOST_TOKENS,
        )  # fmt: skip
        if self.target_vocabulary is not None:
            check_sizes(self, target_vocabulary=MOST_CLASSES)
        if self.positions not in ("sinusoidal", "learned"):
            raise ValueError(f"positions is {self.positions!r}; expected 'sinusoidal' or 'learned'")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions are pairs of features; got a width of {self.width}, expected even")
        if self.tied and self.target_vocabulary not in (None, self.vocabulary):
            raise ValueError(
                f"tied=True shares one table, but the vocabularies are {self.vocabulary} and {self.target_vocabulary}; "
                "expected the same, or tied=False"
            )


class Encoder(nn.Module):
    """A stack of encoder blocks."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(**_block_options(config)) for _ in range(config.encoder_layers))
        self.norm = _final_norm(config)

    def forward(self, x: Float[Tensor, "b s d"], mask: Tensor | None = None) -> Float[Tensor, "b s d"]:
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder blocks: causal among themselves, open to the context."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(**_block_options(config)) for _ in range(config.decoder_layers))
        self.norm = _final_norm(config)

    def forward(
        self,
        x: Float[Tensor, "n t d"],
        context: Float[Tensor, "b s d"],
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        *,
        causal: bool = True,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "n t d"]:
        for i, block in enumerate(self.blocks):
            x = block(x, context, mask, context_mask, causal=causal, cache=None if cache is None else cache[i])
        return self.norm(x)


class Transformer(nn.Module, Pretrained[TransformerConfig], config_class=TransformerConfig):
    """Source tokens in, logits of each next target token out.

    >>> import torch
    >>> model = Transformer(TransformerConfig(vocabulary=12, width=64, hidden=128, encoder_layers=1, decoder_layers=1))
    >>> source, target = torch.randint(12, (2, 10)), torch.randint(12, (2, 7))
    >>> model(source, target).shape
    torch.Size([2, 7, 12])
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        target_vocabulary = config.target_vocabulary or config.vocabulary
        self.source_embedding = TokenEmbedding(config.vocabulary, config.width)
        self.target_embedding = None if config.tied else TokenEmbedding(target_vocabulary, config.width)
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = None if config.tied else Linear(config.width, target_vocabulary)
        initialise(self, zero_branches=config.zero_branches)

    def forward(
        self,
        source: Int[Tensor, "b s"],
        target: Int[Tensor, "b t"],
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Teacher forcing: the logits at target position i speak of token i + 1, and see no token beyond i.

        source_mask: which source tokens exist, as `ops.masks.padding(lengths)`; target_mask likewise.
        """
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(self, source: Int[Tensor, "b s"], source_mask: Tensor | None = None) -> Float[Tensor, "b s d"]:
        """What the decoder reads."""
        x = self.source_positions(self.source_embedding(source))
        return self.encoder(self.dropout(x), source_mask)

    def decode(
        self,
        target: Int[Tensor, "n t"],
        context: Float[Tensor, "b s d"],
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        causal: bool = True,
        positions: Tensor | None = None,
        cache: list[DecoderCache] | None = None,
    ) -> Float[Tensor, "n t v"]:
        """Logits for these target tokens; with a cache, they follow the tokens of the calls before.

        n is b or a multiple of it: targets of one source stand side by side.
        mask: which target tokens may be seen. positions: (t) of the targets; counted on from the cache unless given.
        """
        start = len(cache[0].tokens) if cache else 0
        words = self.source_embedding if self.target_embedding is None else self.target_embedding
        x = self.target_positions(words(target), start if positions is None else positions)
        x = self.decoder(self.dropout(x), context, mask, source_mask, causal=causal, cache=cache)
        return words.logits(x) if self.output is None else self.output(x)

    def cache(self, length: int | None = None) -> list[DecoderCache]:
        """An empty cache for step-by-step decoding of one batch, with room for `length` tokens from the start."""
        if length is not None and length > self.config.max_length:
            raise ValueError(
                f"axis t (tokens): {length} tokens; expected at most max_length = {self.config.max_length}"
            )
        return [DecoderCache(KVCache(length)) for _ in self.decoder.blocks]


def _block_options(config: TransformerConfig) -> dict:
    return {
        "width": config.width,
        "heads": config.heads,
        "norm": config.norm,
        "norm_kind": config.norm_kind,
        "hidden": config.hidden,
        "activation": config.activation,
        "bias": config.bias,
        "dropout": config.dropout,
        "attention_dropout": config.dropout if config.attention_dropout is None else config.attention_dropout,
        "qk_norm": config.qk_norm,
    }


def _final_norm(config: TransformerConfig) -> nn.Module:
    has_norm = config.norm == "pre" if config.final_norm is None else config.final_norm
    return make_norm(config.norm_kind, config.width) if has_norm else nn.Identity()


def _positions(config: TransformerConfig) -> nn.Module:
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.width)
    return SinusoidalPositions(config.width, config.max_length)
