"""The same image through the checkpoints of a run: what a model came to look at.

Models come one at a time, with the step they were kept at, from wherever they are kept; none is held longer than it is
looked through.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import UInt8
from torch import Tensor

from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.explain.classes import class_names, look_at, target_of
from pellucid.explain.maps import Map, Method, needs_gradient, pixels_of
from pellucid.explain.words import explain_caption
from pellucid.layers.modes import evaluating
from pellucid.models.captioner import Captioner
from pellucid.models.vit import ViT


@dataclass(frozen=True, eq=False)
class Moment:
    """What a model looked at after so many steps. probability: of the class that the map explains.

    >>> import torch
    >>> Moment(100, Map("raw", "cat", None, torch.ones(4)), 0.8).probability
    0.8
    """

    step: int
    map: Map
    probability: float


def timelapse(
    models: Iterable[tuple[int, ViT]],
    image: UInt8[Tensor, "c y x"],
    method: Method = "gradient",
    *,
    target: int | str | None = None,
) -> tuple[Moment, ...]:
    """What a classifier looked at after each of these steps, given (step, model) in their order.

    target: the class to explain at each step, by number or name; the likeliest to the model then unless given.

    >>> import torch, pellucid
    >>> model, picture = pellucid.load("vit-cifar10").model, torch.zeros(3, 32, 32, dtype=torch.uint8)
    >>> [moment.step for moment in timelapse([(0, model), (10, model)], picture, "raw")]
    [0, 10]
    """
    moments = []
    for step, model in models:
        names = class_names(model)
        wanted = target_of(target, names)
        with evaluating(model):
            look = look_at(model, pixels_of(image[None], model), wanted, gradients=needs_gradient([method]))
            values = look.map(method, last=True)[0]
        shares = look.output.detach()[0].float().softmax(-1)
        answer = int(shares.argmax()) if wanted is None else wanted
        moments.append(Moment(step, Map(method, names[answer], None, values), float(shares[answer])))
    return tuple(moments)


def timelapse_caption(
    models: Iterable[tuple[int, Captioner]],
    tokenizer: CaptionTokenizer,
    image: UInt8[Tensor, "c y x"],
    method: Method = "gradient",
    *,
    caption: str | None = None,
    beam: int = 5,
) -> tuple[tuple[int, tuple[Map, ...]], ...]:
    """What a captioner looked at after each step: the maps of the given caption's words, or of what it said then.

    >>> import torch, pellucid
    >>> speaker, picture = pellucid.load("captioner-scenes"), torch.zeros(3, 48, 48, dtype=torch.uint8)
    >>> lapse = timelapse_caption([(0, speaker.model)], speaker.tokenizer, picture, "raw", caption="a red ring")
    >>> lapse[0][0], len(lapse[0][1])
    (0, 3)
    """
    return tuple(
        (step, explain_caption(model, tokenizer, image, method, caption=caption, beam=beam)) for step, model in models
    )
