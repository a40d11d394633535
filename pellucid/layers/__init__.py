"""Parameters wired to ops."""

from pellucid.layers.attention import MultiHeadAttention
from pellucid.layers.block import DecoderBlock, DecoderCache, DropPath, EncoderBlock, LayerScale
from pellucid.layers.cache import KeysValues, KVCache, ListedCache, PlacedCache
from pellucid.layers.embed import (
    ClassToken,
    LearnedGrid,
    LearnedPositions,
    LearnedTokens,
    PatchEmbed,
    RegisterTokens,
    RotaryGrid,
    SinusoidalPositions,
    TokenEmbedding,
)
from pellucid.layers.feedforward import FeedForward
from pellucid.layers.norm import LayerNorm, RMSNorm

__all__ = [
    "ClassToken",
    "DecoderBlock",
    "DecoderCache",
    "DropPath",
    "EncoderBlock",
    "FeedForward",
    "KVCache",
    "KeysValues",
    "LayerNorm",
    "LayerScale",
    "LearnedGrid",
    "LearnedPositions",
    "LearnedTokens",
    "ListedCache",
    "MultiHeadAttention",
    "PatchEmbed",
    "PlacedCache",
    "RMSNorm",
    "RegisterTokens",
    "RotaryGrid",
    "SinusoidalPositions",
    "TokenEmbedding",
]
