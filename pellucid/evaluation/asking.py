"""Asking a classifier: of one view of a picture or several, and with answers as sure as they are right."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from pellucid.data.aspect import cut_out
from pellucid.data.augment import Normalise, normalised

VIEWS = (1, 2, 10)  # as it is; and mirrored; and both shifted four ways
SHIFT = 1 / 16  # of the sides
COLDEST, HOTTEST = 0.02, 50.0  # temperatures


@torch.no_grad()
def ask(
    model: nn.Module,
    pixels: UInt8[Tensor, "b c y x"],
    normalise: Normalise,
    *,
    several: bool = False,
    temperature: float = 1.0,
    views: int = 1,
) -> Float[Tensor, "b classes"]:
    """Logits divided by the temperature; of several views those of their mean probabilities.

    several: more than one class may be true of a picture.
    """
    if views not in VIEWS:
        raise ValueError(f"views is {views}; expected one of {', '.join(map(str, VIEWS))}")
    kind = next(model.parameters()).dtype
    on_canvas = pixels.shape[1] > len(normalise.mean)
    seen = (normalised(view, normalise).to(kind) for view in see(pixels, views, on_canvas))
    answers = [model(view).float() / temperature for view in seen]
    if views == 1:
        return answers[0]
    mean = torch.stack([each.sigmoid() if several else each.softmax(-1) for each in answers]).mean(0)
    return mean.logit(1e-7) if several else mean.clamp(min=1e-30).log()


def see(pixels: UInt8[Tensor, "b c y x"], views: int, on_canvas: bool = False) -> list[UInt8[Tensor, "b c y x"]]:
    """Views of pictures: as they are, then mirrored; with ten, both also shifted, with mirrored edges.

    on_canvas: whether the last channel says where each of them lies.

    >>> [view.flatten().tolist() for view in see(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8), 2)]
    [[1, 2, 3], [3, 2, 1]]
    """
    if views > 1 and on_canvas:
        seen = [see(cut_out(each)[None], views) for each in pixels]
        return [join_like(pixels, [each[i][0] for each in seen]) for i in range(views)]
    shifted = [pixels]
    if views == 10:
        y, x = (max(1, round(SHIFT * side)) for side in pixels.shape[-2:])
        wide = F.pad(pixels.float(), (x, x, y, y), mode="replicate").to(pixels.dtype)
        height, width = pixels.shape[-2:]
        corners = ((0, 0), (0, 2 * x), (2 * y, 0), (2 * y, 2 * x))
        shifted += [wide[..., top : top + height, left : left + width] for top, left in corners]
    return [view for each in shifted for view in ((each, each.flip(-1)) if views > 1 else (each,))]


def join_like(canvases: UInt8[Tensor, "b c y x"], pictures: list[Tensor]) -> UInt8[Tensor, "b c y x"]:
    """Other pictures of the same sizes on the same canvases."""
    out = torch.zeros_like(canvases)
    out[:, -1] = canvases[:, -1]
    for row, picture in zip(out, pictures, strict=True):
        row[:-1, : picture.shape[1], : picture.shape[2]] = picture
    return out


def fit_temperature(logits: Float[Tensor, "n classes"], labels: Tensor) -> float:
    """The temperature T for which softmax(logits / T) gives the labels most probability (Guo et al. 2017).

    Their cross-entropy is convex in 1/T: its slope has one zero, between bounds that are far apart. Of labels
    (n classes), which say of each class whether it is true, the same with a sigmoid.

    >>> sure = torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [9.0, 0.0]])      # and three of four times right
    >>> temperature = fit_temperature(sure, torch.tensor([0, 0, 0, 1]))
    >>> (sure / temperature).softmax(-1)[0]
    tensor([0.7500, 0.2500])
    """
    z = logits.double()
    true = labels.double() if labels.ndim == 2 else F.one_hot(labels, z.shape[1]).double()
    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):
        factor = (low * high) ** 0.5
        said = (factor * z).sigmoid() if labels.ndim == 2 else (factor * z).softmax(-1)
        slope = ((said - true) * z).sum()
        low, high = (low, factor) if slope > 0 else (factor, high)
    return 1 / (low * high) ** 0.5


def log_odds(probabilities: Any, several: bool) -> Tensor:
    """Logits that have these probabilities."""
    p = probabilities.double()
    return p.logit(1e-12) if several else p.clamp(min=1e-300).log()
