# %% [markdown]
# # Rollout
#
# The map of one layer says where a token looked in that layer. But what it found there was a mixture already.
# Attention rollout (Abnar and Zuidema, 2020) follows the mixtures back to the input. Half of each token passes by the
# attention, on the residual; the other half comes through the mean of the heads:
#
#     one layer:   A = ½·I + ½·mean_h(P_h)
#     all layers:  R = A_last · … · A_2 · A_1
#
# Row i of R says from which inputs token i of the last layer has drawn. Often a single row is wanted, that of the
# class token. Then no matrices need to be multiplied: one vector walks back from the last layer to the first.
#
# **Predict first.** What do the rows of R sum to? Does the order of the factors matter? After many layers of equal
# weights, what is R?

# %%
import torch
from jaxtyping import Float
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check
from pellucid.models import ViT, ViTConfig
from pellucid.watching import watch


# %%
def rollout(maps: list[Float[Tensor, "h t t"]]) -> Float[Tensor, "t t"]:
    """R for these maps, from the first layer to the last."""
    # solution
    total = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for weights in maps:
        total = 0.5 * total + 0.5 * weights.mean(0) @ total
    return total
    # end of solution


def walk_back(maps: list[Float[Tensor, "h t t"]], start: int) -> Float[Tensor, " t"]:
    """Row `start` of R, by products of a matrix and a vector alone."""
    # solution
    row = torch.zeros(maps[0].shape[-1], dtype=maps[0].dtype)
    row[start] = 1
    for weights in reversed(maps):
        row = 0.5 * row + 0.5 * weights.mean(0).T @ row
    return row
    # end of solution


# %%
def random_maps(layers: int = 3, heads: int = 2, tokens: int = 5) -> list[Tensor]:
    """Maps whose rows sum to one."""
    torch.manual_seed(0)
    return list(torch.randn(layers, heads, tokens, tokens, dtype=torch.float64).mul(2).softmax(-1))


def test_rows() -> None:
    """Every row is a share of the input: nothing negative, in sum one."""
    shares = rollout(random_maps())
    assert shares.shape == (5, 5), f"five tokens gave {list(shares.shape)}"
    assert bool((shares >= 0).all()), "some shares are negative"
    assert (shares.sum(-1) - 1).abs().max() < 1e-12, f"the rows sum to {shares.sum(-1).tolist()}"


def test_nobody_looks_elsewhere() -> None:
    """If every token attends to itself alone, it draws from itself alone."""
    shares = rollout([torch.eye(4, dtype=torch.float64).expand(3, 4, 4)] * 6)
    assert torch.equal(shares, torch.eye(4, dtype=torch.float64)), "R isn't the identity"


def test_order_of_layers() -> None:
    """Token 0 reads token 1 in the last layer only, when token 1 has read token 2 already."""
    first, last = torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    first[1], last[0] = torch.tensor([0.0, 0, 1]), torch.tensor([0.0, 1, 0])
    shares = rollout([first[None], last[None]])[0].tolist()
    assert shares == [0.5, 0.25, 0.25], f"token 0 has drawn {shares}"


def test_a_watched_model() -> None:
    """It is pellucid's rollout, on the attention of a vision transformer that was watched."""
    torch.manual_seed(1)
    model = ViT(ViTConfig(image=(16, 16), width=32, depth=3, heads=4)).double().eval()
    with torch.no_grad(), watch(model) as seen:
        model(3 * torch.randn(1, 3, 16, 16, dtype=torch.float64))
    maps = [record.weights()[0] for record in seen.values()]
    truth = torch.stack([ops.rollout(seen, i)[0] for i in range(17)])
    miss = (rollout(maps) - truth).abs().max()
    assert miss < 1e-12, f"R is {miss:.2g} off"


def test_walking_back() -> None:
    """The vector that walks back is pellucid's too, for every start."""
    torch.manual_seed(2)
    model = ViT(ViTConfig(image=(16, 16), width=32, depth=3, heads=4)).double().eval()
    with torch.no_grad(), watch(model) as seen:
        model(3 * torch.randn(1, 3, 16, 16, dtype=torch.float64))
    maps = [record.weights()[0] for record in seen.values()]
    for start in (0, 9):
        row = walk_back(maps, start)
        assert row.shape == (17,), f"17 tokens gave {list(row.shape)}"
        miss = (row - ops.rollout(seen, start)[0]).abs().max()
        assert miss < 1e-12, f"from token {start} it is {miss:.2g} off"


# %%
if __name__ == "__main__":
    check(test_rows, test_nobody_looks_elsewhere, test_order_of_layers, test_a_watched_model, test_walking_back)

# %% [markdown] answer
# **What came out.** The rows sum to one, for each factor's do. The order matters: matrices don't commute, and token 0
# can only pass on what it has read before. Each layer of equal weights halves what is left of the identity, so R comes
# ever closer to 1/t everywhere. Walking back costs t² for each layer instead of t³, and pellucid does it without any
# map.
