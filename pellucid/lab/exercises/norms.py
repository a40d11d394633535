# %% [markdown]
# # Norms and the block
#
# A norm subtracts a mean and divides by a standard deviation: (x − mean) / √(variance + ε), with the variance Σ (x −
# mean)² / n. The question is what the mean is taken *over*. For tokens (b t d), layer norm takes one token and its d
# features. Batch norm takes one feature, over all tokens of all sequences.
#
# A block of a transformer has two branches, each with a norm before it and a residual around it:
#
#     x ← x + Attention(norm₁(x))
#     x ← x + FeedForward(norm₂(x))
#
# **Predict first.** You will read that layer norm normalises each feature across the batch. Take one sequence out of a
# batch: under which of the two norms do the others' outputs change? What is left of layer norm at d = 1?

# %%
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lab.exercises import check
from pellucid.layers import EncoderBlock

Layer = Callable[[Tensor], Tensor]


# %%
def layer_norm(x: Float[Tensor, "b t d"], eps: float = 1e-5) -> Float[Tensor, "b t d"]:
    """Layer norm without learned factors."""
    # solution
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    # end of solution


def batch_norm(x: Float[Tensor, "b t d"], eps: float = 1e-5) -> Float[Tensor, "b t d"]:
    """Batch norm, as in training, without learned factors."""
    # solution
    centred = x - x.mean((0, 1))
    return centred / (centred.square().mean((0, 1)) + eps).sqrt()
    # end of solution


def block(
    x: Float[Tensor, "b t d"], norm_1: Layer, attention: Layer, norm_2: Layer, feed_forward: Layer
) -> Float[Tensor, "b t d"]:
    """Two residual branches, each normalised before it."""
    # solution
    x = x + attention(norm_1(x))
    return x + feed_forward(norm_2(x))
    # end of solution


# %%
def tokens() -> Tensor:
    """Three sequences of four tokens, 6 wide, far from mean zero and variance one."""
    torch.manual_seed(0)
    return 5 + 0.3 * torch.randn(3, 4, 6, dtype=torch.float64) * torch.arange(1, 7)


def test_layer_norm() -> None:
    """It is PyTorch's layer norm, for small numbers too."""
    for size in (1.0, 1e-3):
        x = size * tokens()
        miss = (layer_norm(x) - nn.LayerNorm(6, elementwise_affine=False)(x)).abs().max()
        assert miss < 1e-12, f"for tokens of size {size:g} it is {miss:.2g} off"


def test_batch_norm() -> None:
    """It is PyTorch's batch norm in training, for small numbers too."""
    for size in (1.0, 1e-3):
        x = size * tokens()
        truth = nn.BatchNorm1d(6, affine=False, dtype=torch.float64).train()(x.flatten(0, 1)).view_as(x)
        miss = (batch_norm(x) - truth).abs().max()
        assert miss < 1e-12, f"for tokens of size {size:g} it is {miss:.2g} off"


def test_alone() -> None:
    """Under layer norm a token gets the same alone as in company; under batch norm it doesn't."""
    x = tokens()
    miss = (layer_norm(x)[1:2, 2:3] - layer_norm(x[1:2, 2:3])).abs().max()
    assert miss < 1e-12, f"layer norm of one token alone differs by {miss:.2g}"
    differs = (batch_norm(x)[:1] - batch_norm(x[:1])).abs().max()
    assert differs > 0.1, f"batch norm of one sequence alone differs by only {differs:.2g}"


@torch.no_grad()
def test_block() -> None:
    """It is pellucid's encoder block with norms before the branches."""
    torch.manual_seed(1)
    truth = EncoderBlock(6, heads=2, norm="pre").double()
    for parameter in truth.parameters():  # so that no norm is like the other
        parameter.add_(0.3 * torch.randn_like(parameter))
    x = tokens()
    output = block(x, truth.attention_norm, truth.attention, truth.feed_forward_norm, truth.feed_forward)
    miss = (output - truth(x)).abs().max()
    assert miss < 1e-12, f"the output is {miss:.2g} off"


def test_residuals() -> None:
    """Where the branches give nothing, the tokens pass unchanged."""
    x = tokens()
    output = block(x, layer_norm, torch.zeros_like, layer_norm, torch.zeros_like)
    assert torch.equal(output, x), f"they changed by {(output - x).abs().max():.2g}"


# %%
if __name__ == "__main__":
    check(test_layer_norm, test_batch_norm, test_alone, test_block, test_residuals)

# %% [markdown] answer
# **What came out.** Batch norm: there the others' outputs change, for the mean is taken over all of them. "Layer norm
# normalises each feature across the batch" describes batch norm. At d = 1 a token's only feature is its own mean, and
# layer norm gives zero. `pellucid lab norms` and `pellucid lab depth` measure the rest.
