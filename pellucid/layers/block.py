"""Blocks: residual branches of attention and feed-forward, normalised before or after.

    pre:   x ← x + branch(norm(x))        the residual stream is never normalised; a final norm is needed
    post:  x ← norm(x + branch(x))        "Attention Is All You Need"

Which one is an explicit choice: neither is the default.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pellucid.layers.attention import MultiHeadAttention
from pellucid.layers.cache import KeysValues, KVCache
from pellucid.layers.feedforward import Activation, FeedForward
from pellucid.layers.norm import NormKind, make_norm
from pellucid.layers.torch_blocks import TorchLayer, describe_layer, load_torch_weights, make_layer
from pellucid.ops.positions import Turns

Placement = Literal["pre", "post"]


class DropPath(nn.Module):
    """In training, drops a sample's whole branch with probability p and scales the kept ones by 1/(1 − p).

    >>> import torch
    >>> x = torch.ones(1000, 1, 1)
    >>> sorted(set(DropPath(0.5).train()(x).flatten().tolist()))
    [0.0, 2.0]
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"drop_path is {p}; expected a probability in [0, 1)")
        self.p = p

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        if self.p == 0.0 or not self.training:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.p
        return x * keep / (1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class LayerScale(nn.Module):
    """A learned factor for each feature, small at first, so that deep stacks start near the identity.

    >>> import torch
    >>> LayerScale(3, 0.5)(torch.ones(1, 1, 3)).flatten().tolist()
    [0.5, 0.5, 0.5]
    """

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.initial = initial
        self.factor = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return x * self.factor.to(x.dtype)


class _Block(nn.Module):
    """The parts that both kinds of block have, and how a branch is added to the stream.

    norm: "pre" or "post", see above. norm_kind: "layer" or "rms"; norm_eps: its ε, the kind's own unless given.
    hidden, activation: of the feed-forward layer, 4·width and GELU unless given.
    dropout: of each branch's output and of the hidden layer; attention_dropout: of the attention weights.
    layer_scale: initial value of a learned factor on each branch; None for no factor.
    kv_heads, qk_norm, rotary: as in MultiHeadAttention.
    """

    reads_context = False

    def __init__(
        self,
        width: int,
        heads: int = 8,
        *,
        norm: Placement,
        norm_kind: NormKind = "layer",
        norm_eps: float | None = None,
        hidden: int | None = None,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        kv_heads: int | None = None,
        qk_norm: bool = False,
        rotary: float | None = None,
    ):
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm is {norm!r}; expected 'pre' or 'post'")
        self.norm: Placement = norm
        shared = {"kv_heads": kv_heads, "bias": bias, "qk_norm": qk_norm, "dropout": attention_dropout}
        self.attention = MultiHeadAttention(width, heads, rotary=rotary, **shared)
        self.attention_norm = make_norm(norm_kind, width, eps=norm_eps)
        self.attention_scale = _scale(width, layer_scale)
        if self.reads_context:
            self.cross_attention = MultiHeadAttention(width, heads, **shared)
            self.cross_attention_norm = make_norm(norm_kind, width, eps=norm_eps)
            self.cross_attention_scale = _scale(width, layer_scale)
        self.feed_forward = FeedForward(width, hidden, activation=activation, bias=bias, dropout=dropout)
        self.feed_forward_norm = make_norm(norm_kind, width, eps=norm_eps)
        self.feed_forward_scale = _scale(width, layer_scale)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def _add(
        self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], scale: nn.Module, read: int | None = None
    ) -> Float[Tensor, "b t d"]:
        kept = x if read is None else x[:, :read]
        if self.norm == "pre":
            return kept + self.drop_path(scale(self.dropout(branch(norm(x)))))
        return norm(kept + self.drop_path(scale(self.dropout(branch(x)))))

    @classmethod
    def from_torch(cls, layer: TorchLayer) -> Self:
        """The block that computes what a layer of PyTorch's does, with copies of its weights."""
        if isinstance(layer, nn.TransformerDecoderLayer) != cls.reads_context:
            wanted = "TransformerDecoderLayer" if cls.reads_context else "TransformerEncoderLayer"
            raise ValueError(f"the layer is a {type(layer).__name__}; expected an nn.{wanted}")
        block = cls(**describe_layer(layer)).to(layer.linear1.weight)
        load_torch_weights(block, layer.state_dict(), has_cross=cls.reads_context)
        return block.train(layer.training)

    def to_torch(self) -> TorchLayer:
        """The same block as PyTorch's layer, batch first. The weights are copied."""
        return make_layer(self)

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"


class EncoderBlock(_Block):
    """x ← x + Attention(x), then x ← x + FeedForward(x).

    >>> block = EncoderBlock(512, heads=8, norm="pre")
    >>> block(torch.randn(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    >>> EncoderBlock.from_torch(nn.TransformerEncoderLayer(512, 8)).norm    # and back by to_torch()
    'post'
    """

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        positions: Tensor | Turns | None = None,
        cache: KVCache | None = None,
        read: int | None = None,
    ) -> Float[Tensor, "b read d"]:
        """read: only this many tokens, the first, are wanted after this block; the others are seen but not renewed."""
        how = {"mask": mask, "causal": causal, "positions": positions, "cache": cache, "asking": read}
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, **how), self.attention_scale, read)
        return self._add(x, self.feed_forward_norm, self.feed_forward, self.feed_forward_scale)


@dataclass
class DecoderCache:
    """What one decoder block keeps between steps: its own tokens, and the context, which never changes.

    >>> cache = DecoderCache()
    >>> len(cache.tokens), cache.context
    (0, None)
    """

    tokens: KVCache = field(default_factory=KVCache)
    context: KeysValues | None = None

    def narrow(self, contexts: Bool[Tensor, " b"], rows: Bool[Tensor, " n"]) -> None:
        """Keep what belongs to these contexts, and to these rows of tokens."""
        self.tokens.narrow(rows)
        if self.context is not None:
            self.context = KeysValues(*(x[contexts] for x in self.context))


class DecoderBlock(_Block):
    """x ← x + Attention(x), seeing only the past; x ← x + CrossAttention(x, context); x ← x + FeedForward(x).

    >>> block = DecoderBlock(512, heads=8, norm="post")
    >>> block(torch.randn(2, 7, 512), torch.randn(2, 10, 512)).shape
    torch.Size([2, 7, 512])
    >>> block(torch.randn(6, 7, 512), torch.randn(2, 10, 512)).shape         # three sequences side by side, one context
    torch.Size([6, 7, 512])
    """

    reads_context = True

    def forward(
        self,
        x: Float[Tensor, "n t d"],
        context: Float[Tensor, "b s d"],
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        *,
        causal: bool = True,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "n t d"]:
        """With a cache, x holds the tokens that follow those of the calls before, and the context is read once.

        n is b or a multiple of it: sequences that share a context stand side by side.
        """
        read: Tensor | KeysValues = context
        if cache is not None:
            if cache.context is None:
                k, v = self.cross_attention.keys_values(context)
                cache.context = KeysValues(k.contiguous(), v.contiguous())  # head by head, as every step reads them
            read = cache.context
        how = {"mask": mask, "causal": causal, "positions": positions, "cache": cache and cache.tokens}
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, **how), self.attention_scale)
        x = self._add(
            x, self.cross_attention_norm, lambda y: self._read(y, read, context_mask), self.cross_attention_scale
        )
        return self._add(x, self.feed_forward_norm, self.feed_forward, self.feed_forward_scale)

    def _read(
        self, x: Float[Tensor, "n t d"], context: Tensor | KeysValues, mask: Tensor | None
    ) -> Float[Tensor, "n t d"]:
        """Sequences that share a context ask it as one long sequence, as queries don't see each other: no copies."""
        n, t, _ = x.shape
        b = (context.k if isinstance(context, KeysValues) else context).shape[0]
        if b == 0 or n % b:
            raise ValueError(f"axis b (batch): {n} sequences can't share {b} contexts; expected a multiple of {b}")
        return self.cross_attention(x.reshape(b, n // b * t, -1), context, mask=mask).reshape(n, t, -1)


def _scale(width: int, initial: float | None) -> nn.Module:
    return nn.Identity() if initial is None else LayerScale(width, initial)
