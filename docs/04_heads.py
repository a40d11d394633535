# %% [markdown]
# # 4. Heads
#
# One head mixes tokens in one way: it has one map. Multi-head attention has several. The features of queries, keys and
# values are split among the heads, each head attends on its own, the results are joined and mapped by W_o.

# %%
import torch
from torch import nn

import pellucid
from pellucid import lab, layers

torch.manual_seed(0)
attention = layers.MultiHeadAttention(768, heads=12)
with pellucid.watch(attention) as seen:
    output = attention(torch.randn(1, 5, 768))
print(seen.table())

# %% [markdown]
# `watch` saw it without touching it: q, k, v and what came out. The map is made of them when you ask.

# %%
record = seen[""]
assert record.q.shape == (1, 12, 5, 64)
assert record.weights().shape == (1, 12, 5, 5)
assert torch.allclose(record.weights().sum(-1), torch.ones(1, 12, 5))
assert output.shape == (1, 5, 768)
print(f"softmax(β·qkᵀ)·v misses what the kernel gave by {record.check():.1e}")

# %% [markdown]
# ## Reading PyTorch's weights
#
# `nn.MultiheadAttention` packs W_Q, W_K and W_V below each other into `in_proj_weight`, 3D × D. You may read that
# `in_proj_weight.data[1]` is W_K. It is one row, the second of those that make the queries. W_K is rows D to 2D, and
# it is transposed: PyTorch multiplies by Wᵀ.

# %%
module = nn.MultiheadAttention(64, 4, batch_first=True).eval()
assert module.in_proj_weight.shape == (192, 64)
assert module.in_proj_weight.data[1].shape == (64,)
W_k = module.in_proj_weight[64:128].T

ours = layers.MultiHeadAttention.from_torch(module)
assert torch.equal(ours.W_k, W_k)
x = torch.randn(2, 7, 64)
with torch.no_grad():
    assert torch.allclose(ours(x), module(x, x, x, need_weights=False)[0], atol=1e-6)

packed = lab.experiment("packed")()
claims = {claim.id: claim for claim in packed.claims}
assert claims["packed.row"].verdict == "false"
assert claims["packed.thirds"].verdict == "true"
print(claims["packed.row"].counter_example)

# %% [markdown]
# ## What heads are good for
#
# One of four heads has a value path of a quarter of the width: its map of features has that rank at most. Together
# they reach the full rank, and they mix tokens in four independent ways. That is what the places of a convolution's
# kernel do. It is *not* what the groups of a grouped convolution do: every head reads all features of a token, a group
# only its own.

# %%
multihead = lab.experiment("multihead")()
claims |= {claim.id: claim for claim in multihead.claims}
for name, number in multihead.numbers.items():
    print(f"{name}: {number}")
assert claims["multihead.slices"].verdict == "false"
assert claims["multihead.rank"].verdict == claims["multihead.mixtures"].verdict == "true"
assert not [sentence for claim in claims.values() for sentence in claim.failures()]

# %% [markdown]
# Exercise 4 asks you for split, merge and the packed weights. Go on with `05_positions.py`.
