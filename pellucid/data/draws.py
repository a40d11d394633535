"""Random numbers without state: every draw is a function of (seed, step, position, stream).

So a batch cut into slices, given to other processes or computed on another device gets the same numbers, and a CUDA
graph that reads `step` from a tensor draws anew at each replay.

The four numbers are hashed to 32 bits by lowbias32 (Wellons 2018), one of the least biased mixers of its length.
Threefry, which JAX uses, takes five times as many operations: Inductor needed a minute to compile one draw.

Seed, step, position and stream each count to 2^32. Axes: b position in the global batch, n streams.
"""

import math
from typing import overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

Count = int | Int[Tensor, ""]

WORD_MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def random_bits(
    seed: Count, step: Count, positions: Int[Tensor, " b"], stream: int | range
) -> Int[Tensor, " b"] | Int[Tensor, "n b"]:
    """32 random bits for each position, as integers 0…2^32 − 1; a range of streams puts an axis n in front.

    >>> random_bits(0, 7, torch.arange(4), stream=1)
    tensor([3733013417, 3209219046, 2083138182, 1902201259])
    >>> random_bits(0, 7, torch.arange(2, 4), stream=range(2))[1]
    tensor([2083138182, 1902201259])
    """
    for name, value in (("seed", seed), ("step", step)):
        if isinstance(value, int) and not 0 <= value <= WORD_MASK:
            raise ValueError(f"{name} is {value}; expected 0…2^32 − 1")
    if isinstance(stream, range):
        streams = torch.arange(stream.start, stream.stop, stream.step, device=positions.device)[:, None]
    else:
        streams = stream
    # Two keys, since under one alone two steps whose keys agree in the upper bits would share a batch of draws.
    outer = _mix(_mix(seed + GOLDEN) ^ step)
    inner = _mix(outer + GOLDEN)
    return _mix(_mix(positions.long() ^ outer) ^ inner ^ _mix(streams + 1))


def uniform(
    seed: Count, step: Count, positions: Int[Tensor, " b"], stream: int | range
) -> Float[Tensor, " b"] | Float[Tensor, "n b"]:
    """Numbers in [0, 1): multiples of 2^−24, so float32 holds them exactly on every device."""
    return (random_bits(seed, step, positions, stream) >> 8).float() * 2.0**-24


def integers(
    seed: Count, step: Count, positions: Int[Tensor, " b"], stream: int | range, high: int | Int[Tensor, "#b"]
) -> Int[Tensor, " b"] | Int[Tensor, "n b"]:
    """Whole numbers 0…high − 1, for high up to 2^31. Their probabilities differ by at most 2^−32.

    >>> integers(0, 7, torch.arange(8), stream=1, high=10)
    tensor([8, 7, 4, 4, 3, 6, 5, 1])
    """
    if isinstance(high, int) and not 1 <= high <= 2**31:
        raise ValueError(f"high is {high}; expected 1…2^31")
    return below(random_bits(seed, step, positions, stream), high)


def below(bits: Int[Tensor, "*n b"], high: int | Int[Tensor, "#b"]) -> Int[Tensor, "*n b"]:
    """Words scaled to 0…high − 1."""
    return (bits * high) >> 32


def beta(seed: Count, step: Count, positions: Int[Tensor, " b"], stream: int, alpha: float) -> Float[Tensor, " b"]:
    """Numbers from Beta(α, α), by inverting its distribution function, which is known to 1e-5.

    In z = log(x / (1 − x)) the density is cosh(z/2)^(−2α): no poles at the ends, as there are in x for α < 1. Its lower
    half is integrated anew at each call: a table kept for each α and device would be state, and 4096 points are few.

    >>> beta(0, 7, torch.arange(4), stream=1, alpha=0.2)
    tensor([0.9991, 0.9748, 0.4531, 0.3269])
    """
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha is {alpha}; expected a number above zero")
    reach = 40 / alpha + math.sqrt(160 / alpha)  # beyond it lies less than e^−40
    z = torch.linspace(-reach, 0, 4097, dtype=torch.float64, device=positions.device)
    density = (alpha * (z - 2 * z.exp().log1p())).exp()
    mass = (density[1:] + density[:-1]).cumsum(0)
    mass = torch.cat([torch.zeros_like(mass[:1]), 0.5 * mass / mass[-1]])
    u = uniform(seed, step, positions, stream).double()
    lower = torch.minimum(u, 1 - u)
    cell = torch.searchsorted(mass, lower).clamp(min=1)
    part = (lower - mass[cell - 1]) / (mass[cell] - mass[cell - 1])
    share = torch.lerp(z[cell - 1], z[cell], part).sigmoid()
    return torch.where(u < 0.5, share, 1 - share).float()


@overload
def _mix(x: int) -> int: ...
@overload
def _mix(x: Tensor) -> Tensor: ...
def _mix(x):
    """lowbias32, a permutation of the 32-bit words. The second factor is 0x846CA68B less 2^32: the same modulo 2^32,
    and no product leaves int64, whose overflow C++ doesn't define."""
    x = x & WORD_MASK
    x = x ^ x >> 16
    x = x * 0x7FEB352D & WORD_MASK
    x = x ^ x >> 15
    x = x * (0x846CA68B - 2**32) & WORD_MASK
    return x ^ x >> 16
