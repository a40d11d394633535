"""What PyTorch's own attention functions were given, in the terms of a record.

`scaled_dot_product_attention` says what it takes. The kernel behind `nn.TransformerEncoderLayer` and
`nn.MultiheadAttention` in inference (the fast path) takes tokens and weights and gives only what comes out of the whole
layer: q, k and v are computed from the same tokens and weights, and the layer is completed from them to see that it is
the same. Nested tensors hold sentences of several lengths: they are padded, and a mask says where there is nothing.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pellucid.ops.checks import resolve_beta
from pellucid.ops.rules import Allow, Positions, Rule


@dataclass(frozen=True, eq=False)
class Call:
    """One attention: what went in, and what came out."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | Rule | None
    beta: float
    causal: bool
    dropout: float
    output: Tensor
    tokens: tuple[Tensor, Tensor, Tensor] | None = None
    """Of a fused layer, which makes q and k inside: the tokens that ask, those that are read, what came out (b t d)."""


def read_sdpa(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """A call of scaled_dot_product_attention."""
    if query.is_nested:
        beta = resolve_beta(scale, query.unbind()[0].shape[-1])
        return _pad(query, key, value, attn_mask, beta, is_causal, dropout_p, output)
    beta = resolve_beta(scale, query.shape[-1])
    mask, n_q, n_k = attn_mask, query.shape[-2], key.shape[-2]
    if hasattr(mask, "_materialize"):  # causal_lower_right and causal_upper_left: a tensor that holds no numbers
        mask = mask._materialize(query.device)
    if is_causal and n_q != n_k:  # PyTorch's triangle starts at the top left, ours ends at the bottom right
        mask, is_causal = torch.ones(n_q, n_k, dtype=torch.bool, device=query.device).tril(), False
    return Call(query, key, value, mask, beta, is_causal, dropout_p, output)


def read_aten(output: tuple[Tensor, ...], operator: Any, *args: Any, **kwargs: Any) -> Call:
    """A call of one of the kernels behind scaled_dot_product_attention, by the names that its schema gives."""
    overload = operator.default if hasattr(operator, "default") else operator
    given = dict(zip((argument.name for argument in overload._schema.arguments), args, strict=False)) | kwargs
    mask = given.get("attn_mask", given.get("attn_bias"))
    options = {key: given[key] for key in ("dropout_p", "is_causal", "scale") if key in given}
    return read_sdpa(output[0], given["query"], given["key"], given["value"], mask, **options)


def _pad(q: Tensor, k: Tensor, v: Tensor, mask: Any, beta: float, causal: bool, dropout: float, output: Tensor) -> Call:
    """Sentences of several lengths, side by side, (h n d) each."""
    parts = [tuple(x.unbind()) for x in (q, k, v, output)]
    n_q, n_k = (torch.tensor([x.shape[-2] for x in part], device=q.device) for part in parts[:2])

    def padded(sentences: tuple[Tensor, ...]) -> Tensor:
        longest = max(x.shape[-2] for x in sentences)
        return torch.stack([F.pad(x, (0, 0, 0, longest - x.shape[-2])) for x in sentences])

    q, k, v, output = (padded(part) for part in parts)
    rows, columns = (torch.arange(int(n.max()), device=q.device) for n in (n_q, n_k))
    there = (rows < n_q[:, None])[:, None, :, None] & (columns < n_k[:, None])[:, None, None]
    if causal:
        there = there & (columns <= rows[:, None])
    return Call(q, k, v, there, beta, False, dropout, output)


def read_flex(
    output: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Call:
    """A call of flex attention: its two functions are evaluated a few rows at a time."""
    steps = [] if score_mod is None else [Positions(score_mod)]
    mask_mod = getattr(block_mask, "mask_mod", None)
    steps += [] if mask_mod is None else [Allow(mask_mod)]
    out = output if isinstance(output, Tensor) else output[0]
    rule = Rule(tuple(steps)) if steps else None
    return Call(query, key, value, rule, resolve_beta(scale, query.shape[-1]), False, 0.0, out)


class Unlike(Exception):
    """A fused layer that could not be reproduced."""


def read_fast_attention(output: Any, *args: Any, **kwargs: Any) -> Call:
    """nn.MultiheadAttention in inference: one kernel from tokens to tokens."""
    given = _FAST_ATTENTION.bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    with _rounding_as(output[0], a):
        call = _project(a["query"], a["key"], a["value"], a)
        mixed = F.linear(_join_heads(call.output, a["query"]), a["proj_weight"], a["proj_bias"])
    _compare(mixed, output[0])
    return replace(call, tokens=(a["query"], a["key"], output[0]))


def read_fast_layer(output: Tensor, *args: Any, **kwargs: Any) -> Call:
    """nn.TransformerEncoderLayer in inference: one kernel for the whole layer."""
    given = _FAST_LAYER.bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    x, width, tokens = a["src"], (a["embed_dim"],), (a["src"], a["src"], output)
    activation = F.gelu if a["use_gelu"] else F.relu

    def norm(y: Tensor, i: int) -> Tensor:
        return F.layer_norm(y, width, a[f"norm_weight_{i}"], a[f"norm_bias_{i}"], a["eps"])

    def feed(y: Tensor) -> Tensor:
        hidden = activation(F.linear(y, a["ffn_weight_1"], a["ffn_bias_1"]))
        return F.linear(hidden, a["ffn_weight_2"], a["ffn_bias_2"])

    if x.is_nested:
        lengths = [part.shape[0] for part in x.unbind()]
        x = torch.nested.to_padded_tensor(x, 0.0)
        output = torch.nested.to_padded_tensor(output, 0.0)
        there = torch.arange(x.shape[1], device=x.device) < torch.tensor(lengths, device=x.device)[:, None]
        a = {**a, "mask": ~there, "mask_type": 1}
    else:
        there = None
    with _rounding_as(output, a):
        read = norm(x, 1) if a["norm_first"] else x
        call = _project(read, read, read, a)
        mixed = F.linear(_join_heads(call.output, x), a["proj_weight"], a["proj_bias"])
        y = x + mixed if a["norm_first"] else norm(x + mixed, 1)
        y = y + feed(norm(y, 2)) if a["norm_first"] else norm(y + feed(y), 2)
    if there is not None:
        y, output = y * there[..., None], output * there[..., None]
    _compare(y, output)
    return replace(call, tokens=tokens)


def _rounding_as(output: Tensor, a: dict[str, Any]) -> torch.autocast:
    """As the kernel rounded: on the CPU it is autocast inside, and only what came out tells."""
    return torch.autocast(output.device.type, output.dtype, enabled=output.dtype != a["qkv_weight"].dtype)


def _project(query: Tensor, key: Tensor, value: Tensor, a: dict[str, Any]) -> Call:
    """q, k, v and what attention makes of them, from the tokens and the packed weights."""
    if query.is_nested:
        raise Unlike("nested tensors")
    heads = a["num_heads"]
    bias = a["qkv_bias"]
    parts = zip(
        (query, key, value), a["qkv_weight"].chunk(3), bias.chunk(3) if bias is not None else (None,) * 3, strict=True
    )
    q, k, v = (F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in parts)
    mask = a["mask"]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = ~mask
        if a["mask_type"] == 1:  # padding, (b k)
            mask = mask[:, None, None]
        elif a["mask_type"] == 2 and mask.ndim == 3:
            mask = mask[:, None]
    out = F.scaled_dot_product_attention(q, k, v, mask)
    return Call(q, k, v, mask, 1.0 / math.sqrt(q.shape[-1]), False, 0.0, out)


def _join_heads(x: Tensor, like: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2).to(like.dtype)


def _compare(mine: Tensor, output: Tensor) -> None:
    """The layer completed from the call is the layer that ran, within rounding. Rows that see nothing are left out."""
    known = output.isfinite() & mine.isfinite()
    eps = torch.finfo(output.dtype).eps
    miss = torch.where(known, (mine - output).abs(), 0.0).amax().item()
    size = torch.where(known, output.abs(), 0.0).amax().item()
    if miss > 64 * eps * (1 + size):
        raise Unlike(f"the layer that is computed from its queries, keys and values differs by {miss:.1e}")


def _signature(names: str, **defaults: Any) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name, empty)) for name in names.split()]
    )


_FAST_ATTENTION = _signature(
    "query key value embed_dim num_heads qkv_weight qkv_bias proj_weight proj_bias mask need_weights "
    "average_attn_weights mask_type",
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
)
_FAST_LAYER = _signature(
    "src embed_dim num_heads qkv_weight qkv_bias proj_weight proj_bias use_gelu norm_first eps norm_weight_1 "
    "norm_bias_1 norm_weight_2 norm_bias_2 ffn_weight_1 ffn_bias_1 ffn_weight_2 ffn_bias_2 mask mask_type",
    mask=None,
    mask_type=None,
)
