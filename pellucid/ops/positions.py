"""Where a token stands, told to a model that can't see order: sinusoids, learned tables, rotations and biases.

Tables are computed in float64 and then rounded. Axes: t token, d width, y and x rows and columns of a grid.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pellucid.ops.masks import Device


def sinusoidal(
    n: int,
    width: int,
    *,
    start: int = 0,
    base: float = 10_000.0,
    device: Device = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "t d"]:
    """PE(pos, 2i) = sin(pos·ωᵢ), PE(pos, 2i+1) = cos(pos·ωᵢ), with ωᵢ = base^(−2i/d), from position `start` on.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    return sinusoids(torch.arange(start, start + n, device=device), width, base=base).to(dtype)


def sinusoids(positions: Tensor, width: int, *, base: float = 10_000.0) -> Float[Tensor, "t d"]:
    """The rows of `sinusoidal` at these positions (t), in float64.

    >>> sinusoids(torch.tensor([0.0]), 4)
    tensor([[0., 1., 0., 1.]], dtype=torch.float64)
    """
    return _waves(positions.double(), width, base)


def sinusoidal_2d(
    height: int,
    width_tokens: int,
    width: int,
    *,
    base: float = 10_000.0,
    device: Device = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "y x d"]:
    """The first half of the features tells the row, the second half the column.

    >>> sinusoidal_2d(2, 3, 8).shape
    torch.Size([2, 3, 8])
    """
    _multiple("width", width, 4)
    y = torch.arange(height, dtype=torch.float64, device=device)
    x = torch.arange(width_tokens, dtype=torch.float64, device=device)
    rows = _waves(y, width // 2, base)[:, None].expand(-1, width_tokens, -1)
    columns = _waves(x, width // 2, base)[None].expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).to(dtype)


def offset_rotation(
    k: float, width: int, *, base: float = 10_000.0, device: Device = None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "d d"]:
    """The matrix M with PE(pos + k) = M·PE(pos) at every position: one 2×2 rotation for each frequency.

    >>> table = sinusoidal(10, 8, dtype=torch.float64)
    >>> torch.allclose(table[7], offset_rotation(4, 8) @ table[3], atol=1e-12)
    True
    """
    angle = k * _frequencies(width, base, device)
    pairs = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], dim=-1).unflatten(-1, (2, 2))
    return torch.block_diag(*pairs).to(dtype)


def interpolate(table: Float[Tensor, "y x d"], size: tuple[int, int]) -> Float[Tensor, "y2 x2 d"]:
    """A learned grid of positions, resampled (bicubic, antialiased when shrinking) to another grid.

    >>> interpolate(torch.ones(4, 4, 8), (7, 7)).shape
    torch.Size([7, 7, 8])
    """
    if tuple(table.shape[:2]) == tuple(size):
        return table
    if min(size) < 1:
        raise ValueError(f"size is {tuple(size)}; expected a grid of at least 1×1 tokens")
    if size[1] == 1 < size[0]:  # PyTorch 2.13 repeats the first row of what is one column wide
        return interpolate(table.transpose(0, 1), (1, size[0])).transpose(0, 1)
    image = table.permute(2, 0, 1)[None]
    image = image if table.dtype == torch.float64 else image.float()
    resized = F.interpolate(image, size=size, mode="bicubic", align_corners=False, antialias=True)
    return resized[0].permute(1, 2, 0).to(table.dtype)


def resampling(length: int, most: int) -> Float[Tensor, "sizes most length"]:
    """How `interpolate` weighs the rows of a table of this length: [n, i] are the weights of row i of n, up to `most`.

    >>> weights = resampling(2, 3)
    >>> weights[2, :2].tolist(), weights[3, 1].tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5])
    """
    weights = torch.zeros(most + 1, most, length, dtype=torch.float64)
    alone = torch.eye(length, dtype=torch.float64)[:, None]  # a feature for each row
    for n in range(1, most + 1):
        weights[n, :n] = interpolate(alone, (n, 1))[:, 0]
    return weights


def rotary_angles(positions: Tensor, width: int, *, base: float = 10_000.0) -> Float[Tensor, "*b t half"]:
    """How far to turn each pair of features of a head `width` wide, for tokens at `positions`.

    positions: (t) for a sequence; (t axes) for a grid, whose axes share the features equally; (b t axes) if the tokens
        of each sequence stand elsewhere.

    >>> rotary_angles(torch.arange(3), 4)
    tensor([[0.0000, 0.0000],
            [1.0000, 0.0100],
            [2.0000, 0.0200]])
    """
    if positions.ndim not in (1, 2, 3):
        raise ValueError(f"positions must have axes (t), (t axes) or (b t axes); got shape {list(positions.shape)}")
    positions = positions[:, None] if positions.ndim == 1 else positions
    axes = positions.shape[-1]
    _multiple("width", width, 2 * axes)
    angles = positions.double()[..., None] * _frequencies(width // axes, base, positions.device)
    return angles.flatten(-2).float()


class Turns(NamedTuple):
    """Cosines and sines of angles (…t half), which many layers turn by.

    >>> turns_of(torch.zeros(3, 2)).cos.shape
    torch.Size([3, 2])
    """

    cos: Tensor
    sin: Tensor


def turns_of(angles: Tensor) -> Turns:
    """What `turn` needs to know of angles.

    >>> turns_of(torch.zeros(1, 1))
    Turns(cos=tensor([[1.]]), sin=tensor([[0.]]))
    """
    return Turns(angles.cos(), angles.sin())


def rotate(x: Float[Tensor, "b h t d"], angles: Tensor) -> Float[Tensor, "b h t d"]:
    """Turn each pair of features (2i, 2i+1) by its angle; ⟨rotated q, rotated k⟩ then depends on the offset alone.

    >>> x = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    >>> rotate(x, torch.tensor([[torch.pi]])).round().abs().flatten().tolist()  # half a turn
    [0.0, 1.0]
    """
    return turn(x, turns_of(angles))


def turn(x: Float[Tensor, "b h t d"], turns: Turns) -> Float[Tensor, "b h t d"]:
    """`rotate`, where cosines and sines are known.

    >>> x = torch.ones(1, 1, 1, 2)
    >>> torch.equal(turn(x, turns_of(torch.ones(1, 1))), rotate(x, torch.ones(1, 1)))
    True
    """
    tokens, pairs = turns.cos.shape[-2:]
    if x.shape[-2:] != (tokens, 2 * pairs):
        raise ValueError(f"angles are for {tokens} tokens × {2 * pairs} features; got axes t, d = {list(x.shape[-2:])}")
    cos, sin = ((each[:, None] if each.ndim == 3 else each).to(x.dtype) for each in turns)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def grid_positions(height: int, width_tokens: int, *, device: Device = None) -> Float[Tensor, "t 2"]:
    """The (y, x) of every token of a grid, row by row.

    >>> grid_positions(2, 2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    y = torch.arange(height, dtype=torch.float32, device=device)
    x = torch.arange(width_tokens, dtype=torch.float32, device=device)
    return torch.cartesian_prod(y, x).view(-1, 2)


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of Press et al. 2022: 2^(−8/h), 2^(−16/h), …; between powers of two, every other one of the next.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-8 * (i + 0.5) / power) for i in range(heads - power)]


def alibi(heads: int, n_queries: int, n_keys: int | None = None, *, device: Device = None) -> Float[Tensor, "h q k"]:
    """A bias −slope·distance for each head, to be passed to attend as its mask. The queries are the last rows.

    >>> alibi(2, 3)[0]
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0625, -0.0000, -0.0625],
            [-0.1250, -0.0625, -0.0000]])
    """
    if heads < 1:
        raise ValueError(f"heads is {heads}; expected one or more")
    n_keys = n_queries if n_keys is None else n_keys
    query = torch.arange(n_queries, device=device)[:, None] + (n_keys - n_queries)
    distance = (torch.arange(n_keys, device=device) - query).abs()
    return -torch.tensor(alibi_slopes(heads), device=device)[:, None, None] * distance


def _frequencies(width: int, base: float, device: Device) -> Float[Tensor, " half"]:
    _multiple("width", width, 2)
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def _waves(positions: Float[Tensor, " t"], width: int, base: float) -> Float[Tensor, "t d"]:
    angle = positions[:, None] * _frequencies(width, base, positions.device)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


def _multiple(name: str, value: int, of: int) -> None:
    if value < of or value % of:
        raise ValueError(f"{name} is {value}; expected a multiple of {of}")
