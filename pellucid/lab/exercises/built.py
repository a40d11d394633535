# %% [markdown]
# # Layers built by hand
#
# What can one layer of attention do? Set its weights yourself and see. Each token here is its content, c features,
# then a one-hot code of its position, n features. One head attends at β = 50, which is nearly hard, and gives c
# features:
#
#     head(x) = softmax(50·(X·W_q)(X·W_k)ᵀ)·X·W_v
#
# Token i should read token `sources[i]`. If the sources are 0, 1, 2, … the layer copies; if they are a permutation, it
# permutes; and W_v may map what is read. Several heads, added up, can do what no single one can.
#
# You will read that equal weights make attention "a running linear layer", and that a band matrix with ones on its
# diagonals is "attention acting as a convolution".
#
# **Predict first.** With equal weights, what is the difference between the outputs at two positions? How many heads
# does a convolution with a kernel of 3 need, and what does each of them look at?

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check

Head = tuple[Tensor, Tensor, Tensor]  # W_q (c + n × any), W_k (c + n × the same), W_v (c + n × c)


def run(head: Head, content: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """The head on these tokens, each with the code of its position."""
    x = torch.cat([content, torch.eye(len(content), dtype=content.dtype)], dim=-1)
    q, k, v = (x @ w for w in head)
    return ops.attend(q[None, None], k[None, None], v[None, None], beta=50.0)[0, 0]


# %% [markdown]
# Write the weights of one head, in float64. Then use it to write a convolution over a ring of n tokens:
#
#     out[i] = Σ_j kernel[:, :, j]·x[(i + j − K//2) mod n]      kernel (c × c × K), K odd
#
# as a list of heads whose outputs are added.


# %%
def reading(sources: Int[Tensor, " n"], linear: Float[Tensor, "c c"]) -> Head:
    """W_q, W_k and W_v of a head that gives, at token i, linear·(content of token sources[i])."""
    # solution
    n, c = len(sources), len(linear)
    w_q, w_k = torch.zeros(2, c + n, n, dtype=torch.float64)
    w_v = torch.zeros(c + n, c, dtype=torch.float64)
    w_q[c:] = F.one_hot(sources, n)  # the query of i is the code of its source,
    w_k[c:] = torch.eye(n)  # the key of j is its own code
    w_v[:c] = linear.T
    return w_q, w_k, w_v
    # end of solution


def convolution(kernel: Float[Tensor, "c c K"], n: int) -> list[Head]:
    """The heads that, added up, convolve a ring of n tokens with this kernel."""
    # solution
    size = kernel.shape[-1]
    return [reading((torch.arange(n) + j - size // 2) % n, kernel[..., j]) for j in range(size)]
    # end of solution


# %%
def draw_tokens(c: int = 4, n: int = 7) -> tuple[Tensor, Tensor]:
    """The content of n tokens, and a linear map."""
    torch.manual_seed(0)
    return torch.randn(n, c, dtype=torch.float64), torch.randn(c, c, dtype=torch.float64)


def test_identity() -> None:
    """Each token reads itself: nothing changes."""
    content, _ = draw_tokens()
    miss = (run(reading(torch.arange(7), torch.eye(4, dtype=torch.float64)), content) - content).abs().max()
    assert miss < 1e-6, f"the tokens changed by {miss:.2g}"


def test_permutation() -> None:
    """Each token reads another one, also where the permutation isn't its own inverse."""
    content, _ = draw_tokens()
    order = torch.tensor([2, 0, 1, 6, 3, 4, 5])
    miss = (run(reading(order, torch.eye(4, dtype=torch.float64)), content) - content[order]).abs().max()
    assert miss < 1e-6, f"the tokens are {miss:.2g} away from x[sources]"


def test_pointwise() -> None:
    """Each token reads itself through the map: a linear layer on every token."""
    content, linear = draw_tokens()
    miss = (run(reading(torch.arange(7), linear), content) - F.linear(content, linear)).abs().max()
    assert miss < 1e-6, f"the output is {miss:.2g} away from the linear layer"


def test_content_does_not_matter() -> None:
    """Who reads whom is decided by positions alone, however large the content is."""
    content, linear = draw_tokens()
    miss = (run(reading(torch.arange(7), linear), 1e3 * content) - 1e3 * F.linear(content, linear)).abs().max()
    assert miss < 1e-6, f"with content a thousand times as large the output is {miss:.2g} off"


def test_convolution() -> None:
    """The heads together are PyTorch's convolution on a ring, for kernels of 1, 3 and 5."""
    content, _ = draw_tokens()
    for size in (1, 3, 5):
        torch.manual_seed(size)
        kernel = torch.randn(4, 4, size, dtype=torch.float64)
        ring = F.pad(content.mT[None], (size // 2, size // 2), mode="circular")
        truth = F.conv1d(ring, kernel)[0].mT
        output = torch.stack([run(head, content) for head in convolution(kernel, 7)]).sum(0)
        miss = (output - truth).abs().max()
        assert miss < 1e-6, f"with a kernel of {size} the output is {miss:.2g} off"


# %%
if __name__ == "__main__":
    check(test_identity, test_permutation, test_pointwise, test_content_does_not_matter, test_convolution)

# %% [markdown] answer
# **What came out.** With equal weights there is no difference: every position gets the same mean. The pointwise linear
# layer is attention whose map is the identity. A convolution with a kernel of K needs K heads, each looking one shift
# away with a map of its own. A band of ones can't be attention, whose rows sum to one, and one head would give all its
# neighbours the same map. `pellucid lab built` and `pellucid lab convolution` measure it.
