# %% [markdown]
# # Order
#
# Attention compares every token with every other; nowhere does it ask where they stand. So a layer of self-attention
# without positions is *equivariant*: permute the tokens, and the output is permuted in the same way.
#
#     layer(x[order]) = layer(x)[order]
#
# If the tokens are then averaged, nothing is left of the order: the mean is *invariant*.
#
# **Predict first.** Which of these are equivariant: a linear layer on each token, a running sum, attention, attention
# with positions added, attention under a causal mask without positions?

# %%
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check
from pellucid.layers import MultiHeadAttention

# %% [markdown]
# Write two measures. Each gives one number, the largest absolute difference, and zero if the layer has the property.


# %%
def equivariance_error(layer: Callable[[Tensor], Tensor], x: Float[Tensor, "b t d"], order: Int[Tensor, " t"]) -> float:
    """How far the layer is from being equivariant, for these tokens and this order."""
    # solution
    return (layer(x[:, order]) - layer(x)[:, order]).abs().max().item()
    # end of solution


def invariance_error(layer: Callable[[Tensor], Tensor], x: Float[Tensor, "b t d"], order: Int[Tensor, " t"]) -> float:
    """How far the *mean* of the layer's tokens is from being the same in every order."""
    # solution
    return (layer(x[:, order]).mean(1) - layer(x).mean(1)).abs().max().item()
    # end of solution


# %%
def attention() -> MultiHeadAttention:
    """Four heads, 16 wide."""
    torch.manual_seed(0)
    return MultiHeadAttention(16, 4).double()


def tokens() -> tuple[Tensor, Tensor]:
    """Six tokens, and an order that isn't its own inverse."""
    torch.manual_seed(1)
    return torch.randn(2, 6, 16, dtype=torch.float64), torch.tensor([1, 2, 0, 4, 5, 3])


def test_pointwise() -> None:
    """A map of each token on its own is equivariant, even one that isn't linear."""
    error = equivariance_error(torch.tanh, *tokens())
    assert error == 0, f"tanh got an error of {error:.2g}"


def test_running_sum() -> None:
    """A running sum isn't: for 1, 2, 3 in the order 2, 3, 1 it is off by 5."""
    x, order = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([1, 2, 0])
    error = equivariance_error(lambda x: x.cumsum(1), x, order)
    assert error == 5, f"it got an error of {error:g}"


@torch.no_grad()
def test_attention() -> None:
    """Attention without positions is equivariant."""
    error = equivariance_error(attention(), *tokens())
    assert error < 1e-12, f"it got an error of {error:.2g}"


@torch.no_grad()
def test_positions() -> None:
    """Positions take it away, and so does a causal mask."""
    layer, (x, order) = attention(), tokens()
    table = ops.positions.sinusoidal(6, 16, dtype=torch.float64)
    for name, changed in (("positions", lambda x: layer(x + table)), ("a mask", lambda x: layer(x, causal=True))):
        error = equivariance_error(changed, x, order)
        assert error > 0.01, f"with {name} the error is still {error:.2g}"


@torch.no_grad()
def test_invariance() -> None:
    """The mean of its tokens doesn't know the order; under a causal mask it does."""
    layer, (x, order) = attention(), tokens()
    error = invariance_error(layer, x, order)
    assert error < 1e-12, f"attention got an error of {error:.2g}"
    error = invariance_error(lambda x: layer(x, causal=True), x, order)
    assert error > 1e-3, f"causal attention got an error of {error:.2g}"


def test_a_sum_is_not_a_measure() -> None:
    """Differences of both signs don't cancel."""
    x, order = torch.tensor([[[1.0, -1.0], [3.0, -3.0]]]), torch.tensor([1, 0])
    error = invariance_error(lambda x: x.cumsum(1), x, order)
    assert error == 1, f"features that move by 1 and by −1 got an error of {error:g}"


# %%
if __name__ == "__main__":
    check(
        test_pointwise, test_running_sum, test_attention, test_positions, test_invariance, test_a_sum_is_not_a_measure
    )

# %% [markdown] answer
# **What came out.** The linear layer and plain attention are equivariant. The running sum and positions aren't. The
# last one surprises: under a causal mask each token sees another set, so causal attention isn't blind to order even
# without positions. `pellucid lab order` measures it.
