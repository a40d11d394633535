"""Weights as colours over a picture, in the same order of lightness for every eye, and their scale with numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

COLOUR_MAP = "cividis"
CHANCE = "#d1495b"
QUIET = "#555555"  # of what is said beside the point
# Over a picture weight is a glow: the picture recedes to a dark grey of little contrast, so that its own light and dark
# aren't taken for weight, and the more a patch is attended to the more it is covered by the brightest colour.
GLOW = np.array([254, 232, 56]) / 255
COVER = 0.9  # of the glow, where the weight is the largest
CONTRAST, BRIGHTNESS = 0.6, 0.6  # of the grey below it


@dataclass(frozen=True)
class Scale:
    """Which weight has the darkest and which the brightest colour, and what is marked between them.

    mark: a weight and what it is called, as 1/N, what each of N tokens has if all are alike.
    cut: whether there are weights above the brightest.
    """

    low: float
    high: float
    mark: tuple[float, str] | None = None
    cut: bool = False

    @classmethod
    def absolute(cls, weights: Sequence[Tensor], tokens: int, top: float | None = None) -> "Scale":
        """From 0 to the largest weight, or to `top`. Nearly equal weights stay dark: it reaches 2/N at least."""
        largest = max((float(each.max()) for each in weights if each.numel()), default=0.0)
        if top is not None and not top > 0:
            raise ValueError(f"top is {top}; expected the weight of the brightest colour, more than 0")
        high = max(largest, 2 / tokens) if top is None else top
        return cls(0.0, high, (1 / tokens, f"1/{tokens}"), cut=largest > high)

    @classmethod
    def own(cls, values: Float[Tensor, "... tokens"], patches: int) -> "Scale":
        """Of maps in units of their own: from 0, or the least value if below, to the largest of the last tokens, which
        are the patches, with their mean marked; with 1/N, where each map sums to one.
        """
        of_patches = values[..., -patches:]
        low, high, mean = min(0.0, float(of_patches.min())), float(of_patches.max()), float(of_patches.mean())
        mark = (1 / values.shape[-1], f"1/{values.shape[-1]}") if is_shared_out(values) else (mean, "mean")
        return cls(low, max(high, 2 * mark[0], low + 1e-30), mark)

    @property
    def extend(self) -> str:
        return "max" if self.cut else "neither"

    @property
    def marks(self) -> bool:
        return self.mark is not None and self.low <= self.mark[0] <= self.high

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """The weights as shares of the scale."""
        return np.clip((weights - self.low) / max(self.high - self.low, 1e-30), 0.0, 1.0)


def is_shared_out(values: Float[Tensor, "... tokens"]) -> bool:
    """Whether each map sums to one."""
    return bool(((values.sum(-1) - 1).abs() < 1e-3).all())


def pixels(picture: UInt8[Tensor, "c y x"]) -> np.ndarray:
    """The picture as (y, x, 3), grey ones too."""
    return picture.permute(1, 2, 0).expand(-1, -1, 3).cpu().numpy()


def overlay(picture: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The picture (y, x, 3) in dark grey under the glow of the shares (rows, columns), each over its patch."""
    height, width = picture.shape[:2]
    rows, columns = shares.shape
    down, across = (np.arange(height) * rows) // height, (np.arange(width) * columns) // width
    cover = COVER * shares[down][:, across][..., None]
    return cover * GLOW + (1 - cover) * BRIGHTNESS * (0.5 + CONTRAST * (picture.mean(-1, keepdims=True) / 255 - 0.5))


def colour_bar(figure: Figure, axes: Axes | list[Axes], scale: Scale, label: str, **size: Any) -> Colorbar:
    """Right of the axes, the colours as they are seen over middle grey, with numbers and the scale's mark."""
    bar = figure.colorbar(_bar_colours(scale), ax=axes, extend=scale.extend, **size)
    _number_bar(bar, label, 5)
    if scale.marks:
        at, name = scale.mark or (0.0, "")
        bar.ax.axhline(at, color=CHANCE, linewidth=1.8)
        bar.ax.text(-0.25, at, name, color=CHANCE, ha="right", va="center", fontsize=7)
    return bar


def colour_bar_in(figure: Figure, ax: Axes, scale: Scale) -> Colorbar:
    """The same, lying, in axes of its own."""
    bar = figure.colorbar(_bar_colours(scale), cax=ax, orientation="horizontal", extend=scale.extend)
    _number_bar(bar, "", 3)
    bar.formatter = StrMethodFormatter("{x:g}")
    if scale.marks:
        at, name = scale.mark or (0.0, "")
        ax.axvline(at, color=CHANCE, linewidth=1.8)
        ax.text(at, 1.2, name, color=CHANCE, ha="center", va="bottom", fontsize=7, transform=ax.get_xaxis_transform())
    return bar


def label_ends(bar: Colorbar) -> None:
    """A scale without numbers, where the numbers differ from map to map."""
    bar.set_ticks([0.0, 1.0], labels=["smallest", "largest"])


def _bar_colours(scale: Scale) -> ScalarMappable:
    cover = COVER * np.linspace(0, 1, 256)[:, None]
    colours = cover * GLOW + (1 - cover) * BRIGHTNESS * 0.5
    return ScalarMappable(Normalize(scale.low, scale.high), ListedColormap(colours))


def _number_bar(bar: Colorbar, label: str, most: int) -> None:
    bar.set_label(label, fontsize=8)
    bar.locator = MaxNLocator(most, steps=[1, 2, 5, 10])
    bar.update_ticks()
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
