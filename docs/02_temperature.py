# %% [markdown]
# # 2. β, the inverse temperature
#
# In softmax(β·QKᵀ)·V, β says how sharply attention chooses. Predict before you run: what is the output at β = 0, and
# what does it become as β grows without end?

# %%
import math

import torch

from pellucid import lab, ops

torch.manual_seed(0)
q, k = torch.randn(2, 1, 1, 64, 64, dtype=torch.float64)
v = torch.randn(1, 1, 64, 8, dtype=torch.float64)
for beta in (0.0, 1 / 8, 1.0, math.inf):
    weights = ops.attention_weights(q, k, beta=beta)
    effective = torch.special.entr(weights).sum(-1).exp().mean()
    print(f"β = {beta:<6g} the largest weight is {weights.amax(-1).mean():.3f}, {effective:.1f} keys count")

# %% [markdown]
# At β = 0 all weights are equal, and the output is the plain mean of the values. At β = ∞ the best key takes all, and
# its value comes through untouched. Between them the number of keys that count, e^entropy, falls and never rises.

# %%
mean = ops.attend(q, k, v, beta=0.0)
assert torch.allclose(mean, v.mean(2, keepdim=True).expand_as(mean))
best = (q @ k.mT).argmax(-1)[0, 0]
assert torch.equal(ops.attend(q, k, v, beta=math.inf)[0, 0], v[0, 0, best])

result = lab.experiment("temperature")()
assert [claim.verdict for claim in result.claims] == ["true"] * 4
assert float(result.numbers["effective keys at 0"]) > 63.9
assert 30 < float(result.numbers["effective keys at 1/√d"]) < 50

# %% [markdown]
# ## Why 1/√d
#
# If the components of q and k are independent, with mean 0 and variance 1, a score adds up d products of variance 1:
# its variance is d. So wide keys make large scores, large scores make a softmax that is nearly hard, and through a
# hard choice no gradient passes: ∂pᵢ/∂sⱼ = pᵢ·(δᵢⱼ − pⱼ) is zero when p is 0 or 1. Dividing by √d gives variance 1 at
# any width.

# %%
scaling = lab.experiment("scaling")()
claims = {claim.id: claim for claim in scaling.claims}
assert abs(float(scaling.numbers["exponent of the variance over d, β = 1"]) - 1) < 0.05
assert claims["scaling.saturation"].verdict == "true"

# %% [markdown]
# One course divides by √d_model instead. With one head that is the same; with h heads β is √h times smaller than
# 1/√d_k, and attention is more diffuse. It isn't wrong: it is another β, and the model can learn to make up for it.

# %%
assert claims["scaling.d_model"].verdict == "conditional"
print(claims["scaling.d_model"].counter_example)

# %% [markdown]
# ## Two choices, not one
#
# "Hard attention is cross-attention", says one slide, and another says it of soft attention. How sharply one chooses
# (soft or hard) and where the keys come from (self or cross) are independent. All four exist.

# %%
x, y = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 7, 8)
for origin, other in (("self", x), ("cross", y)):
    for sharpness, beta in (("soft", None), ("hard", math.inf)):
        largest = ops.attention_weights(x, other, beta=beta).amax(-1).mean()
        print(f"{sharpness} {origin}-attention: the largest weight is {largest:.2f}")
        assert (largest == 1) == (sharpness == "hard")
choices = {claim.id: claim for claim in lab.experiment("choices")().claims}
assert choices["choices.hard"].verdict == choices["choices.soft"].verdict == "false"
assert choices["choices.independent"].verdict == "true"

# %% [markdown]
# ## A key that moves
#
# Move one key a little, and the output moves a little: the first-order change is β·p·(v − output)·(q·δk), and what it
# misses shrinks with the square of the step. Make a key longer, α > 1, and its score is multiplied by α: it draws more
# attention if the score is positive, and less if it is negative.

# %%
moved = {claim.id: claim for claim in lab.experiment("perturbation")().claims}
assert moved["perturbation.jacobian"].verdict == "true"
assert moved["perturbation.second_order"].verdict == "true"
assert moved["perturbation.elongated"].verdict == "conditional"
print(moved["perturbation.elongated"].counter_example)
everything = (*result.claims, *scaling.claims, *choices.values(), *moved.values())
assert not [sentence for claim in everything for sentence in claim.failures()]

# %% [markdown]
# Exercise 2 asks you for β, for the number of keys that count, and for hard attention. Go on with `03_masks.py`.
