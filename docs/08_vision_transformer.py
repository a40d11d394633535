# %% [markdown]
# # 8. The vision transformer
#
# Attention works on tokens; a picture is made of pixels. Cut it into patches, map each by one linear layer, add
# positions, and it is a sequence like any other. A picture of 32×32 in patches of 4×4 gives 64 tokens; a learned
# *class token* makes 65, and what becomes of it is read as the answer.

# %%
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import pellucid
from pellucid import layers, models, ops

torch.manual_seed(0)
small = models.ViT(models.ViTConfig(width=256, depth=2, heads=8)).eval()
with torch.no_grad(), pellucid.watch(small) as seen:
    logits = small(torch.randn(1, 3, 32, 32))
assert logits.shape == (1, 10)
assert seen["blocks.0.attention"].q.shape == (1, 8, 65, 32)  # 8 heads × 65 tokens × 32 features: 65 × 256

# %% [markdown]
# The linear layer on patches is a convolution whose stride is its size: cutting and multiplying is the same thing.

# %%
pixels = torch.randn(1, 3, 32, 32)
embed = layers.PatchEmbed(4, 256)
assert isinstance(embed.project, nn.Linear)
assert embed.project.weight.shape == (256, 4 * 4 * 3)
as_convolution = F.conv2d(pixels, embed.project.weight.view(256, 3, 4, 4), embed.project.bias, stride=4)
assert torch.allclose(embed(pixels), as_convolution.flatten(2).mT, atol=1e-5)

# %% [markdown]
# ## A trained one
#
# `vit-cifar10` comes with pellucid; 94.4 % of CIFAR-10's test images are recognised. Here is a picture that it has
# never seen, a ship that was drawn for this.

# %%
model = pellucid.load("vit-cifar10")
picture = Path(pellucid.__file__).parent / "cli" / "samples" / "ship.png"
rolled = model.explain(picture, "rollout")
print(f"it sees a {rolled.target}")
assert rolled.target == "ship"

# %% [markdown]
# ## What it attends to
#
# One layer's map says where a token looked in that layer, at what was a mixture already. Rollout follows the mixtures
# back to the patches: half of each token passes by on the residual, half comes through the mean of the heads.
#
#     A = ½·I + ½·mean_h(P_h),   R = A_last · … · A_1
#
# Nobody needs those products: one vector walks back through the layers, r ← ½·r + ½·mean_h(P_hᵀ·r).

# %%
with torch.no_grad(), pellucid.watch(small) as seen:
    small(pixels)
product = torch.eye(65)
for record in seen.values():
    product = (0.5 * torch.eye(65) + 0.5 * record.weights()[0].mean(0)) @ product
assert torch.allclose(product[0], ops.rollout(seen, 0)[0], atol=1e-6)

assert rolled.values.shape == (64,)  # this model has no class token: the mean of its 64 patches is read
assert abs(rolled.values.sum() - 1) < 1e-4

# %% [markdown]
# A map is a claim, too. Is the answer really drawn from there? Take away what a map calls important, and see how fast
# the answer falls, beside patches taken at random: `pellucid attend vit-cifar10 PICTURE --faithfulness` measures it.
#
# Exercise 10 asks you for rollout. Go on with `09_captioner.py`.
