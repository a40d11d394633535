"""What one wants to know of an attention map P = softmax(β·qkᵀ), without ever holding the map.

Every function takes q (b h q d), k (b g k d), and mask, beta, causal as `attend` does, and is exact: it equals the same
quantity read off the materialised map. Memory grows with the number of keys and not with its square: on CUDA kernels
of ours go through the map tile by tile (`ops.tiled`); elsewhere, and where a gradient is to flow, its rows are computed
a few at a time.

impl: "auto", or "blocks" (of rows) or "triton" to have one of the two. totals: what is known of the rows already.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.kernels.totals import Totals
from pellucid.ops import tiled
from pellucid.ops.attention import attend
from pellucid.ops.checks import check_attention, resolve_beta
from pellucid.ops.exact import Mask, RowIndex, share_heads, weight_blocks, weight_rows, weight_tiles
from pellucid.ops.rules import Rule, pick_heads
from pellucid.ops.tiled import Summing

TINY = torch.finfo(torch.float32).tiny
Transposed = Literal["auto", "blocks", "triton", "fused"]
Selection = slice | Sequence[int] | Int[Tensor, " n"] | None


class TopK(NamedTuple):
    """The keys that each query attends to most, and their weights.

    >>> import torch
    >>> q = k = torch.eye(4)[None, None]
    >>> topk(q, k, 1).keys.flatten()
    tensor([0, 1, 2, 3])
    """

    weights: Float[Tensor, "b h q n"]
    keys: Int[Tensor, "b h q n"]


class SelfAttention(Protocol):
    """What a record must tell for `rollout`."""

    @property
    def q(self) -> Tensor: ...
    @property
    def k(self) -> Tensor: ...
    @property
    def mask(self) -> Mask: ...
    @property
    def beta(self) -> float | None: ...
    @property
    def causal(self) -> bool: ...


def row(
    q: Tensor, k: Tensor, i: int, mask: Mask = None, *, beta: float | None = None, causal: bool = False
) -> Float[Tensor, "b h k"]:
    """How query i spreads its attention over the keys.

    >>> import torch
    >>> row(torch.zeros(1, 1, 3, 8), torch.randn(1, 1, 3, 8), 1, causal=True)
    tensor([[[0.5000, 0.5000, 0.0000]]])
    """
    return rows(q, k, [i], mask, beta=beta, causal=causal)[:, :, 0]


def rows(
    q: Tensor,
    k: Tensor,
    index: Sequence[int] | Int[Tensor, " n"],
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h n k"]:
    """The rows of the map that belong to the chosen queries.

    >>> import torch
    >>> rows(torch.zeros(1, 1, 3, 8), torch.randn(1, 1, 3, 8), [0, 1], causal=True)[0, 0]
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000]])
    """
    return weights(q, k, mask, beta=beta, causal=causal, queries=index)


def weights(
    q: Tensor,
    k: Tensor,
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    heads: Selection = None,
    queries: Selection = None,
) -> Float[Tensor, "b heads queries k"]:
    """A block of the map: the chosen heads and queries (all of them by default), against every key.

    >>> import torch
    >>> q, k = torch.randn(2, 1, 8, 100, 16).unbind()
    >>> weights(q, k, heads=[3], queries=[7, 9]).shape
    torch.Size([1, 1, 2, 100])
    """
    check_attention(q, k, mask=mask)
    h, g = q.shape[1], k.shape[1]
    if heads is not None:
        index = _index("h (heads)", heads, h, q.device)
        if isinstance(mask, Rule) and mask.needs_all_heads:
            return weights(q, k, mask, beta=beta, causal=causal, queries=queries)[:, index]
        q = q[:, index]
        # Each chosen query head keeps the key head of its group.
        k = k[:, torch.arange(h, device=q.device)[index] // (h // g)]
        mask = mask if mask is None else pick_heads(mask, index)
    rows = slice(None) if queries is None else _index("q (queries)", queries, q.shape[2], q.device)
    return weight_rows(q, k, mask, resolve_beta(beta, q.shape[-1]), causal, rows)


def column_mass(
    q: Tensor,
    k: Tensor,
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    impl: Transposed = "auto",
    totals: Totals | None = None,
) -> Float[Tensor, "b h k"]:
    """How much attention each key receives from all queries together: the column sums of the map.

    >>> import torch
    >>> q, k = torch.zeros(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    >>> column_mass(q, k)  # four queries that look at all keys alike
    tensor([[[1., 1., 1., 1.]]])
    """
    ones = torch.ones((), dtype=q.dtype, device=q.device).expand(*q.shape[:3], 1)
    return apply_transposed(q, k, ones, mask, beta=beta, causal=causal, impl=impl, totals=totals)[..., 0]


def entropy(
    q: Tensor,
    k: Tensor,
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    impl: Summing = "auto",
) -> Float[Tensor, "b h q"]:
    """−Σ P·ln P of each row, in nats: 0 for one key, ln n for n keys alike.

    >>> import torch
    >>> q, k = torch.zeros(1, 1, 1, 8), torch.randn(1, 1, 4, 8)
    >>> entropy(q, k).exp()  # one query, four keys alike
    tensor([[[4.]]])
    """
    check_attention(q, k, mask=mask)
    if tiled.takes(impl, q, k, mask, scale := resolve_beta(beta, q.shape[-1])):
        return tiled.entropy(q, k, mask, scale, causal)
    # p·ln p in two steps takes half the time of torch.special.entr; 0 − 0 is no −0.
    return _each_row(lambda p, _: 0 - torch.linalg.vecdot(p, p.clamp(min=TINY).log()), q, k, mask, beta, causal)


def mean_distance(
    q: Tensor,
    k: Tensor,
    keys_at: Float[Tensor, "k axes"],
    mask: Mask = None,
    *,
    queries_at: Float[Tensor, "q axes"] | None = None,
    beta: float | None = None,
    causal: bool = False,
    impl: Summing = "auto",
) -> Float[Tensor, "b h q"]:
    """How far each query looks: the Euclidean distance to the keys, weighted by the attention on them.

    keys_at holds each key's coordinates; queries_at the queries', the same as the keys' unless given.

    >>> import torch
    >>> q, k, places = torch.zeros(1, 1, 3, 8), torch.randn(1, 1, 3, 8), torch.arange(3.0)[:, None]
    >>> mean_distance(q, k, places)  # in the middle of three keys alike, and at both ends
    tensor([[[1.0000, 0.6667, 1.0000]]])
    """
    asking_at = keys_at if queries_at is None else queries_at
    for axis, places, n in (("k (keys)", keys_at, k.shape[2]), ("q (queries)", asking_at, q.shape[2])):
        if places.ndim != 2 or places.shape[0] != n:
            raise ValueError(f"axis {axis}: coordinates have shape {list(places.shape)}, expected [{n}, axes]")
    check_attention(q, k, mask=mask)
    end = keys_at.to(q.device).double()
    end = end - (middle := end.mean(0))  # far from zero near places are told apart no more
    start = end if queries_at is None else queries_at.to(q.device).double() - middle
    scale, few = resolve_beta(beta, q.shape[-1]), keys_at.shape[1] <= tiled.MOST_AXES
    if (few or impl == "triton") and tiled.takes(impl, q, k, mask, scale, start, end):
        return tiled.mean_distance(q, k, start, end, mask, scale, causal)

    known: dict[tuple[int, int], Tensor] = {}  # one head after the other asks for the same

    def apart(rows: slice) -> Tensor:
        if (rows.start, rows.stop) not in known:
            known.clear()
            known[rows.start, rows.stop] = torch.cdist(start[rows], end)
        return known[rows.start, rows.stop]

    def spread(p: Tensor, rows: slice) -> Tensor:
        # A float32 row sums to one within 4e-7, which a distance of 100 would show: divide by what it sums to.
        p = p.double()
        return torch.linalg.vecdot(p, apart(rows)) / p.sum(-1).clamp(min=0.5)

    return _each_row(spread, q, k, mask, beta, causal)


def topk(
    q: Tensor,
    k: Tensor,
    n: int,
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    impl: Summing = "auto",
    totals: Totals | None = None,
) -> TopK:
    """The n keys each query attends to most, with their weights, largest first.

    >>> import torch
    >>> q = k = torch.eye(4)[None, None]
    >>> topk(q, k, 1).keys.flatten()  # each looks most at itself
    tensor([0, 1, 2, 3])
    """
    if not 1 <= n <= k.shape[2]:
        raise ValueError(f"n is {n}; expected 1…{k.shape[2]}, the number of keys")
    check_attention(q, k, mask=mask)
    scale = resolve_beta(beta, q.shape[-1])
    if (n <= tiled.MOST_TOP or impl == "triton") and tiled.takes(impl, q, k, mask, scale):
        return TopK(*tiled.topk(q, k, n, mask, scale, causal, totals))
    top = TopK(_room(q, n), _room(q, n, dtype=torch.long))
    for tile, p in weight_tiles(q, k, mask, scale, causal):
        top.weights[tile], top.keys[tile] = p.topk(n, dim=-1)
    return top


def apply(
    q: Tensor, k: Tensor, x: Tensor, mask: Mask = None, *, beta: float | None = None, causal: bool = False
) -> Float[Tensor, "b h q e"]:
    """P·x for x (b h k e): a forward call of the fused kernel with v = x.

    >>> import torch
    >>> q, k, x = torch.randn(3, 1, 2, 4, 8).unbind()
    >>> torch.allclose(apply(q, k, x), weights(q, k) @ x, atol=1e-6)
    True
    """
    x = x.expand(q.shape[0], q.shape[1], *x.shape[-2:]).to(q.dtype)
    if isinstance(mask, Rule):  # no kernel knows it
        beta = resolve_beta(beta, q.shape[-1])
        return torch.cat([p.to(x.dtype) @ x for _, p in weight_blocks(q, k, mask, beta, causal)], dim=2)
    return attend(q, share_heads(k, q.shape[1]), x, mask, beta=beta, causal=causal)


def apply_transposed(
    q: Tensor,
    k: Tensor,
    x: Tensor,
    mask: Mask = None,
    *,
    beta: float | None = None,
    causal: bool = False,
    impl: Transposed = "auto",
    totals: Totals | None = None,
) -> Float[Tensor, "b h k e"]:
    """Pᵀ·x for x (b h q e): what each key hands back when every query sends out its x.

    impl: "fused" takes the gradient of PyTorch's kernel with respect to v, which is rounded to the inputs' precision.

    >>> import torch
    >>> q, k, x = torch.randn(3, 1, 2, 4, 8).unbind()
    >>> torch.allclose(apply_transposed(q, k, x), weights(q, k).mT @ x, atol=1e-6)
    True
    """
    check_attention(q, k, mask=mask)
    x = x.expand(q.shape[0], q.shape[1], *x.shape[-2:])
    if x.shape[2] != q.shape[2]:
        raise ValueError(f"axis q (queries): x has {x.shape[2]}, expected {q.shape[2]} as in q")
    if impl == "fused":
        if isinstance(mask, Rule):
            raise ValueError(f"impl='fused' knows masks and biases alone, not {mask!r}; use impl='blocks'")
        return _value_gradient(q, k, x, mask, beta, causal)
    scale = resolve_beta(beta, q.shape[-1])
    if x.shape[-1] and tiled.takes(impl, q, k, mask, scale, x):
        return tiled.apply_transposed(q, k, x, mask, scale, causal, totals)
    dtype = torch.promote_types(q.dtype, torch.float32)
    total = torch.zeros(*x.shape[:2], x.shape[3], k.shape[2], dtype=dtype, device=q.device)
    for tile, p in weight_tiles(q, k, mask, scale, causal):
        total[tile[:2]] += x[tile].mT.to(dtype) @ p  # so that the map, the large one, is read as it lies
    return total.mT


def rollout(
    records: Iterable[SelfAttention] | Mapping[str, SelfAttention],
    start: int | Tensor,
    *,
    residual: float = 0.5,
    impl: Transposed = "auto",
) -> Float[Tensor, "b t"]:
    """Attention rollout (Abnar and Zuidema 2020): from where in the input the token `start` has drawn.

    records: the self-attentions from the first layer to the last, each with q, k, mask, beta and causal; or what
        `watch` has seen of an encoder, whole.
    start: a token, or weights over the tokens (b t) of the last layer.
    residual: the share of each layer that passes by the attention; the rest goes through the mean of its heads.

    One vector walks back through the layers, r ← residual·r + (1 − residual)·mean_h(P_hᵀ·r), so that neither a
    map nor a product of maps is ever built.

    >>> import torch, pellucid
    >>> from pellucid.layers import EncoderBlock
    >>> model = torch.nn.Sequential(*(EncoderBlock(16, 2, norm="pre") for _ in range(3))).eval()
    >>> with torch.no_grad(), pellucid.watch(model) as seen:
    ...     _ = model(torch.randn(1, 5, 16))
    >>> back = rollout(seen, 0)
    >>> back.shape, round(back.sum().item(), 4)
    (torch.Size([1, 5]), 1.0)
    """
    records = list(records.values() if isinstance(records, Mapping) else records)
    if not records:
        raise ValueError("rollout needs at least one record; got none")
    check_chain(records)
    if not 0.0 <= residual <= 1.0:
        raise ValueError(f"residual is {residual}; expected a share between 0 and 1")
    b, _, tokens, _ = records[-1].q.shape
    if isinstance(start, int):
        if not -tokens <= start < tokens:
            raise ValueError(f"start is {start}; expected a token in 0…{tokens - 1}")
        one = start % tokens
        start = torch.zeros(b, tokens, device=records[-1].q.device)  # made there: a copy would wait for the device
        start[:, one] = 1.0
    if start.shape != (b, tokens):
        raise ValueError(f"start has shape {list(start.shape)}, expected (b t) = [{b}, {tokens}]")
    r = start.to(torch.promote_types(records[-1].q.dtype, torch.float32))
    for depth, record in reversed(list(enumerate(records))):
        if not record.q.shape[2] == record.k.shape[2] == tokens:
            raise ValueError(
                f"record {depth}: {record.q.shape[2]} queries and {record.k.shape[2]} keys, expected {tokens} of both: "
                "rollout follows self-attention"
            )
        how = {"beta": record.beta, "causal": record.causal, "impl": impl, "totals": getattr(record, "totals", None)}
        back = apply_transposed(record.q, record.k, r[:, None, :, None], record.mask, **how)
        r = residual * r + (1 - residual) * back[..., 0].mean(1).to(r.dtype)
    return r


def _each_row(
    summarise: Callable[[Tensor, slice], Tensor],
    q: Tensor,
    k: Tensor,
    mask: Mask,
    beta: float | None,
    causal: bool,
) -> Float[Tensor, "b h q"]:
    check_attention(q, k, mask=mask)
    summary = _room(q)
    for tile, p in weight_tiles(q, k, mask, resolve_beta(beta, q.shape[-1]), causal):
        summary[tile] = summarise(p, tile[2])
    return summary


def _room(q: Tensor, *axes: int, dtype: torch.dtype | None = None) -> Tensor:
    """For every query's result, made before the blocks: results kept one by one between them would pin their memory."""
    dtype = dtype or torch.promote_types(q.dtype, torch.float32)
    return torch.empty(*q.shape[:3], *axes, dtype=dtype, device=q.device)


def check_chain(records: Sequence[SelfAttention]) -> None:
    """ValueError if a record that knows what it read doesn't go on with what the one before it wrote."""
    for before, record in zip([None, *records], records, strict=False):
        if (check := getattr(record, "check_follows", None)) is not None:
            check(before)


def _value_gradient(
    q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None, beta: float | None, causal: bool
) -> Float[Tensor, "b h k e"]:
    if beta is not None and math.isinf(beta):
        raise ValueError("impl='fused' can't do beta=inf; use impl='blocks'")
    if torch.is_inference_mode_enabled() or q.is_inference() or k.is_inference():
        raise ValueError("impl='fused' takes a gradient, which inference mode forbids; use impl='blocks'")
    q, k = q.detach(), share_heads(k.detach(), q.shape[1])
    v = torch.zeros(*k.shape[:3], x.shape[-1], dtype=q.dtype, device=q.device, requires_grad=True)
    with torch.enable_grad():
        mixed = attend(q, k, v, mask, beta=beta, causal=causal)
    return torch.autograd.grad(mixed, v, x.to(q.dtype))[0]


def _index(axis: str, selection: Selection, size: int, device: torch.device) -> RowIndex:
    if isinstance(selection, slice):
        return selection
    index = torch.as_tensor(selection, dtype=torch.long, device=device)
    if index.ndim != 1:
        raise ValueError(f"axis {axis}: the selection must be a list of integers; got shape {list(index.shape)}")
    if index.numel() and not (-size <= int(index.min()) and int(index.max()) < size):
        raise ValueError(f"axis {axis}: got {index.tolist()}, expected integers in 0…{size - 1}")
    return index % size
