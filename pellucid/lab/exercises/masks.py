# %% [markdown]
# # Masks
#
# A mask says who may attend to whom. It is boolean here, True where attention is allowed. A decoder that writes from
# left to right uses the causal mask: a token sees itself and those before it.
#
# Textbooks add −10⁴ to the scores that are forbidden. That only weakens them: if every score is forbidden, or one is
# large enough, it leaks. Adding −∞ forbids for good, but a row in which everything is forbidden becomes 0/0. Such rows
# are real: padding has them. A query that may attend to nothing should get zeros, and a gradient that is a number.
#
# When sentences are written word by word, the queries are only the *last* tokens of a longer sequence of keys.
#
# **Predict first.** Under a causal mask over n tokens, how many pairs are open? One row is closed completely and −10⁴
# is added everywhere in it: what does that query get? Does a vision transformer ever need a mask?

# %%
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check


# %%
def causal(n_queries: int, n_keys: int) -> Bool[Tensor, "q k"]:
    """True where a query may look. The queries are the last n_queries of the n_keys tokens."""
    # solution
    place = torch.arange(n_keys - n_queries, n_keys)
    return torch.arange(n_keys) <= place[:, None]
    # end of solution


def masked_attention(
    q: Float[Tensor, "q d"], k: Float[Tensor, "k d"], v: Float[Tensor, "k e"], mask: Bool[Tensor, "q k"]
) -> Float[Tensor, "q e"]:
    """Attention at β = 1/√d over the open pairs; zeros, with finite gradients, for a query that sees nothing."""
    # solution
    empty = ~mask.any(-1, keepdim=True)
    scores = q @ k.T / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask & ~empty, -torch.inf).softmax(-1)
    return weights.masked_fill(empty, 0.0) @ v
    # end of solution


# %%
def tokens() -> list[Tensor]:
    """Four queries, six keys and values."""
    torch.manual_seed(0)
    return [torch.randn(n, 8, dtype=torch.float64) for n in (4, 6, 6)]


def test_square() -> None:
    """With as many queries as keys, the first token sees itself alone and the last one everybody."""
    seen = causal(5, 5).sum(1)
    assert (seen[0], seen[-1]) == (1, 5), f"they see {int(seen[0])} and {int(seen[-1])} tokens of 5"


def test_last_rows() -> None:
    """With more keys than queries, the last query still sees every key."""
    seen = causal(2, 6)
    assert seen.shape == (2, 6), f"two queries and six keys gave {list(seen.shape)}"
    assert bool(seen[-1].all()), f"the newest token sees {int(seen[-1].sum())} of 6 keys"
    assert torch.equal(seen, ops.masks.causal(2, 6)), "the pattern isn't the causal one"


def test_numbers() -> None:
    """It is what pellucid's attention gives under a random mask."""
    q, k, v = tokens()
    mask = torch.rand(4, 6) > 0.4
    mask[:, 0] = True
    truth = ops.attend(q[None, None], k[None, None], v[None, None], mask)[0, 0]
    miss = (masked_attention(q, k, v, mask) - truth).abs().max()
    assert miss < 1e-12, f"the output is {miss:.2g} off"


def test_no_leak() -> None:
    """What is forbidden doesn't count, however large its score is."""
    q, k, v = tokens()
    mask = ops.masks.causal(4, 6)
    changed = k.clone()
    changed[-1] = 1e6 * q[0]  # the first query would love it, and may not see it
    miss = (masked_attention(q, k, v, mask)[0] - masked_attention(q, changed, v, mask)[0]).abs().max()
    assert miss < 1e-12, f"a forbidden key moved the output by {miss:.2g}"


def test_empty_row() -> None:
    """A query that may attend to nothing gets zeros."""
    q, k, v = tokens()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    output = masked_attention(q, k, v, mask)[2]
    assert torch.equal(output, torch.zeros_like(output)), f"it got {output.tolist()[:3]} …"


def test_gradients() -> None:
    """Gradients are numbers, even where a row is empty."""
    q, k, v = (x.requires_grad_() for x in tokens())
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2] = False
    masked_attention(q, k, v, mask).square().sum().backward()
    for name, x in (("queries", q), ("keys", k), ("values", v)):
        assert x.grad is not None, f"no gradient reaches the {name}"
        assert bool(x.grad.isfinite().all()), f"the gradient of the {name} holds NaN"


# %%
if __name__ == "__main__":
    check(test_square, test_last_rows, test_numbers, test_no_leak, test_empty_row, test_gradients)

# %% [markdown] answer
# **What came out.** n(n + 1)/2 pairs are open. With −10⁴ everywhere in a row nothing is forbidden: the softmax only
# sees differences, so the query attends as if there were no mask. A vision transformer needs none while all pictures
# have one size; padded, packed or dropped patches need one. `pellucid lab masks` and `pellucid lab padding` measure
# it.
