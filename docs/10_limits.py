# %% [markdown]
# # 10. What it costs, and where it breaks
#
# Attention has been built, trained and made to speak. What is left is what it can't do, and what it takes. First
# hardness: does a finite β ever let one value through untouched? The error falls as e^(−β·gap), where the gap is how
# far the best score lies above the second. On paper it never ends; in float64 it does.

# %%
from pellucid import lab

preserve = lab.experiment("preserve")()
claims = {claim.id: claim for claim in preserve.claims}
assert claims["preserve.exponential"].verdict == "true"
assert claims["preserve.exact"].verdict == "conditional"
assert not [sentence for claim in preserve.claims for sentence in claim.failures()]
print(f"β = 8: {preserve.numbers['relative error at β = 8']:.1e}, 48: {preserve.numbers['relative error at β = 48']}")

# %% [markdown]
# ## Few bits
#
# bfloat16 keeps eight bits of a number and the range of float32; float16 keeps eleven and ends at 65,504. So float16 is
# the more precise one until the scores grow too large for it; then it has no answer at all. Normalised queries and
# keys (QK-norm) bound the scores.

# %%
precision = lab.experiment("precision")()
claims = {claim.id: claim for claim in precision.claims}
assert claims["precision.float16"].verdict == "conditional"
assert not [sentence for claim in precision.claims for sentence in claim.failures()]
print(claims["precision.float16"].counter_example)

# %% [markdown]
# ## Many tokens
#
# Every token looks at every other: N² scores. A kernel that keeps none of them needs memory for N; it still computes
# them all, so that its time grows as N².

# %%
cost = lab.experiment("cost")()
assert cost.numbers["reference: exponent of memory"] > 1.9
assert cost.numbers["fused: exponent of memory"] < 1.2
print(f"time of the fused kernel grows as N^{cost.numbers['fused: exponent of time']:.1f}")

# %% [markdown]
# ## Many layers
#
# Take the residuals and the norms out of a stack of twelve blocks, and the first hardly hears of the error. Put the
# norms back, and it does; what is lost now is the difference between the tokens.

# %%
depth = lab.experiment("depth")
stack = depth(depth.parameters(steps=1))  # gradients at the beginning; `pellucid lab depth` trains them all
heard = {
    kind: stack.numbers[f"{kind}: gradient norm of the first block over the last's"]
    for kind in ("neither", "no residual")
}
assert heard["neither"] < 0.01 < heard["no residual"]
assert stack.numbers["no residual: distance of tokens from their mean"] < 1e-3
print(f"the first block's gradient over the last's: {heard['neither']:.1e} without either")

# %% [markdown]
# ## Many heads
#
# Is every head needed? Take each away in turn, and many answers stay as they are. Take those heads away together, and
# they don't: each stood in for the others.

# %%
heads = lab.experiment("heads")
fewer = heads(heads.parameters(scenes=60, photographs=10))
redundant = fewer.numbers["captioner-scenes: redundant one by one"]
assert redundant >= 1
assert fewer.numbers["captioner-scenes: lost without any head"] > 0.5
print(f"{redundant} of {fewer.numbers['captioner-scenes: heads']} heads of captioner-scenes can go, one at a time")

# %% [markdown]
# ## Other sizes
#
# Positions are a grid, and a grid can be interpolated: a vision transformer takes pictures of any size. It doesn't read
# them as well as those of its own, for a patch then shows another part of the picture.

# %%
interpolation = lab.experiment("interpolation")
sizes = interpolation(interpolation.parameters(photographs=20, scenes=40))
(claim,) = sizes.claims
assert claim.verdict == "false"
assert claim.measured > 0.05
print(claim.counter_example)

# %% [markdown]
# `pellucid lab` runs every claim of these documents at its full size, and fails if one falls. Go on with
# `11_translator.py`.
