# %% [markdown]
# # 6. Layers set by hand
#
# What can one layer of self-attention *be*? Don't train it: set its weights, and see. Let each token carry a one-hot
# code of its position. If the query of token i is the code of the token that it should read, and the key of each token
# is its own code, the score is 1 for the wanted pair and 0 for every other, and a large β does the rest.

# %%
import torch
import torch.nn.functional as F

from pellucid import lab, ops

torch.manual_seed(0)
content, codes = torch.randn(6, 4), torch.eye(6)
sources = torch.tensor([3, 0, 1, 2, 5, 4])


def read(wanted: torch.Tensor, values: torch.Tensor, beta: float) -> torch.Tensor:
    """Token i reads the value of token wanted[i]."""
    return ops.attend(codes[wanted][None, None], codes[None, None], values[None, None], beta=beta)[0, 0]


own = torch.arange(6)
assert torch.allclose(read(own, content, 40.0), content)  # the identity layer
assert torch.allclose(read(sources, content, 40.0), content[sources])  # a permutation layer
linear = torch.randn(4, 4)
assert torch.allclose(read(own, content @ linear.T, 40.0), F.linear(content, linear), atol=1e-6)  # a pointwise layer

# %% [markdown]
# ## "Equal weights make it a running linear layer"
#
# They don't. Equal weights are β = 0, and then every position gets the same: the mean. A linear layer that runs over
# the positions (a 1×1 convolution) is attention whose map is the *identity*.

# %%
equal = read(own, content @ linear.T, 0.0)
assert torch.allclose(equal, equal[:1].expand_as(equal), atol=1e-6)
assert not torch.allclose(equal, F.linear(content, linear), atol=0.1)

built = lab.experiment("built")()
claims = {claim.id: claim for claim in built.claims}
assert [claims[f"built.{name}"].verdict for name in ("identity", "permutation", "pointwise")] == ["true"] * 3
assert claims["built.equal_weights"].verdict == "false"
print(claims["built.equal_weights"].counter_example)

# %% [markdown]
# ## "A band matrix with ones on its diagonals is attention acting as a convolution"
#
# Two things are wrong with it. The rows of an attention map sum to one, and those of a band of ones sum to two or
# three. And one head reads all its neighbours through *one* value map, while a convolution has a matrix of its own for
# each place of the kernel. So a kernel of three needs three heads: one looks left, one at itself, one right.

# %%
kernel = torch.randn(4, 4, 3)
ring = F.pad(content.T[None], (1, 1), mode="circular")
convolved = F.conv1d(ring, kernel)[0].T
heads = [read((own + shift) % 6, content @ kernel[..., i].T, 40.0) for i, shift in enumerate((-1, 0, 1))]
assert torch.allclose(sum(heads, torch.zeros(6, 4)), convolved, atol=1e-5)

band = torch.ones(6, 6).tril(1).triu(-1)
assert band.sum(-1).tolist() == [2, 3, 3, 3, 3, 2]

# %% [markdown]
# The experiment does it in two dimensions: nine heads with relative positions equal `nn.Conv2d` of 3×3, and the best
# that one head can do is far away.

# %%
convolution = lab.experiment("convolution")()
claims |= {claim.id: claim for claim in convolution.claims}
for name, number in convolution.numbers.items():
    print(f"{name}: {number:.2g}")
assert claims["convolution.heads"].verdict == "true"
assert claims["convolution.band"].verdict == claims["convolution.band_is_one_map"].verdict == "false"
assert claims["convolution.one_head"].verdict == "conditional"
assert not [sentence for claim in claims.values() for sentence in claim.failures()]

# %% [markdown]
# Exercise 7 asks you for these weights. Go on with `07_block.py`.
