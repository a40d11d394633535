"""How much a model's features say of classes, its own or others: nearest neighbours, or one linear layer.

Features are what the model's last linear layer reads of a picture. The model stays as it is: training images only say
which class lies where among them.
"""

import time
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.data.augment import Normalise, normalised
from pellucid.data.division import draw_held_out
from pellucid.evaluation.accuracy import ClassificationReport
from pellucid.layers.modes import evaluating, reading

Probe = Literal["knn", "linear"]
NEAREST, TEMPERATURE = 20, 0.07  # as Caron et al. 2021 (DINO) vote
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)  # of the layer's squared weights
STEPS = 200  # of L-BFGS at most
ROWS = 1000  # pictures that look for their neighbours at a time


def probe(
    model: nn.Module,
    train: Any,
    images: Any,
    normalise: Normalise,
    *,
    kind: Probe = "knn",
    device: torch.device | str = "cpu",
    batch: int = 500,
) -> ClassificationReport:
    """What can be told of `images` by the features of the model, once `train` has shown which class lies where.

    knn: the twenty nearest training images by cosine vote. linear: logistic regression, its penalty chosen by a tenth
    of the training images.

    >>> from pellucid.data import ImageSet
    >>> pixels = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(-1, 1, 2, 2) * 20
    >>> images = ImageSet(pixels, torch.arange(12) // 6, ("dark", "light"))
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 9))  # what it says doesn't matter
    >>> probe(model, images, images, Normalise((0.5,), (0.5,)), kind="linear").top1
    1.0
    """
    if kind not in ("knn", "linear"):
        raise ValueError(f"probe is {kind!r}; expected 'knn' or 'linear'")
    if train.labels.ndim == 2 or images.labels.ndim == 2:
        raise ValueError("a probe is for images of one class each; here several may be true")
    if train.classes != images.classes:
        raise ValueError("the images have other classes than those that the probe learns from")
    started, classes = time.perf_counter(), len(train.classes)
    known, queries = (extract_features(model, each, normalise, device=device, batch=batch) for each in (train, images))
    labels = train.labels.to(known.device)
    if kind == "knn":
        said = vote(known, labels, queries, classes)
    else:
        centre, spread = known.mean(0), known.std(0).clamp(min=1e-6)
        known, queries = (known - centre) / spread, (queries - centre) / spread
        penalty = choose_penalty(known, labels, classes)
        weight, bias = fit_linear(known, labels, classes, penalty)
        said = (queries @ weight + bias).softmax(-1)
    said = said.cpu()
    loss = F.nll_loss(said.clamp(min=1e-12).log(), images.labels).item()
    return ClassificationReport(said, images.labels, loss, time.perf_counter() - started, tuple(train.classes), images)


@torch.no_grad()
def extract_features(
    model: nn.Module, images: Any, normalise: Normalise, *, device: torch.device | str = "cpu", batch: int = 500
) -> Float[Tensor, "n d"]:
    """What the model's last linear layer reads of each image; normalisation alone."""
    dtype = next(model.parameters()).dtype
    features = []
    for part in torch.arange(len(images)).split(batch):
        with evaluating(model), reading(model) as read:
            model(normalised(images.read(part).to(device), normalise).to(dtype))
        features.append(read[-1].float())
    return torch.cat(features)


def vote(
    known: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    queries: Float[Tensor, "m d"],
    classes: int,
    k: int = NEAREST,
) -> Float[Tensor, "m classes"]:
    """The share of the votes that each class gets of the k nearest by cosine, each counting exp(cosine / 0.07).

    >>> known, labels = torch.eye(3), torch.tensor([0, 1, 1])
    >>> vote(known, labels, torch.tensor([[1.0, 0.1, 0.0]]), classes=2, k=2).round(decimals=3)
    tensor([[1., 0.]])
    """
    known, shares = F.normalize(known, dim=-1), []
    for part in F.normalize(queries, dim=-1).split(ROWS):
        near = (part @ known.T).topk(min(k, len(known)), dim=1)
        weights = (near.values / TEMPERATURE).softmax(-1)
        shares.append(weights.new_zeros(len(part), classes).scatter_add(1, labels[near.indices], weights))
    return torch.cat(shares)


def choose_penalty(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int) -> float:
    """The penalty whose layer is surest of the right class on a tenth that it wasn't fitted to."""
    rest, chosen = draw_held_out(len(x), max(1, len(x) // 10))

    def loss(penalty: float) -> float:
        weight, bias = fit_linear(x[rest], labels[rest], classes, penalty)
        return F.cross_entropy(x[chosen] @ weight + bias, labels[chosen]).item()

    return min(PENALTIES, key=loss)


def fit_linear(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int, penalty: float
) -> tuple[Float[Tensor, "d classes"], Float[Tensor, " classes"]]:
    """Weight and bias of least cross-entropy + penalty/2 · |weight|²: there is one, since it is convex."""
    weight = x.new_zeros(x.shape[1], classes).requires_grad_()
    bias = x.new_zeros(classes).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe", history_size=10
    )

    def close() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(close)  # pyright: ignore[reportArgumentType]
    return weight.detach(), bias.detach()
