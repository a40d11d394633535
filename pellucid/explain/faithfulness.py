"""Does a map mean anything? Take away what it calls important, and see whether the answer goes (Petsiuk et al. 2018).

Deletion replaces the patches of an image, the most important first, and follows the probability of the class that the
model saw in the whole image: the sooner it falls, the smaller the area under the curve, the better the map. Insertion
begins with everything replaced and puts the patches back in the same order: there a larger area is better. Patches are
replaced by the image blurred, or by the mean of the images the model was trained on. Patches that a map calls equally
important are put in an order drawn at random, so that a map that says nothing scores as random.

Every method is scored on the same images, beside random numbers: the interval of the difference to them tells whether
the map is better than none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.data.listings import Images
from pellucid.explain.classes import look_at
from pellucid.explain.maps import METHODS, Method, needs_gradient, pixels_of
from pellucid.layers.modes import evaluating
from pellucid.models.vit import ViT

PatchFill = Literal["blur", "mean"]


class Interval(NamedTuple):
    """A mean over images, and where 95 of 100 means of images drawn anew would lie."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


class AnswerCurves(NamedTuple):
    """The probability of the answer as ever more patches are replaced, and as ever more are put back."""

    deletion: Float[Tensor, "methods b points"]
    insertion: Float[Tensor, "methods b points"]


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """The curves of every method over the same images. The points of a curve are equal steps from no patch to all.

    >>> import torch
    >>> curves = torch.linspace(0.9, 0.1, 5).expand(1, 3, 5)
    >>> Faithfulness(("gradient",), curves, curves.flip(-1)).area("deletion", "gradient").mean > 0.49
    True
    """

    methods: tuple[str, ...]
    deletion: Float[Tensor, "methods n points"]
    insertion: Float[Tensor, "methods n points"]

    def area(self, which: Literal["deletion", "insertion"], method: str, *, beside: str | None = None) -> Interval:
        """The area under the curve, or how much larger it is than that of another method on the same images."""
        areas = areas_under(self.deletion if which == "deletion" else self.insertion)
        area = areas[self._index(method)]
        return bootstrap_mean(area if beside is None else area - areas[self._index(beside)])

    def _index(self, method: str) -> int:
        if method not in self.methods:
            raise ValueError(f"method is {method!r}; expected one of {', '.join(self.methods)}")
        return self.methods.index(method)


def faithfulness(
    model: ViT,
    images: Images,
    methods: Sequence[Method] = METHODS,
    *,
    fill: PatchFill = "blur",
    steps: int = 8,
    batch: int = 64,
    seed: int = 0,
    half: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Deletion and insertion on all images, for the class that the model finds likeliest in each.

    half: answer in bfloat16 what is answered many times; the maps and what they are of keep the model's precision.

    >>> import torch, pellucid
    >>> from pellucid.data import ImageSet
    >>> images = ImageSet(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]), ("plane", "car"))
    >>> measured = faithfulness(pellucid.load("vit-cifar10").model, images, ["raw", "random"], steps=2)
    >>> measured.methods, tuple(measured.deletion.shape)
    (('raw', 'random'), (2, 2, 3))
    """
    gradients = needs_gradient(methods)
    if getattr(images, "area", None) is not None:
        raise ValueError("patches are deleted from images of one shape; these keep the ratio of their sides")
    if not methods or not len(images):
        raise ValueError(f"there are {len(methods)} methods and {len(images)} images; expected one or more of both")
    curves: list[AnswerCurves] = []

    def probabilities(pixels: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=half):
            return model(pixels).float().softmax(-1)

    with evaluating(model):
        for part in torch.arange(len(images)).split(batch):
            pixels = pixels_of(images.read(part), model)
            look = look_at(model, pixels, None, gradients=gradients)
            assert look.grid is not None
            first = seed + int(part[0])
            values = [look.map(method, seed=first)[:, model.extra_tokens :].to(pixels.dtype) for method in methods]
            replaced = fill_patches(pixels, fill, model.embed.patch)
            targets = look.output.argmax(1)
            del look  # and the graph with it
            curves.append(
                measure_curves(
                    probabilities,
                    pixels,
                    replaced,
                    torch.stack(values),
                    targets,
                    model.embed.grid(*pixels.shape[-2:]),
                    steps=steps,
                    seed=first,
                )
            )
            if progress is not None:
                progress(int(part[-1]) + 1)
    deletion, insertion = (torch.cat(parts, 1).cpu() for parts in zip(*curves, strict=True))
    return Faithfulness(tuple(methods), deletion, insertion)


@torch.no_grad()
def measure_curves(
    probabilities: Callable[[Tensor], Tensor],
    pixels: Float[Tensor, "b c y x"],
    replaced: Float[Tensor, "b c y x"],
    values: Float[Tensor, "methods b patches"],
    targets: Int[Tensor, " b"],
    grid: tuple[int, int],
    *,
    steps: int = 8,
    seed: int = 0,
) -> AnswerCurves:
    """The curves of some maps of the same images, of any model.

    probabilities: from images as in `pixels` to (b classes). replaced: what stands where a patch is taken away.
    """
    methods, b, patches = values.shape
    if not 1 <= steps <= patches:
        raise ValueError(f"steps is {steps}; expected 1…{patches}, the number of patches")

    def answer(visible: Tensor) -> Float[Tensor, " b"]:
        return probabilities(torch.where(visible, pixels, replaced)).gather(1, targets[:, None])[:, 0]

    whole, nothing = (answer(torch.full((1,), visible, device=pixels.device)) for visible in (True, False))
    curves = AnswerCurves(*(whole.new_empty(methods, b, steps + 1) for _ in range(2)))
    curves.deletion[..., 0] = curves.insertion[..., -1] = whole
    curves.deletion[..., -1] = curves.insertion[..., 0] = nothing
    for method, of_method in enumerate(values):
        rank = ranks(of_method, seed)
        for step in range(1, steps):
            first = _pixelwise(rank < round(step * patches / steps), grid, pixels)
            curves.deletion[method, :, step], curves.insertion[method, :, step] = answer(~first), answer(first)
    return curves


def ranks(values: Float[Tensor, "b n"], seed: int = 0) -> Int[Tensor, "b n"]:
    """The place of each value among its row's, the largest first; equal ones in an order drawn at random.

    >>> ranks(torch.tensor([[0.1, 0.7, 0.2]]))
    tensor([[2, 0, 1]])
    """
    if not values.isfinite().all():
        raise ValueError("a map holds numbers that are NaN or infinite; expected finite ones")
    shuffle = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)).argsort(1).to(values.device)
    order = values.gather(1, shuffle).argsort(dim=1, descending=True, stable=True)
    return shuffle.gather(1, order).argsort(1)


def fill_patches(pixels: Float[Tensor, "b c y x"], fill: PatchFill, patch: tuple[int, int]) -> Float[Tensor, "b c y x"]:
    """What stands in place of patches: the image blurred as wide as a patch, or the mean, zero in normalised pixels."""
    if fill == "mean":
        return torch.zeros_like(pixels)
    if fill != "blur":
        raise ValueError(f"fill is {fill!r}; expected 'blur' or 'mean'")
    for axis, sigma in ((2, patch[0]), (3, patch[1])):
        pixels = _blurred(pixels, axis, float(sigma))
    return pixels


def areas_under(curve: Float[Tensor, "... points"]) -> Float[Tensor, "..."]:
    """By trapezoids, over the share of patches from 0 to 1."""
    return torch.trapezoid(curve.double(), dx=1 / (curve.shape[-1] - 1))


def bootstrap_mean(values: Float[Tensor, " n"], *, draws: int = 10_000, seed: int = 0) -> Interval:
    """The mean, and the middle 95 % of the means of samples drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    values = values.double().cpu()
    at_once = max(1, 2**20 // len(values))
    means = torch.cat(
        [
            values[torch.randint(len(values), (min(at_once, draws - done), len(values)), generator=generator)].mean(1)
            for done in range(0, draws, at_once)
        ]
    )
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(values.mean().item(), low, high)


def _pixelwise(
    patches: Bool[Tensor, "b patches"], grid: tuple[int, int], like: Float[Tensor, "b c y x"]
) -> Bool[Tensor, "b 1 y x"]:
    high, wide = like.shape[-2] // grid[0], like.shape[-1] // grid[1]
    return patches.unflatten(1, grid)[:, None].repeat_interleave(high, 2).repeat_interleave(wide, 3)


def _blurred(pixels: Float[Tensor, "b c y x"], axis: int, sigma: float) -> Float[Tensor, "b c y x"]:
    """A Gaussian along one axis, the edge's pixels repeated beyond it."""
    reach = int(3 * sigma)
    offsets = torch.arange(-reach, reach + 1, dtype=pixels.dtype, device=pixels.device)
    weights = torch.exp(-offsets.square() / (2 * sigma**2))
    rows = pixels.movedim(axis, -1)
    padded = F.pad(rows.reshape(-1, 1, rows.shape[-1]), (reach, reach), mode="replicate")
    return F.conv1d(padded, (weights / weights.sum())[None, None]).reshape(rows.shape).movedim(-1, axis)
