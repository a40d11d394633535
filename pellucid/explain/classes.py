"""Why a vision transformer gave its answer."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from pellucid.explain.chains import Start, WhichHead
from pellucid.explain.maps import Look, Map, Method, needs_gradient, pixels_of
from pellucid.layers.modes import evaluating
from pellucid.models.vit import ViT


def explain(
    model: ViT,
    image: UInt8[Tensor, "c y x"],
    method: Method = "gradient",
    *,
    target: int | str | None = None,
    layer: int = -1,
    head: WhichHead = "mean",
    seed: int = 0,
) -> Map:
    """How much each token of the image counts for a class, by number or name; for the likeliest unless given.

    layer, head: of the raw attention. seed: of the random numbers.

    >>> from pellucid.models import ViTConfig
    >>> config = ViTConfig(width=32, depth=2, heads=2, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> rolled = explain(ViT(config), torch.zeros(3, 32, 32, dtype=torch.uint8), "rollout", target=3)
    >>> rolled.target, rolled.values.shape, round(rolled.values.sum().item(), 4)       # a class token and 8 × 8 patches
    ('3', torch.Size([65]), 1.0)
    """
    names = class_names(model)
    wanted = target_of(target, names)
    with evaluating(model):
        pixels = pixels_of(image[None], model)
        look = look_at(model, pixels, wanted, gradients=needs_gradient([method]))
        values = look.map(method, layer=layer, head=head, seed=seed, last=True)[0]
    return Map(method, names[int(look.output[0].argmax()) if wanted is None else wanted], None, values)


def look_at(
    model: ViT, pixels: Float[Tensor, "b c y x"], target: int | Int[Tensor, " b"] | None, *, gradients: bool = True
) -> Look:
    """Watch the model, which is not training, look at normalised images; the score is the logit of the target.

    target: a class, one for each image, or None for the likeliest of each.
    """

    def score(logits: Float[Tensor, "b classes"]) -> Float[Tensor, " b"]:
        if target is None:
            return logits.amax(1)
        if isinstance(target, int):
            return logits[:, target]
        return logits.gather(1, target[:, None])[:, 0]

    grid = model.embed.grid(*pixels.shape[-2:])
    return Look.at(model, pixels, score, read=reading(model, pixels), grid=grid, gradients=gradients)


@torch.no_grad()
def reading(model: ViT, pixels: Float[Tensor, "b c y x"]) -> Start:
    """What the head reads of the tokens: the class token, all patches alike, or patches by their learned weights."""
    if model.head is None:
        raise ValueError(
            "this vision transformer gives tokens and no answer (pooling is 'none'); there is no class to explain"
        )
    if model.class_token is not None:
        return 0
    rows, columns = model.embed.grid(*pixels.shape[-2:])
    if model.pool is None:
        weights = pixels.new_full((len(pixels), rows * columns), 1 / (rows * columns))
    else:
        tokens = model.tokens(pixels)[0]
        tokens = model.norm(tokens) if model.config.norm_first else tokens
        weights = model.pool(tokens[:, model.extra_tokens :]).squeeze(-1).softmax(-1)
    return torch.nn.functional.pad(weights, (model.extra_tokens, 0))


def class_names(model: ViT, labels: Sequence[str] | None = None) -> tuple[str, ...]:
    """What the classes are called: as given, as the model calls them, or their numbers."""
    names = tuple(labels or model.config.names)
    if len(names) != model.config.classes:
        raise ValueError(f"labels names {len(names)} classes; expected {model.config.classes}")
    return names


def target_of(target: int | str | None, names: Sequence[str]) -> int | None:
    """The number of a class that was given by number or name."""
    if isinstance(target, str):
        if target not in names:
            raise ValueError(f"target is {target!r}; expected one of {', '.join(names)}")
        return names.index(target)
    if target is not None and not 0 <= target < len(names):
        raise ValueError(f"target is {target}; expected a class in 0…{len(names) - 1}")
    return target
