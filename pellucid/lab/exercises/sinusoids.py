# %% [markdown]
# # Sinusoidal positions
#
# "Attention Is All You Need" adds to each token a vector that tells its position: sines and cosines of many
# frequencies, side by side,
#
#     PE(pos, 2i) = sin(pos·ωᵢ),   PE(pos, 2i + 1) = cos(pos·ωᵢ),   ωᵢ = 10000^(−2i/d),   i = 0 … d/2 − 1
#
# Each pair (sin, cos) is the hand of a clock. To go k steps on is to turn each hand by the angle k·ωᵢ, wherever it
# stands. So there is a matrix M of 2×2 blocks with PE(pos + k) = M·PE(pos) at *every* position.
#
# **Predict first.** What is M for k = 0? For −k? What do you get for 3 steps and then 4 steps? Does the dot product of
# two encodings always fall as they move apart?

# %%
import torch
from jaxtyping import Float
from torch import Tensor

from pellucid import ops
from pellucid.lab.exercises import check

# %% [markdown]
# Work in float64 (`dtype=torch.float64`): the tests are strict.


# %%
def sinusoidal(n: int, width: int) -> Float[Tensor, "n width"]:
    """The encodings of positions 0 … n − 1."""
    # solution
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    # end of solution


def rotation(offset: int, width: int) -> Float[Tensor, "width width"]:
    """The matrix M with PE(pos + offset) = M·PE(pos). `torch.block_diag` puts blocks on a diagonal."""
    # solution
    angles = offset * 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    blocks = [torch.stack([torch.stack([a.cos(), a.sin()]), torch.stack([-a.sin(), a.cos()])]) for a in angles]
    return torch.block_diag(*blocks)
    # end of solution


# %%
def test_position_zero() -> None:
    """At position 0 every sine is 0 and every cosine is 1."""
    encoding = sinusoidal(3, 8)
    assert encoding.shape == (3, 8), f"3 positions, 8 wide, gave {list(encoding.shape)}"
    assert torch.equal(encoding[0].double(), torch.tensor([0.0, 1.0] * 4, dtype=torch.float64)), (
        f"it begins with {[round(x, 3) for x in encoding[0].tolist()]}"
    )


def test_first_pair() -> None:
    """The first hand turns by one radian each step."""
    encoding = sinusoidal(5, 6)
    angle = torch.atan2(encoding[4, 0], encoding[4, 1]) % (2 * torch.pi)
    assert abs(angle - 4) < 1e-9, f"after 4 steps it stands at {angle:.4f} radians"


def test_table() -> None:
    """It is the table of pellucid."""
    miss = (sinusoidal(50, 32) - ops.positions.sinusoidal(50, 32, dtype=torch.float64)).abs().max()
    assert miss < 1e-12, f"the table is {miss:.2g} off"


def test_every_position() -> None:
    """One matrix takes every position k steps on."""
    table = ops.positions.sinusoidal(60, 16, dtype=torch.float64)
    for k in (1, 7, 30):
        miss = (table[:-k] @ rotation(k, 16).double().mT - table[k:]).abs().max()
        assert miss < 1e-12, f"{k} steps on it is {miss:.2g} off"


def test_rotations() -> None:
    """Steps add up, going back undoes them, and nothing becomes longer."""
    a, b = rotation(3, 12).double(), rotation(4, 12).double()
    assert (a @ b - rotation(7, 12)).abs().max() < 1e-12, "3 steps and 4 steps aren't 7 steps"
    assert (a @ rotation(-3, 12).double() - torch.eye(12)).abs().max() < 1e-12, "3 steps and −3 steps aren't none"
    assert (a @ a.mT - torch.eye(12)).abs().max() < 1e-12, "lengths change"


# %%
if __name__ == "__main__":
    check(test_position_zero, test_first_pair, test_table, test_every_position, test_rotations)

# %% [markdown] answer
# **What came out.** For k = 0 it is the identity; for −k the inverse, which is the transpose; 3 steps and 4 steps are
# 7. The dot product of two encodings is Σ cos(ωᵢ·k): the offset alone decides it, and it is largest at 0, but it
# doesn't fall steadily. `pellucid lab sinusoids` shows where it rises.
