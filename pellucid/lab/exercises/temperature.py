# %% [markdown]
# # β, the inverse temperature
#
# β says how sharply attention chooses. At β = 0 everybody counts the same; as β grows the best key takes all. Between
# them lies a choice, and the usual one depends on the width of the keys. Why?
#
# Let the d components of q and k be independent, with mean 0 and variance 1. Each product has mean 0 and variance 1,
# and a score adds up d of them.
#
# How many keys count? Weights p have the entropy H = −Σ p·ln p, and e^H is the effective number of keys: n for n equal
# weights, 1 for a weight of one.
#
# **Predict first.** Keys are made four times as wide. By what must β change so that the scores spread as before? And
# does hard attention (β = ∞) need queries and keys from different sequences?

# %%
import math

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check

# %% [markdown]
# Write three functions: the β that gives scores the variance 1, the effective number of keys, and attention at β = ∞.


# %%
def scale(width: int) -> float:
    """The β at which the scores of such queries and keys have variance one."""
    # solution
    return 1 / math.sqrt(width)
    # end of solution


def effective_keys(weights: Float[Tensor, "q k"]) -> Float[Tensor, " q"]:
    """e^entropy of each row; a weight of zero adds nothing."""
    # solution
    return torch.special.entr(weights).sum(-1).exp()
    # end of solution


def hard(q: Float[Tensor, "q d"], k: Float[Tensor, "k d"], v: Float[Tensor, "k e"]) -> Float[Tensor, "q e"]:
    """For each query the value of its best key; keys that are equally good share."""
    # solution
    scores = q @ k.T
    best = (scores == scores.amax(-1, keepdim=True)).to(v.dtype)
    return best / best.sum(-1, keepdim=True) @ v
    # end of solution


# %%
def test_variance() -> None:
    """At your β scores have variance one, for narrow keys and for wide ones."""
    torch.manual_seed(0)
    for width in (4, 64, 1024):
        q, k = torch.randn(2, 400, width, dtype=torch.float64)
        variance = (scale(width) * q @ k.mT).var().item()
        assert abs(variance - 1) < 0.1, f"at width {width} the variance is {variance:.3g}"


def test_equal_weights() -> None:
    """n equal weights count as n keys."""
    effective = effective_keys(torch.full((2, 9), 1 / 9, dtype=torch.float64))
    assert effective.shape == (2,), f"two rows of weights gave {list(effective.shape)}"
    assert (effective - 9).abs().max() < 1e-9, f"nine equal weights count as {effective[0].item():.4g} keys"


def test_one_key() -> None:
    """One weight of one counts as one key; the zeros beside it don't disturb."""
    effective = effective_keys(torch.eye(4, dtype=torch.float64))
    assert effective.isfinite().all(), f"the rows of the identity gave {effective.tolist()}"
    assert (effective - 1).abs().max() < 1e-9, f"one key counts as {effective[0].item():.4g}"


def test_entropy() -> None:
    """It is e to the entropy that pellucid measures, at several β."""
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, 1, 6, 16, dtype=torch.float64)
    for beta in (0.1, 0.25, 1.0):
        effective = effective_keys(ops.attention_weights(q, k, beta=beta)[0, 0])
        miss = (effective.log() - ops.entropy(q, k, beta=beta)[0, 0]).abs().max()
        assert miss < 1e-9, f"at β = {beta} the entropy is {miss:.2g} off"


def test_hard_self_and_cross() -> None:
    """Hard attention is what soft attention tends to, within one sequence and between two."""
    torch.manual_seed(2)
    x, y = torch.randn(5, 8, dtype=torch.float64), torch.randn(7, 8, dtype=torch.float64)
    for name, other in (("self", x), ("cross", y)):
        limit = ops.attend(x[None, None], other[None, None], other[None, None], beta=1e4)[0, 0]
        miss = (hard(x, other, other) - limit).abs().max()
        assert miss < 1e-9, f"hard {name}-attention is {miss:.2g} away from soft attention at β = 10,000"


def test_ties() -> None:
    """Two best keys share: neither is better than the other."""
    q, k = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, 0], [0, 1], [-1, 0]], dtype=torch.float64)
    value = hard(q, k, torch.tensor([[2.0], [4], [100]], dtype=torch.float64)).item()
    assert value == 3, f"keys that are equally good, with values 2 and 4, gave {value:g}"


# %%
if __name__ == "__main__":
    check(test_variance, test_equal_weights, test_one_key, test_entropy, test_hard_self_and_cross, test_ties)

# %% [markdown] answer
# **What came out.** The variance of d independent products is d, so their standard deviation is √d, and β = 1/√d. Four
# times the width halves β. Hard attention runs within one sequence as well as between two: "hard attention is
# cross-attention" mixes up two independent choices. `pellucid lab scaling` and `pellucid lab choices` measure both.
