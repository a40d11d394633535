# %% [markdown]
# # 5. Positions
#
# Attention compares every token with every other, and never asks where they stand. Predict: you shuffle the words of a
# sentence before a layer of self-attention. What happens to its output?

# %%
import torch

from pellucid import lab, layers, ops

torch.manual_seed(0)
attention = layers.MultiHeadAttention(32, heads=4).double()
x, order = torch.randn(1, 6, 32, dtype=torch.float64), torch.randperm(6)
with torch.no_grad():
    plain, shuffled = attention(x), attention(x[:, order])
assert torch.allclose(shuffled, plain[:, order])
assert torch.allclose(shuffled.mean(1), plain.mean(1))

# %% [markdown]
# It is shuffled in the same way: attention is *equivariant*. Averaged over the tokens it is *invariant*: "dog bites
# man" and "man bites dog" are the same to it. Positions take that away, whichever kind: sinusoidal, learned or rotary.
# So does a causal mask, even without positions, since it treats early tokens differently from late ones.

# %%
result = lab.experiment("order")()
for name, number in result.numbers.items():
    print(f"{name}: {number:.2g}")
assert {claim.id: claim.verdict for claim in result.claims} == {
    "order.equivariant": "true",
    "order.positions_break_it": "true",
    "order.invariant": "true",
    "order.blind": "conditional",
}

# %% [markdown]
# ## Sinusoids
#
# "Attention Is All You Need" adds to each token sines and cosines of its position at many frequencies:
#
#     PE(pos, 2i) = sin(pos·ωᵢ),   PE(pos, 2i + 1) = cos(pos·ωᵢ),   ωᵢ = 10000^(−2i/d)
#
# Each pair is the hand of a clock. A step of k turns each hand by k·ωᵢ, wherever it stands. So one matrix of 2×2
# rotations takes *every* position to the one k later, and a layer can learn to look "three to the left" with one
# linear map.

# %%
table = ops.positions.sinusoidal(500, 64, dtype=torch.float64)
for k in (1, 3, 100):
    turn = ops.offset_rotation(k, 64)
    assert torch.allclose(table[:-k] @ turn.T, table[k:], atol=1e-12)
    angle = torch.tensor(float(k), dtype=torch.float64)  # the first pair turns by one radian a step
    assert torch.allclose(turn[:2, :2], torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2))

# %% [markdown]
# The dot product of two encodings is Σ cos(ωᵢ·k): only the offset k counts. It is largest at 0. It does *not* fall
# steadily with the distance, though one reads that; and the longest wavelength isn't 10,000·2π but less.

# %%
sinusoids = lab.experiment("sinusoids")()
claims = {claim.id: claim for claim in sinusoids.claims}
assert claims["sinusoids.rotation"].verdict == claims["sinusoids.dot_product"].verdict == "true"
assert claims["sinusoids.monotone"].verdict == claims["sinusoids.longest"].verdict == "false"
print(claims["sinusoids.monotone"].counter_example)
assert not [sentence for claim in (*result.claims, *sinusoids.claims) for sentence in claim.failures()]

# %% [markdown]
# ## Positions of a picture
#
# A vision transformer cuts a picture into patches, and learns a vector for each place of the grid. For another size of
# picture the grid is interpolated. `pellucid lab interpolation` measures what that costs.

# %%
grid = layers.LearnedGrid((8, 8), 16)
assert ops.positions.interpolate(grid.table.detach(), (12, 12)).shape == (12, 12, 16)

# %% [markdown]
# Exercises 5 and 6 are about order and sinusoids. Go on with `06_by_hand.py`.
