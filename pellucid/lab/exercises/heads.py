# %% [markdown]
# # Heads
#
# One head mixes tokens in one way. Multi-head attention splits queries, keys and values into h parts of their
# features, attends with each part on its own, at β = 1/√(width of a head), joins the results and maps them once more:
#
#     tokens (b t d) → Q = X·W_q, K = X·W_k, V = X·W_v → per head (b h t d/h) → attention → joined (b t d) → ·W_o
#
# The features of head 0 come first, then those of head 1, and so on.
#
# PyTorch's `nn.MultiheadAttention` packs three matrices into one, `in_proj_weight` of 3D × D. A layer of PyTorch holds
# what it multiplies by *transposed*: it computes X·Aᵀ. You will read that `in_proj_weight.data[1]` is W_K.
#
# **Predict first.** D = 768 and 12 heads. What are the shapes of `in_proj_weight`, of `in_proj_weight[1]`, of the
# queries per head, and of the attention maps over 5 tokens?

# %%
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid import ops
from pellucid.lab.exercises import check
from pellucid.watching import watch


# %%
def split(x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t e"]:
    """The features of each head, for each token."""
    # solution
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
    # end of solution


def merge(x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b t d"]:
    """The heads side by side again."""
    # solution
    return x.transpose(1, 2).flatten(2)
    # end of solution


def unpack(in_proj_weight: Float[Tensor, "3d d"]) -> tuple[Tensor, Tensor, Tensor]:
    """W_q, W_k and W_v as they stand in Q = X·W_q, K = X·W_k, V = X·W_v."""
    # solution
    w_q, w_k, w_v = in_proj_weight.chunk(3)
    return w_q.T, w_k.T, w_v.T
    # end of solution


def multi_head(
    x: Float[Tensor, "b t d"], weights: tuple[Tensor, Tensor, Tensor], w_o: Float[Tensor, "d d"], heads: int
) -> Float[Tensor, "b t d"]:
    """The whole layer, without biases. `ops.attend(q, k, v, beta=…)` attends in every head (b h t e)."""
    # solution
    q, k, v = (split(x @ w, heads) for w in weights)
    return merge(ops.attend(q, k, v, beta=q.shape[-1] ** -0.5)) @ w_o
    # end of solution


# %%
def layer() -> nn.MultiheadAttention:
    """PyTorch's own, 24 wide, 4 heads."""
    torch.manual_seed(0)
    return nn.MultiheadAttention(24, 4, bias=False, batch_first=True, dtype=torch.float64).eval()


def tokens() -> Tensor:
    """Two sequences of five tokens."""
    torch.manual_seed(1)
    return torch.randn(2, 5, 24, dtype=torch.float64)


def test_split() -> None:
    """Head 0 holds the first features of every token, and the last head the last ones."""
    x = tokens()
    heads = split(x, 4)
    assert heads.shape == (2, 4, 5, 6), f"2 sequences of 5 tokens, 4 heads of 6, gave {list(heads.shape)}"
    assert torch.equal(heads[1, 0, 3], x[1, 3, :6]), "head 0 of token 3 isn't the token's first six features"
    assert torch.equal(heads[0, 3, 1], x[0, 1, -6:]), "head 3 of token 1 isn't the token's last six features"


def test_merge() -> None:
    """Splitting and merging leaves the tokens as they were."""
    x = tokens()
    merged = merge(split(x, 4))
    assert merged.shape == x.shape, f"tokens {list(x.shape)} came back as {list(merged.shape)}"
    assert torch.equal(merged, x), "the features came back in another order"


@torch.no_grad()
def test_unpack() -> None:
    """X·W gives the queries, keys and values that PyTorch's layer was seen to use."""
    module, x = layer(), tokens()
    with watch(module) as seen:
        module(x, x, x, need_weights=False)
    record = next(iter(seen.values()))
    for name, w, used in zip("qkv", unpack(module.in_proj_weight), (record.q, record.k, record.v), strict=True):
        assert w.shape == (24, 24), f"W_{name} has the shape {list(w.shape)}"
        miss = ((x @ w).flatten() - used.transpose(1, 2).flatten()).abs().max()
        assert miss < 1e-12, f"X·W_{name} is {miss:.2g} away from what the layer used"


@torch.no_grad()
def test_whole_layer() -> None:
    """The layer is PyTorch's, for one head and for several."""
    x = tokens()
    for heads in (1, 4, 12):
        torch.manual_seed(heads)
        module = nn.MultiheadAttention(24, heads, bias=False, batch_first=True, dtype=torch.float64).eval()
        truth = module(x, x, x, need_weights=False)[0]
        miss = (multi_head(x, unpack(module.in_proj_weight), module.out_proj.weight.mT, heads) - truth).abs().max()
        assert miss < 1e-12, f"with {heads} heads the output is {miss:.2g} off"


# %%
if __name__ == "__main__":
    check(test_split, test_merge, test_unpack, test_whole_layer)

# %% [markdown] answer
# **What came out.** `in_proj_weight` is 2304 × 768; `in_proj_weight[1]` is one row of 768 numbers, the second row of
# what makes the queries. W_K is rows 768 to 1536, transposed. The queries per head are (b, 12, 5, 64), the maps (b,
# 12, 5, 5). `pellucid lab packed` measures what the wrong ways of reading it give.
