# %% [markdown]
# # 3. Masks
#
# A mask says who may attend to whom. Here it is boolean, True where attention is allowed. The causal mask lets a token
# see itself and those before it: a decoder that learns to say the next word must not read it first.

# %%
import torch

from pellucid import lab, ops

mask = ops.masks.causal(5)
print(mask.int())
assert mask.sum() == 5 * 6 / 2

# %% [markdown]
# Textbooks write the mask as a number that is added to the scores: 0 where attention is allowed, −10⁴ where it isn't.
# For scores of the usual size it does the same, since e^(−10000) is zero in every precision.

# %%
print(ops.masks.additive(mask))
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 5, 16).unbind()
boolean, added = ops.attend(q, k, v, mask), ops.attend(q, k, v, ops.masks.additive(mask))
assert torch.allclose(boolean, added)

# %% [markdown]
# The law of the causal mask: change the last token, and nothing before it changes. And its twin: the last one does.

# %%
changed = v.clone()
changed[..., -1, :] += 1
after = ops.attend(q, k, changed, mask)
assert torch.equal(after[..., :-1, :], boolean[..., :-1, :])
assert not torch.allclose(after[..., -1, :], boolean[..., -1, :])

# %% [markdown]
# Now let a query see nothing at all, as padding often has it. With −10⁴ everywhere nothing is forbidden: the softmax
# only knows differences. With −∞ the row is 0/0. A boolean mask can say what is meant: that query gets zeros.

# %%
nothing = torch.zeros(5, 5, dtype=torch.bool)
assert torch.allclose(ops.attend(q, k, v, ops.masks.additive(nothing)), ops.attend(q, k, v), atol=1e-3)
assert (q @ k.mT + ops.masks.additive(nothing, -torch.inf)).softmax(-1).isnan().all()
assert torch.equal(ops.attend(q, k, v, nothing), torch.zeros_like(v))

result = lab.experiment("masks")()
claims = {claim.id: claim for claim in result.claims}
assert claims["masks.minus_10000"].verdict == claims["masks.infinity"].verdict == "conditional"
assert claims["masks.boolean"].verdict == "true"
print(claims["masks.minus_10000"].counter_example)

# %% [markdown]
# ## "The vision transformer needs no masks"
#
# True while all pictures have one size. A batch of different sizes is padded, or several small pictures are packed
# into one sequence, and then a patch must not see what isn't in its picture.

# %%
padding = lab.experiment("padding")()
for name, number in padding.numbers.items():
    print(f"{name}: {number:.2g}")
claims |= {claim.id: claim for claim in padding.claims}
assert claims["masks.vit"].verdict == "conditional"
assert claims["masks.padding"].verdict == "true"

# %% [markdown]
# ## A mask that leaks
#
# Train a model to foretell tokens that nobody can foretell: each is drawn at random from eight. With the causal mask
# it is right one time in eight. Without it, it reads the answer and is right every time. That accuracy is a lie: as
# soon as the future isn't there to be read, one in eight is left. When a result looks too good, look at the mask.

# %%
leaking = lab.experiment("leaking")
found = leaking(leaking.parameters(steps=120))
for name, number in found.numbers.items():
    print(f"{name}: {number:.3f}")
assert float(found.numbers["no mask: by teacher forcing"]) > 0.99
assert abs(float(found.numbers["no mask: seeing the past alone"]) - 1 / 8) < 0.05
assert not [sentence for claim in (*claims.values(), *found.claims) for sentence in claim.failures()]

# %% [markdown]
# Exercise 3 asks you for masked attention with finite gradients. Go on with `04_heads.py`.
