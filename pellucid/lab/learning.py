"""The short trainings of the lab: one loop, and scikit-learn's digits, which most of them learn."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data.named import digits

PictureBatch = Float[Tensor, "b c y x"]


def descend(
    model: nn.Module, draw_loss: Callable[[], Float[Tensor, ""]], *, steps: int, rate: float, warmup: int = 0
) -> list[float]:
    """A short training by Adam, in place; the loss at each step, of a batch that is drawn for it."""
    optimizer, losses = torch.optim.Adam(model.parameters(), rate, fused=True), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / max(1, warmup))
        loss = draw_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's digits to train and to test with: pictures from −1 to 1, and what they show."""
    parts = digits()
    train, test = (
        (torch.from_numpy(pixels.copy()).float() / 127.5 - 1, torch.from_numpy(labels.copy()).long())
        for pixels, labels in (parts["train"], parts["test"])
    )
    return train, test


def learn_digits(
    model: nn.Module,
    *,
    steps: int,
    rate: float,
    warmup: int = 0,
    batch: int = 32,
    augment: Callable[[PictureBatch], PictureBatch] = lambda images: images,
) -> list[float]:
    """A short training on digits, in place; the loss at each step."""
    (images, labels), _ = load_digits()

    def draw_loss() -> Tensor:
        drawn = torch.randint(len(images), (batch,))
        return F.cross_entropy(model(augment(images[drawn])), labels[drawn])

    return descend(model, draw_loss, steps=steps, rate=rate, warmup=warmup)


@torch.no_grad()
def measure_accuracy(model: nn.Module, images: PictureBatch, labels: Int[Tensor, " b"]) -> float:
    """The share of pictures that it reads right."""
    return (model(images).argmax(-1) == labels).double().mean().item()
