"""Learning from a teacher: its answers beside the labels, and which pictures are alike to it.

What is alike is compared and not the features themselves (Tung & Mori 2019), so that teacher and model may be as wide
as they like, and nothing is learned that the model doesn't keep.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.data.augment import Normalise
from pellucid.layers.modes import evaluating, reading
from pellucid.ready import load_classifier
from pellucid.runs import ClassifierRun
from pellucid.runs.config import Distil

OWN = "own"  # what a run says of a teacher that was given in Python


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained module, and how the pictures of the model that learns become its own.

    ours, its: normalisation; size: that it was trained on; columns: of its answers, for the classes of the model.
    None where it takes and says what the model does.
    """

    module: nn.Module
    ours: Normalise
    its: Normalise | None = None
    size: tuple[int, int] | None = None
    columns: Tensor | None = None

    @torch.no_grad()
    def teach(self, images: Float[Tensor, "b c y x"]) -> tuple[Float[Tensor, "b classes"], Float[Tensor, "b d"]]:
        """Its logits for the model's classes, and what its last layer reads."""
        with evaluating(self.module), reading(self.module) as read:
            logits = self.module(self.see(images)).float()
        return logits if self.columns is None else logits[:, self.columns], read[0].float()

    def see(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c _y _x"]:
        """Pictures that were normalised for the model, in its own size and normalisation."""
        if self.its is not None:
            (mean, std), (its_mean, its_std) = (
                (images.new_tensor(n.mean)[:, None, None], images.new_tensor(n.std)[:, None, None])
                for n in (self.ours, self.its)
            )
            images = (images * std + mean - its_mean) / its_std
        if self.size is None or self.size == tuple(images.shape[-2:]):
            return images
        return F.interpolate(images, self.size, mode="bilinear", antialias=True)


def name_teacher(run: ClassifierRun, teacher: nn.Module | None) -> ClassifierRun:
    """The run with what it says of its teacher."""
    if teacher is not None:
        return replace(run, distil=replace(run.distil, teacher=OWN))
    if run.distil.teacher == OWN:
        raise ValueError("the run learns from a teacher that was given in Python; give it again: train(…, teacher=…)")
    return run


def find_teacher(run: ClassifierRun, module: nn.Module | None, device: torch.device) -> Teacher | None:
    """The teacher of a run whose classes and normalisation are known; None if it has none."""
    looks = run.model
    assert looks.mean is not None, "resolved() sets it"
    assert looks.std is not None, "resolved() sets it"
    ours = Normalise(looks.mean, looks.std)
    if module is not None:
        return Teacher(module.to(device), ours)
    if run.distil.teacher is None:
        return None
    ready = load_classifier(run.distil.teacher, device)
    if ready.looks.channels != looks.channels:
        raise ValueError(
            f"{run.distil.teacher} sees {ready.looks.channels} channels, and these images have {looks.channels}"
        )
    columns = None
    if run.distil.weight:
        unknown = [name for name in looks.names if name not in ready.labels]
        if unknown:
            names = ", ".join(map(repr, unknown[:5]))
            raise ValueError(
                f"{run.distil.teacher} doesn't know {names}; let it teach what is alike alone: --distil.weight 0 "
                "--distil.features 1"
            )
        columns = torch.tensor([ready.labels.index(name) for name in looks.names], device=device)
    return Teacher(ready.model, ours, ready.reader.normalise, ready.reader.size, columns)


def answers_differ(
    mine: Float[Tensor, "b classes"], its: Float[Tensor, "b classes"], distil: Distil, *, several: bool = False
) -> Float[Tensor, " b"]:
    """Of each picture T²·KL(teacher ‖ model) of answers divided by T; several: the sum over classes of such questions.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> its = torch.randn(3, 5)
    >>> bool(answers_differ(its, its, Distil()).abs().max() < 1e-6), bool(answers_differ(-its, its, Distil()).min() > 0)
    (True, True)
    """
    t = distil.temperature
    if several:
        target = (its / t).sigmoid()
        loss = F.binary_cross_entropy_with_logits(mine / t, target, reduction="none")
        least = F.binary_cross_entropy_with_logits(its / t, target, reduction="none")
        return t * t * (loss - least).mean(1)
    p, q = (its / t).log_softmax(-1), (mine / t).log_softmax(-1)
    return t * t * (p.exp() * (p - q)).sum(-1)


def likeness_differs(mine: Float[Tensor, "b d"], its: Float[Tensor, "b e"]) -> Float[Tensor, ""]:
    """The mean squared difference of the cosines between pictures, to the model and to the teacher."""
    mine, its = F.normalize(mine, dim=-1), F.normalize(its, dim=-1)
    return F.mse_loss(mine @ mine.T, its @ its.T)
