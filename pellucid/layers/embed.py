"""How tokens begin: patches of an image, words of a vocabulary, learned tokens and positions."""

import math
from collections import OrderedDict
from typing import Any, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.layers.linear import Linear
from pellucid.layers.lite import FEATURES, SIDE, LiteKind, LiteStem
from pellucid.ops.aspect import Patches, canvas_grid
from pellucid.ops.linear import linear
from pellucid.ops.positions import Turns, interpolate, resampling, rotary_angles, sinusoidal, sinusoids, turns_of

Stem = Literal["linear", "conv", "deep"] | LiteKind


class PatchEmbed(nn.Module):
    """An image (b c y x) cut into patches, each made a token: (b t d), row by row.

    stem="linear" projects the pixels of each patch; stem="conv" halves the picture with 3×3 convolutions until one
    pixel is left of each patch (Xiao et al. 2021), so the patch sides must be powers of two; stem="deep" looks at each
    size with another 3×3 convolution before it is halved; stem="lite0", "lite1" or "lite2" are the convolutions of
    EfficientNet-Lite, for patches of 32×32 pixels.

    >>> PatchEmbed(4, 256, channels=3)(torch.randn(2, 3, 32, 48)).shape
    torch.Size([2, 96, 256])
    """

    def __init__(self, patch: int | tuple[int, int], width: int, *, channels: int = 3, stem: Stem = "linear"):
        super().__init__()
        self.patch = (patch, patch) if isinstance(patch, int) else patch
        if min(self.patch) < 1:
            raise ValueError(f"patch is {self.patch}; expected one pixel or more")
        self.channels, self.width, self.stem = channels, width, stem
        if stem == "linear":
            self.project = Linear(channels * math.prod(self.patch), width)
        elif stem in ("conv", "deep"):
            self.project = _halving_stem(self.patch, channels, width, deep=stem == "deep")
        elif stem in get_args(LiteKind):
            if self.patch != (SIDE, SIDE) or channels != 3:
                raise ValueError(
                    f"stem {stem!r} makes tokens of {SIDE}×{SIDE} pixels of colour; got patch {self.patch} and "
                    f"{channels} channels"
                )
            parts: dict[str, nn.Module] = {"body": LiteStem(stem), "narrow": nn.Conv2d(FEATURES, width, 1)}
            self.project = nn.Sequential(OrderedDict(parts))
        else:
            others = ", ".join(map(repr, get_args(LiteKind)))
            raise ValueError(f"stem is {stem!r}; expected 'linear', 'conv', 'deep', {others}")

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens that an image of this size becomes."""
        for axis, size, patch in (("y", height, self.patch[0]), ("x", width, self.patch[1])):
            if size < patch or size % patch:
                raise ValueError(f"image axis {axis}: {size} pixels, expected a multiple of the patch's {patch}")
        return height // self.patch[0], width // self.patch[1]

    @property
    def body(self) -> LiteStem:
        """Of the stems that are another network's convolutions, these."""
        return self.project.get_submodule("body")  # pyright: ignore[reportReturnType]

    def forward(self, image: Float[Tensor, "b c y x"], there: Tensor | None = None) -> Float[Tensor, "b t d"]:
        """there: (b y x) 1 where pictures are on their canvases and 0 beside them, which no convolution then sees."""
        if image.ndim != 4 or image.shape[1] != self.channels:
            raise ValueError(
                f"image axis c (channels): got shape {list(image.shape)}, expected (b c y x) with c = {self.channels}"
            )
        rows, columns = self.grid(*image.shape[-2:])
        if self.stem == "linear":
            image = rearrange(image, "b c (y p) (x q) -> b (y x) (c p q)", y=rows, x=columns)
            return self.project(image)
        if there is None:
            return rearrange(self.project(image), "b d y x -> b (y x) d")
        for layer in self.project:  # pyright: ignore[reportGeneralTypeIssues]
            image = layer(image)
            (high, wide), (height, width) = there.shape[-2:], image.shape[-2:]
            image = image * there[:, None, :: high // height, :: wide // width].to(image.dtype)
        return rearrange(image, "b d y x -> b (y x) d")


def _halving_stem(patch: tuple[int, int], channels: int, width: int, *, deep: bool) -> nn.Sequential:
    if any(side & (side - 1) for side in patch):
        raise ValueError(f"a convolution stem halves the picture; got patch {patch}, expected powers of two")
    steps = max(side.bit_length() - 1 for side in patch)
    down_y, down_x = (side.bit_length() - 1 for side in patch)
    layers: list[nn.Module] = []
    before = channels
    for step in range(steps):
        after = max(8, width // 2 ** (steps - step - deep))
        if deep:
            same = max(8, after // 2) if step == 0 else before
            layers += [nn.Conv2d(before, same, 3, padding=1), nn.GELU()]
            before = same
        stride = (2 if step < down_y else 1, 2 if step < down_x else 1)
        layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.GELU()]
        before = after
    return nn.Sequential(*layers, nn.Conv2d(before, width, 1))


class LearnedTokens(nn.Module):
    """Learned tokens put before the others: a class token (count=1), or registers (Darcet et al. 2024).

    >>> LearnedTokens(4, 256)(torch.randn(2, 64, 256)).shape
    torch.Size([2, 68, 256])
    """

    def __init__(self, count: int, width: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(count, width))

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b more d"]:
        return torch.cat([self.tokens.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)


class ClassToken(LearnedTokens):
    """The one token from which a classifier reads its answer.

    >>> ClassToken(8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 6, 8])
    """

    def __init__(self, width: int):
        super().__init__(1, width)


class RegisterTokens(LearnedTokens):
    """Scratch tokens that belong to no patch.

    >>> import torch
    >>> RegisterTokens(4, 8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 9, 8])
    """


class TokenEmbedding(nn.Module):
    """Words to vectors, times √width as in "Attention Is All You Need". `logits` reads the same table backwards.

    >>> import torch
    >>> words = TokenEmbedding(100, 8)
    >>> words(torch.tensor([[1, 2, 3]])).shape, words.logits(torch.zeros(1, 3, 8)).shape
    (torch.Size([1, 3, 8]), torch.Size([1, 3, 100]))
    """

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.scale = math.sqrt(width)
        self.table = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return self.table(tokens) * self.scale

    def logits(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        """How well each vector matches each word of the table."""
        return linear(x, self.table.weight)


class SinusoidalPositions(nn.Module):
    """The fixed sinusoids of "Attention Is All You Need", for sequences of any length.

    length: of the table from which positions that a tensor names are read; without one they are computed.

    >>> import torch
    >>> SinusoidalPositions(8)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    table: Tensor | None

    def __init__(self, width: int, length: int | None = None):
        super().__init__()
        self.width = width
        if length is None:
            table = None
        elif torch.get_default_device().type == "meta":  # a shape is all that is asked; PyTorch would import SymPy
            table = torch.empty(length, width, dtype=torch.float64)
        else:
            table = sinusoidal(length, width, dtype=torch.float64)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Float[Tensor, "b t d"], start: int | Tensor = 0) -> Float[Tensor, "b t d"]:
        """x with the sinusoids of positions start, start + 1, … added; or of the positions (t) that a tensor names."""
        if isinstance(start, Tensor):
            rows = sinusoids(start, self.width) if self.table is None else self.table.index_select(0, start)
            return x + rows.to(x.dtype)
        return x + sinusoidal(x.shape[1], self.width, start=start, device=x.device, dtype=x.dtype)


class LearnedPositions(nn.Module):
    """A learned vector for each position of a sequence, up to a length.

    >>> import torch
    >>> LearnedPositions(10, 8)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, length: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(length, width))

    def forward(self, x: Float[Tensor, "b t d"], start: int | Tensor = 0) -> Float[Tensor, "b t d"]:
        """x with the vectors of positions start, start + 1, … added; or of the positions (t) that a tensor names."""
        if isinstance(start, Tensor):
            return x + self.table[start]
        end, length = start + x.shape[1], self.table.shape[0]
        if end > length:
            raise ValueError(
                f"axis t (tokens): the sequence reaches {end}, expected at most {length} learned positions"
            )
        return x + self.table[start:end]


class LearnedGrid(nn.Module):
    """A learned vector for each place of a grid of patches; another grid gets an interpolated one.

    >>> import torch
    >>> LearnedGrid((4, 4), 8)((7, 7)).shape
    torch.Size([49, 8])
    """

    def __init__(self, grid: tuple[int, int], width: int, *, many: bool = False):
        """many: for pictures of different grids in one batch, by `each`."""
        super().__init__()
        self.table = nn.Parameter(torch.zeros(*grid, width))
        meta = torch.get_default_device().type == "meta"  # a shape is all that is asked
        for name, length, most in zip(("rows", "columns"), grid, canvas_grid(grid), strict=True):
            if many:
                weights = torch.empty(most + 1, most, length) if meta else resampling(length, most)
                self.register_buffer(name, weights, persistent=False)

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "t d"]:
        return interpolate(self.table, grid).flatten(0, 1)

    def each(self, patches: Patches) -> Float[Tensor, "b n d"]:
        """The vectors of the patches of each picture, in its own grid: what `forward` gives for it alone."""
        rows, columns = self.get_buffer("rows").to(self.table.dtype), self.get_buffer("columns").to(self.table.dtype)
        down = rows[patches.rows[:, None], patches.y]
        across = columns[patches.columns[:, None], patches.x]
        weights = (down[..., :, None] * across[..., None, :]).flatten(2)
        with torch.autocast(weights.device.type, enabled=False):
            return weights @ self.table.flatten(0, 1)


class RotaryGrid(nn.Module):
    """How attention is turned by the places of a grid of patches: cosines and sines, once for all layers.

    They are read from a table of the rows, or columns, that there may be: computed where they are used, compiled code
    would take a cosine for every number that it turns.

    >>> RotaryGrid((4, 4), 8, base=100.0)((2, 3)).cos.shape
    torch.Size([6, 4])
    """

    def __init__(self, grid: tuple[int, int], head_width: int, *, base: float, many: bool = False):
        """many: for pictures of different grids in one batch, by `each`."""
        super().__init__()
        self.head_width, self.base = head_width, base
        longest = max(canvas_grid(grid) if many else grid)
        meta = torch.get_default_device().type == "meta"  # a shape is all that is asked
        table = torch.empty(2, longest, head_width // 4) if meta else torch.stack(self._along(torch.arange(longest)))
        self.register_buffer("table", table, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "RotaryGrid":
        """Moved or made anew, its table is computed: no file holds it, and half precision would spoil it."""
        super()._apply(fn, recurse)
        table = self.get_buffer("table")
        if not table.is_meta:
            self.table = torch.stack(self._along(torch.arange(table.shape[1], device=table.device)))
        return self

    def _along(self, places: Int[Tensor, " n"]) -> Turns:
        return turns_of(rotary_angles(places, self.head_width // 2, base=self.base))

    def forward(self, grid: tuple[int, int]) -> Turns:
        """Of every patch, row by row."""
        rows, columns = grid
        table = self.get_buffer("table")
        if max(grid) > table.shape[1]:
            table = torch.stack(self._along(torch.arange(max(grid), device=table.device)))
        down = table[:, :rows, None].expand(-1, -1, columns, -1)
        across = table[:, None, :columns].expand(-1, rows, -1, -1)
        return Turns(*torch.cat([down, across], -1).flatten(1, 2))

    def each(self, patches: Patches) -> Turns:
        """Of the patches of each picture, (b n …): what `forward` gives for it alone."""
        table = self.get_buffer("table")
        return Turns(*torch.cat([table[:, patches.y], table[:, patches.x]], -1))
