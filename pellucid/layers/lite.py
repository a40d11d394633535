"""The convolutions of EfficientNet-Lite (Tan & Le 2019), which make one token of 32×32 pixels.

They are a stem for those who bring its weights: trained on a million photographs, it knows what the blocks on top of it
would have to learn. Batch norms are folded into the convolutions before them, so that a picture's tokens hang on the
picture alone, in training too.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.ops.checks import stands_for_others

LiteKind = Literal["lite0", "lite1", "lite2"]
SIDE = 32  # pixels of a patch
FEATURES = 1280


@dataclass(frozen=True)
class Stage:
    """Blocks alike, but that the first may halve the picture."""

    kernel: int
    stride: int
    expansion: int
    channels: int
    blocks: int


LITE0 = (
    Stage(3, 1, 1, 16, 1), Stage(3, 2, 6, 24, 2), Stage(5, 2, 6, 40, 2), Stage(3, 2, 6, 80, 3), Stage(5, 1, 6, 112, 3),
    Stage(5, 2, 6, 192, 4), Stage(3, 1, 6, 320, 1),
)  # fmt: skip
SCALES: dict[LiteKind, tuple[float, float]] = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}


def stages(kind: LiteKind) -> tuple[Stage, ...]:
    """What a network of this kind consists of: wider and deeper than lite0, but for its first and last blocks.

    >>> [stage.channels for stage in stages("lite2")], sum(stage.blocks for stage in stages("lite2"))
    ([16, 24, 48, 88, 120, 208, 352], 21)
    """
    if kind not in get_args(LiteKind):
        raise ValueError(f"kind is {kind!r}; expected {', '.join(map(repr, get_args(LiteKind)))}")
    wider, deeper = SCALES[kind]
    last = len(LITE0) - 1
    return tuple(
        Stage(
            stage.kernel, stage.stride, stage.expansion, _round(stage.channels * wider),
            stage.blocks if i in (0, last) else -int(-stage.blocks * deeper // 1),
        )
        for i, stage in enumerate(LITE0)
    )  # fmt: skip


def _round(channels: float) -> int:
    """To a multiple of eight, and not by more than a tenth down."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class LiteStem(nn.Sequential):
    """Images (b 3 y x) to features (b 1280 y/32 x/32), one for each patch.

    >>> import torch
    >>> LiteStem("lite0")(torch.zeros(1, 3, 64, 96)).shape
    torch.Size([1, 1280, 2, 3])
    """

    def __init__(self, kind: LiteKind):
        layers: list[nn.Module] = [SameConv(3, 32, 3, stride=2), nn.ReLU6()]
        before = 32
        for stage in stages(kind):
            for i in range(stage.blocks):
                layers.append(Bottleneck(before, stage, stride=stage.stride if i == 0 else 1))
                before = stage.channels
        super().__init__(*layers, SameConv(before, FEATURES, 1), nn.ReLU6())
        self.kind: LiteKind = kind

    def forward(self, input: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b d y2 x2"]:  # noqa: A002 (its name in PyTorch)
        if not stands_for_others(input):  # under vmap there is no such order
            input = input.contiguous(memory_format=torch.channels_last)  # noqa: A001 (twice as fast, on a CPU too)
        return super().forward(input)


class Bottleneck(nn.Module):
    """Widened, looked at channel by channel, made narrow again; added to what came, where shapes allow it.

    >>> import torch
    >>> Bottleneck(8, Stage(3, 2, expansion=6, channels=16, blocks=1), stride=2)(torch.zeros(1, 8, 4, 4)).shape
    torch.Size([1, 16, 2, 2])
    """

    def __init__(self, before: int, stage: Stage, stride: int):
        super().__init__()
        inside = before * stage.expansion
        self.widen = SameConv(before, inside, 1) if stage.expansion != 1 else None
        self.look = SameConv(inside, inside, stage.kernel, stride=stride, groups=inside)
        self.narrow = SameConv(inside, stage.channels, 1)
        self.adds = stride == 1 and before == stage.channels

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y2 x2"]:
        inside = x if self.widen is None else F.relu6(self.widen(x))
        narrow = self.narrow(F.relu6(self.look(inside)))
        return x + narrow if self.adds else narrow


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: where it is odd, there is more at the right and below.

    >>> import torch
    >>> SameConv(1, 1, 3, stride=2)(torch.zeros(1, 1, 8, 7)).shape
    torch.Size([1, 1, 4, 4])
    """

    def forward(self, input: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y2 x2"]:  # noqa: A002 (its name in PyTorch)
        around: list[int] = []
        for axis in (1, 0):  # F.pad wants the last axis first
            kernel, stride = self.kernel_size[axis], self.stride[axis]
            more = max(0, kernel - 1 - (input.shape[2 + axis] - 1) % stride)
            around += [more // 2, more - more // 2]
        if len(set(around)) == 1:
            return F.conv2d(input, self.weight, self.bias, self.stride, around[0], groups=self.groups)
        return F.conv2d(F.pad(input, around), self.weight, self.bias, self.stride, groups=self.groups)
