# %% [markdown]
# # 7. The block, and training it
#
# A transformer is a stack of blocks. A block has two branches, each with a norm and a residual around it:
#
#     x ← x + Attention(norm(x))
#     x ← x + FeedForward(norm(x))
#
# Attention mixes tokens; the feed-forward layer (two linear layers and a bend between them) works on each token alone.

# %%
import torch
from torch import nn

from pellucid import lab, layers

torch.manual_seed(0)
block = layers.EncoderBlock(32, heads=4, norm="pre").eval()
x = torch.randn(2, 5, 32)
with torch.no_grad():
    by_hand = x + block.attention(block.attention_norm(x))
    by_hand = by_hand + block.feed_forward(block.feed_forward_norm(by_hand))
    assert torch.allclose(block(x), by_hand, atol=1e-6)

# %% [markdown]
# ## "Layer norm normalises each feature across the batch"
#
# That is batch norm. Layer norm looks at one token and takes mean and variance over its features. The rest of the
# batch has no say: a sequence gets the same alone as in company.

# %%
norm = nn.LayerNorm(32, elementwise_affine=False)
assert norm(x).mean(-1).abs().max() < 1e-6  # every token has mean zero over its features,
assert norm(x).mean((0, 1)).abs().max() > 0.1  # a feature doesn't, over the batch
assert torch.equal(norm(x)[:1], norm(x[:1]))

norms = {claim.id: claim for claim in lab.experiment("norms")().claims}
assert norms["norms.layer_norm"].verdict == "false"
assert norms["norms.one_token"].verdict == norms["norms.alone"].verdict == "true"
print(norms["norms.layer_norm"].counter_example)

# %% [markdown]
# ## What residuals do
#
# Attention averages. Stack it without residuals and all tokens become alike: here they are measured by their distance
# from their mean, relative to their size. With residuals they stay apart. (`pellucid lab depth` trains such stacks,
# too: without norms or without residuals twelve blocks learn nothing in the steps in which a proper stack learns to
# read digits.)

# %%
blocks = [layers.EncoderBlock(32, heads=4, norm="pre").eval() for _ in range(12)]
apart = {}
with torch.no_grad():
    for name in ("with residuals", "without"):
        tokens = torch.randn(1, 16, 32)
        for one in blocks:
            tokens = one(tokens) if name == "with residuals" else one.attention(one.attention_norm(tokens))
        apart[name] = ((tokens - tokens.mean(1, keepdim=True)).norm() / tokens.norm()).item()
print(apart)
assert apart["with residuals"] > 0.3
assert apart["without"] < 1e-3

# %% [markdown]
# ## Training and testing are different
#
# In training, dropout throws away some of the features at random, so the same picture gets another answer each time.
# In testing it must be off: `model.eval()`. On average dropout changes nothing for a linear map, and something for a
# block.

# %%
dropped = layers.EncoderBlock(32, heads=4, norm="pre", dropout=0.3)
with torch.no_grad():
    assert not torch.equal(dropped.train()(x), dropped(x))
    assert torch.equal(dropped.eval()(x), dropped(x))
dropout = {claim.id: claim for claim in lab.experiment("dropout")().claims}
assert dropout["testing.eval"].verdict == "true"
assert dropout["testing.dropout_mean"].verdict == "conditional"

# %% [markdown]
# ## A curve read backwards
#
# One course shows an accuracy that begins high and falls while the model learns. Its list of accuracies was reversed.
# A curve of accuracies begins at chance: if yours doesn't, look at the list before you look at the model.

# %%
curve = lab.experiment("reversed")()
assert abs(float(curve.numbers["untrained"]) - 0.1) < 0.1  # ten digits: one in ten by chance
assert float(curve.numbers["last"]) > 0.5
assert curve.claims[0].id == "testing.reversed"
assert curve.claims[0].verdict == "false"
everything = (*norms.values(), *dropout.values(), *curve.claims)
assert not [sentence for claim in everything for sentence in claim.failures()]

# %% [markdown]
# Exercise 8 asks you for the norms and the block. Go on with `08_vision_transformer.py`.
