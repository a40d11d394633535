"""Multi-head attention: the parameters, wired to `ops.attend`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.layers.cache import KeysValues, KVCache
from pellucid.layers.linear import Linear
from pellucid.layers.norm import RMSNorm
from pellucid.ops import attend
from pellucid.ops.linear import linear
from pellucid.ops.masks import is_for_all
from pellucid.ops.positions import Turns, rotary_angles, turn, turns_of


class MultiHeadAttention(nn.Module):
    """Every head projects the tokens to queries, keys and values, attends, and the heads' mixtures are joined.

    >>> attention = MultiHeadAttention(768, heads=12)
    >>> attention(torch.randn(1, 5, 768)).shape                                # self-attention
    torch.Size([1, 5, 768])
    >>> attention(torch.randn(1, 5, 768), torch.randn(1, 9, 768)).shape        # cross-attention
    torch.Size([1, 5, 768])
    >>> one = MultiHeadAttention(256, heads=1, key_width=64, value_width=256)  # values wider than keys
    >>> one.W_q.shape, one.W_k.shape, one.W_v.shape
    (torch.Size([256, 64]), torch.Size([256, 64]), torch.Size([256, 256]))

    width: of the tokens that ask, and of the output.
    heads, kv_heads: kv_heads < heads lets groups of query heads share keys and values.
    key_width, value_width: of one head's keys (and queries) and values; width / heads unless given.
    key_input, value_input: width of the tokens that keys and values are made from; `width` unless given.
    bias: of the four projections. out: False leaves out the output projection (the heads are only joined).
    beta: inverse temperature; 1/√key_width unless given.
    qk_norm: RMS-normalise queries and keys, head by head, before they meet.
    rotary: base of rotary positions (10,000 is usual); None for no rotation.
    dropout: of attention weights, in training.
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        key_input: int | None = None,
        value_input: int | None = None,
        bias: bool = True,
        out: bool = True,
        beta: float | None = None,
        qk_norm: bool = False,
        rotary: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = {
            "width": width,
            "heads": heads,
            "kv_heads": kv_heads,
            "key_width": key_width,
            "value_width": value_width,
        }
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} is {size}; expected one or more")
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % kv_heads:
            raise ValueError(f"kv_heads is {kv_heads}; expected a divisor of heads = {heads}")
        if key_width is None:
            if width % heads:
                raise ValueError(f"width {width} can't be split into {heads} heads; expected a multiple of {heads}")
            key_width = width // heads
        value_width = key_width if value_width is None else value_width
        if rotary is not None and key_width % 2:
            raise ValueError(
                f"rotary positions turn pairs of features; got key_width {key_width}, expected an even one"
            )
        key_input = width if key_input is None else key_input
        value_input = key_input if value_input is None else value_input
        if not out and heads * value_width != width:
            raise ValueError(f"without an output projection the heads give {heads} × {value_width}, expected {width}")
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.beta, self.rotary, self.dropout = beta, rotary, dropout
        self.q = Linear(width, heads * key_width, bias=bias)
        self.k = Linear(key_input, kv_heads * key_width, bias=bias)
        self.v = Linear(value_input, kv_heads * value_width, bias=bias)
        self.out = Linear(heads * value_width, width, bias=bias) if out else nn.Identity()
        self.q_norm = RMSNorm(key_width) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(key_width) if qk_norm else nn.Identity()

    def forward(
        self,
        query: Float[Tensor, "b q _"],
        key: Float[Tensor, "b k _"] | KeysValues | None = None,
        value: Float[Tensor, "b k _"] | None = None,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        positions: Tensor | Turns | None = None,
        cache: KVCache | None = None,
        asking: int | None = None,
    ) -> Float[Tensor, "b asking _"]:
        """Queries attend to the `key` tokens (themselves by default) and read the `value` tokens (the keys').

        key: tokens, or what `keys_values` made of them once for many calls.
        mask, causal: as in `ops.attend`.
        positions: (t), (t axes) or (b t axes) of the tokens, for rotary attention, or how it is to turn; counted on
            from the cache if None.
        cache: self-attention only; keys and values are added to those of the calls before.
        asking: only the first this many tokens ask; all are keys.
        """
        if key is not None and (cache is not None or positions is not None or self.rotary is not None):
            raise ValueError("cache, positions and rotary belong to self-attention; leave out the key tokens")
        if positions is not None and self.rotary is None:
            raise ValueError("positions turn queries and keys; build the attention with rotary=10_000")
        if asking is not None and (causal or cache is not None or not (mask is None or is_for_all(mask))):
            raise ValueError(
                "asking is for attention without causal, cache and a mask of each query's own, which count queries "
                "from the end"
            )
        turns = self._turns(query, positions, cache)
        if key is None and value is None and asking is None:
            q, k, v = self._self(query)
            q, k = _turn(self.q_norm(q), turns), _turn(self.k_norm(k), turns)
        else:
            q = self._split(self.q, "query", query[:, :asking], self.heads)
            first = turns if turns is None or asking is None else Turns(*(each[..., :asking, :] for each in turns))
            q = _turn(self.q_norm(q), first)
            k, v = key if isinstance(key, KeysValues) else self.keys_values(query if key is None else key, value, turns)
        if cache is not None:
            k, v = cache.append(k, v)
        dropout = self.dropout if self.training else 0.0
        listed = None if cache is None else cache.listed
        mixed = attend(q, k, v, mask, beta=self.beta, causal=causal, listed=listed, dropout=dropout)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def keys_values(
        self, key: Float[Tensor, "b k _"], value: Float[Tensor, "b k _"] | None = None, turns: Turns | None = None
    ) -> KeysValues:
        """The keys and values of these tokens, to be attended to in one call or in many."""
        k = self._split(self.k, "key", key, self.kv_heads)
        v = self._split(self.v, "value", key if value is None else value, self.kv_heads)
        return KeysValues(_turn(self.k_norm(k), turns), v)

    # Tokens are rows, so Q = X·W_q, and W_q is (width × heads·key_width): the transpose of what nn.Linear holds.

    @property
    def W_q(self) -> Float[Tensor, "d hk"]:
        """Q = X·W_q, with tokens as rows; the heads stand side by side."""
        return self.q.weight.T

    @property
    def W_k(self) -> Float[Tensor, "d gk"]:
        """K = X·W_k."""
        return self.k.weight.T

    @property
    def W_v(self) -> Float[Tensor, "d gv"]:
        """V = X·W_v."""
        return self.v.weight.T

    @property
    def W_o(self) -> Float[Tensor, "hv d"]:
        """Y = Z·W_o, where Z are the heads' mixtures side by side."""
        if not isinstance(self.out, nn.Linear):
            raise ValueError("this attention was built with out=False: it has no W_o")
        return self.out.weight.T

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same attention as `module`, on (b t d) whatever its batch_first. The weights are copied."""
        if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn add keys that belong to no token; expected neither")
        bias = module.in_proj_bias
        ours = cls(
            module.embed_dim,
            module.num_heads,
            key_input=module.kdim,
            value_input=module.vdim,
            bias=bias is not None,
            dropout=module.dropout,
        ).to(module.out_proj.weight)
        if module.in_proj_weight is not None:  # packed: rows 0…D are W_q, D…2D W_k, 2D…3D W_v
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        with torch.no_grad():
            for linear, weight in zip((ours.q, ours.k, ours.v), weights, strict=True):
                linear.weight.copy_(weight)
            ours.out.load_state_dict(module.out_proj.state_dict())
            if bias is not None:
                for linear, part in zip((ours.q, ours.k, ours.v), bias.chunk(3), strict=True):
                    linear.bias.copy_(part)
        return ours.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same attention as PyTorch's module (batch_first). The weights are copied."""
        head = self.width // self.heads
        widths = {self.q.out_features // self.heads, self.v.out_features // self.kv_heads}
        plain = {
            "kv_heads equal to heads": self.kv_heads == self.heads,
            f"keys and values {head} wide": widths == {head},
            "an output projection": isinstance(self.out, nn.Linear),
            "no rotary": self.rotary is None,
            "no qk_norm": isinstance(self.q_norm, nn.Identity),
            f"beta = 1/√{head}": self.beta is None,
        }
        missing = [name for name, holds in plain.items() if not holds]
        if missing:
            raise ValueError(f"nn.MultiheadAttention can't express this attention; it needs {', '.join(missing)}")
        has_bias = self.q.bias is not None
        module = nn.MultiheadAttention(
            self.width,
            self.heads,
            dropout=self.dropout,
            bias=has_bias,
            kdim=self.k.in_features,
            vdim=self.v.in_features,
            batch_first=True,
        ).to(self.q.weight)
        weights = (self.q.weight, self.k.weight, self.v.weight)
        with torch.no_grad():
            if module.in_proj_weight is not None:
                module.in_proj_weight.copy_(torch.cat(weights))
            else:
                for name, weight in zip("qkv", weights, strict=True):
                    getattr(module, f"{name}_proj_weight").copy_(weight)
            module.out_proj.load_state_dict(self.out.state_dict())
            if has_bias:
                module.in_proj_bias.copy_(torch.cat((self.q.bias, self.k.bias, self.v.bias)))
        return module.train(self.training)

    def extra_repr(self) -> str:
        shared = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        return f"width={self.width}, heads={self.heads}{shared}"

    def _self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the same tokens by one matrix product: the tokens are read once, not thrice."""
        _check_width(self.q, "query", x)
        _check_width(self.k, "key", x)
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        bias = None if self.q.bias is None else torch.cat([self.q.bias, self.k.bias, self.v.bias])
        parts = linear(x, weight, bias).split([each.out_features for each in (self.q, self.k, self.v)], dim=-1)
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (_split_heads(part, h) for part, h in zip(parts, heads, strict=True))
        return q, k, v

    def _split(self, linear: nn.Linear, name: str, x: Tensor, heads: int) -> Float[Tensor, "b h t d"]:
        _check_width(linear, name, x)
        return _split_heads(linear(x), heads)

    def _turns(self, query: Tensor, positions: Tensor | Turns | None, cache: KVCache | None) -> Turns | None:
        if self.rotary is None or isinstance(positions, Turns):
            return positions if isinstance(positions, Turns) else None
        if positions is None:
            start = 0 if cache is None else len(cache)
            positions = torch.arange(start, start + query.shape[1], device=query.device)
        return turns_of(rotary_angles(positions, self.q.out_features // self.heads, base=self.rotary))


def _split_heads(x: Float[Tensor, "b t hd"], heads: int) -> Float[Tensor, "b h t d"]:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # einops would take as long as a small product does


def _check_width(linear: nn.Linear, name: str, x: Tensor) -> None:
    if x.ndim != 3 or x.shape[-1] != linear.in_features:
        raise ValueError(
            f"axis d (width): {name} tokens have shape {list(x.shape)}, expected (b t d) with d = {linear.in_features}"
        )


def _turn(x: Float[Tensor, "b h t d"], turns: Turns | None) -> Float[Tensor, "b h t d"]:
    return x if turns is None else turn(x, turns)
