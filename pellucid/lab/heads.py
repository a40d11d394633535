"""Heads of trained models, removed one at a time and together."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pellucid.lab.frame import Case, Claim, Experiment, Result
from pellucid.lab.panels import matrix
from pellucid.lab.shipped import (
    CAPTIONER,
    CLASSIFIER,
    Labelled,
    captioned,
    models_used,
    named_right,
    photographed,
    said_right,
)
from pellucid.layers import MultiHeadAttention


@dataclass(frozen=True)
class Heads:
    """How many pictures decide."""

    scenes: int = 300
    """Drawn scenes for captioner-scenes."""
    photographs: int = 80
    """Test images of CIFAR-10 for vit-cifar10, if they are in the cache."""
    redundant: float = 0.01
    """A head is redundant if its removal costs no more than this share of the answers."""


def without(layer: MultiHeadAttention, heads: list[int], measure: Callable[[], float]) -> float:
    """What is measured while these heads of the layer add nothing: their columns of W_o are zero."""
    assert isinstance(layer.out, nn.Linear)
    weight, width = layer.out.weight, layer.out.in_features // layer.heads
    kept = weight.detach().clone()
    with torch.no_grad():
        for head in heads:
            weight[:, head * width : (head + 1) * width] = 0
        found = measure()
        weight.copy_(kept)
    return found


def layers_of(model: nn.Module) -> dict[str, MultiHeadAttention]:
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


def resumed(data: Labelled) -> Callable[[str], float]:
    """`named_right` after a change to one layer, given its name: the blocks before it are not run again."""
    if data.model.config.pooling != "mean" or not data.model.config.norm_first:
        raise ValueError(
            f"the answer is read off the mean of normalised tokens; got pooling {data.model.config.pooling!r}"
        )
    blocks = list(data.model.blocks)
    kept: dict[int, Tensor] = {}  # the tokens before each block

    def keep(i: int, _: nn.Module, inputs: tuple[Tensor]) -> None:
        kept[i] = inputs[0]

    hooks = [block.register_forward_pre_hook(partial(keep, i)) for i, block in enumerate(blocks)]
    named_right(data)
    for hook in hooks:
        hook.remove()

    @torch.no_grad()
    def right(name: str) -> float:
        first = int(name.split(".")[1])
        x = kept[first]
        for block in blocks[first:]:
            x = block(x)
        assert data.model.head is not None
        scores = data.model.head(data.model.norm(x).mean(1))
        return (scores.argmax(-1) == data.labels).double().mean().item()

    return right


def heads(p: Heads) -> Result:
    """Remove every head by itself, then all redundant ones together, then all heads there are."""
    scenes, photographs = captioned(p.scenes), photographed(p.photographs)
    data: dict[str, tuple[nn.Module, Callable[[str], float]]] = {
        CAPTIONER: (scenes.model, lambda _: said_right(scenes))
    }
    if photographs is not None:
        data[CLASSIFIER] = (photographs.model, resumed(photographs))
    panels, numbers, claims = [], {}, []
    for name, (model, measure) in data.items():
        layers = layers_of(model)
        first = next(iter(layers))
        whole = measure(first)
        lost = {
            at: [whole - without(layer, [h], partial(measure, at)) for h in range(layer.heads)]
            for at, layer in layers.items()
        }
        spare = {at: [h for h, cost in enumerate(costs) if cost <= p.redundant] for at, costs in lost.items()}
        every = {at: list(range(layer.heads)) for at, layer in layers.items()}
        together, none = (whole - all_without(layers, chosen, partial(measure, first)) for chosen in (spare, every))
        costs = [cost for of_layer in lost.values() for cost in of_layer]
        count, total = sum(map(len, spare.values())), len(costs)
        numbers |= {
            f"{name}: share of answers right": whole,
            f"{name}: heads": total,
            f"{name}: redundant one by one": count,
            f"{name}: lost without the head that matters most": max(costs),
            f"{name}: lost without all redundant ones": together,
            f"{name}: lost without any head": none,
        }
        panels.append(
            matrix(
                f"{name}: share of answers lost without a head",
                torch.tensor(list(lost.values())),
                rows="attention, from the first",
                columns="head",
                high=max(0.05, *costs),
                unit="share of answers lost",
            )
        )
        claims += [
            Claim(
                f"heads.{name}.matters",
                f"Every head of {name} matters.",
                "false",
                "≥",
                p.redundant,
                breaks=(Case("least share of answers lost by removing one head", min(costs)),),
                twin=Case("lost by removing all of them", none),
                truth=f"{count} of {total} can be removed, one at a time, for {p.redundant:.0%} of the answers or "
                "less.",
            ),
            Claim(
                f"heads.{name}.together",
                f"Heads of {name} that can be removed one at a time can be removed together.",
                "false",
                "≤",
                p.redundant,
                breaks=(Case(f"share of answers lost without all {count} of them", together),),
                twin=Case("largest share lost without one of them", max(cost for cost in costs if cost <= p.redundant)),
                truth="They stand in for each other: each is redundant while the others are there.",
            ),
        ]
    return Result(numbers | {"models": models_used(photographs)}, tuple(panels), tuple(claims))


def all_without(
    layers: dict[str, MultiHeadAttention], heads: dict[str, list[int]], measure: Callable[[], float]
) -> float:
    """What is measured while all of these heads add nothing."""
    if not layers:
        return measure()
    (name, layer), *others = layers.items()
    return without(layer, heads[name], lambda: all_without(dict(others), heads, measure))


EXPERIMENTS = (
    Experiment(
        name="heads",
        title="Heads removed",
        statement="Many heads can be removed one at a time, few of them together.",
        formula="Y = Σ_h Z_h·W_o^h + b; without head h, its rows of W_o are zero",
        predict="vit-cifar10 has 28 heads. How many can go, one at a time, for one answer in a hundred or less?",
        fails="A head's mean is removed with it; replacing it by its mean costs less. The shares are of a few "
        "hundred pictures.",
        parameters=Heads,
        run=heads,
        shown=(without, all_without),
    ),
)
