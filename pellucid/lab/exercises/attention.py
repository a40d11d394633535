# %% [markdown]
# # Attention from nothing
#
# A dictionary gives you the value of the one key that matches. Attention is a dictionary that is never sure: it
# compares the question with every key and gives you a mixture of all values, more of those whose keys match better.
#
# Each token asks with a query, is found by its key and tells its value. With tokens as rows, Q is (queries × d), K is
# (keys × d) and V is (keys × e); e need not be d. The score of a query and a key is β times their dot product, and the
# softmax turns each query's scores into weights that sum to one:
#
#     attention(Q, K, V) = softmax(β·QKᵀ)·V
#
# Some courses write tokens as columns: Q is (d × queries), K is (d × keys), V is (e × keys), and the output is (e ×
# queries). It is the same attention, and every matrix is the transpose of what it was. You will read that "QKᵀ of
# [768, 6] and [6, 768] is [768, 768]". Such a matrix exists, but it compares features with features. It isn't
# attention.
#
# **Predict first.** Six tokens, 768 wide. How large is the matrix of scores, with tokens as rows and with tokens as
# columns? In which of the two do the *columns* of weights sum to one?

# %%
import torch
from jaxtyping import Float
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check

# %% [markdown]
# Write attention with tokens as rows, then with tokens as columns. Don't transpose in the second and call the first:
# think about which product gives a score for each pair of tokens, and over what the softmax runs.


# %%
def attention(
    q: Float[Tensor, "q d"], k: Float[Tensor, "k d"], v: Float[Tensor, "k e"], beta: float
) -> Float[Tensor, "q e"]:
    """Each query's mixture of the values."""
    # solution
    weights = torch.softmax(beta * q @ k.T, dim=-1)
    return weights @ v
    # end of solution


def attention_in_columns(
    q: Float[Tensor, "d q"], k: Float[Tensor, "d k"], v: Float[Tensor, "e k"], beta: float
) -> Float[Tensor, "e q"]:
    """The same, every token a column."""
    # solution
    weights = torch.softmax(beta * k.T @ q, dim=0)
    return v @ weights
    # end of solution


# %% [markdown]
# The tests. They know what attention does, not how you wrote it.


# %%
def tokens() -> list[Tensor]:
    """Three queries and seven keys, 8 wide; values 5 wide."""
    torch.manual_seed(0)
    return [torch.randn(n, width, dtype=torch.float64) for n, width in ((3, 8), (7, 8), (7, 5))]


def test_shape() -> None:
    """There is one row for each query, as wide as a value."""
    q, k, v = tokens()
    shape = attention(q, k, v, 0.5).shape
    assert shape == (3, 5), f"3 queries and values 5 wide gave {list(shape)}"


def test_mean() -> None:
    """At β = 0 all keys count the same: every query gets the mean of the values."""
    q, k, v = tokens()
    miss = (attention(q, k, v, 0.0) - v.mean(0)).abs().max()
    assert miss < 1e-12, f"the output is {miss:.2g} away from the mean"


def test_ones() -> None:
    """Weights sum to one, so that equal values come out as they are."""
    q, k, _ = tokens()
    miss = (attention(q, k, torch.ones(7, 5, dtype=torch.float64), 2.0) - 1).abs().max()
    assert miss < 1e-12, f"a mixture of ones is {miss:.2g} away from one"


def test_one_query_alone() -> None:
    """A query gets the same whoever else asks."""
    q, k, v = tokens()
    miss = (attention(q, k, v, 0.5)[:1] - attention(q[:1], k, v, 0.5)).abs().max()
    assert miss < 1e-12, f"without the other queries the first one's output moves by {miss:.2g}"


def test_numbers() -> None:
    """It is what pellucid's attention gives."""
    q, k, v = tokens()
    for beta in (0.25, 1.0, 4.0):
        miss = (attention(q, k, v, beta) - ops.attend(q[None, None], k[None, None], v[None, None], beta=beta)).abs()
        assert miss.max() < 1e-12, f"at β = {beta} the output is {miss.max():.2g} off"


def test_columns() -> None:
    """Tokens as columns: the output is (e × queries), and the same numbers."""
    q, k, v = tokens()
    output = attention_in_columns(q.mT, k.mT, v.mT, 0.7)
    assert output.shape == (5, 3), f"values 5 wide and 3 queries gave {list(output.shape)}"
    miss = (output - ops.attend(q[None, None], k[None, None], v[None, None], beta=0.7)[0, 0].mT).abs().max()
    assert miss < 1e-12, f"the output is {miss:.2g} off"


# %%
if __name__ == "__main__":
    check(test_shape, test_mean, test_ones, test_one_query_alone, test_numbers, test_columns)

# %% [markdown] answer
# **What came out.** The scores are 6×6 both times: a number for each pair of tokens. With tokens as columns it is KᵀQ,
# keys × queries, so there the *columns* of weights sum to one, and the output is V·softmax(KᵀQ). QKᵀ would be 768×768:
# on the left of V it mixes features, and the tokens never meet. `pellucid lab shapes` measures it.
