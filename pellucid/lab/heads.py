"""Heads of trained models, removed one at a time and together."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pellucid.lab import shipped
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least, at_most
from pellucid.lab.panels import heatmap
from pellucid.layers import MultiHeadAttention


class HeadsSettings(NamedTuple):
    """How many pictures decide."""

    scenes: int = 300  # Drawn scenes for captioner-scenes.
    photographs: int = 80  # Test images of CIFAR-10 for vit-cifar10, if they are in the cache.
    redundant: float = 0.01  # A head is redundant if its removal costs no more than this share of the answers.


class Removal(NamedTuple):
    whole: float  # share of answers right
    losses: list[list[float]]  # share of answers lost without each head, layer by layer
    together: float  # lost without all heads that are redundant one by one
    nothing: float  # lost without any head


class HeadsMeasurement(NamedTuple):
    removals: dict[str, Removal]  # by model
    models: str


def without(layer: MultiHeadAttention, heads: list[int], measure: Callable[[], float]) -> float:
    """What is measured while these heads of the layer add nothing: their columns of W_o are zero."""
    assert isinstance(layer.out, nn.Linear)
    weight, width = layer.out.weight, layer.out.in_features // layer.heads
    kept = weight.detach().clone()
    with torch.no_grad():
        for head in heads:
            weight[:, head * width : (head + 1) * width] = 0
        value = measure()
        weight.copy_(kept)
    return value


def all_without(layers: list[MultiHeadAttention], heads: list[list[int]], measure: Callable[[], float]) -> float:
    """What is measured while all of these heads add nothing."""
    if not layers:
        return measure()
    return without(layers[0], heads[0], lambda: all_without(layers[1:], heads[1:], measure))


def resume(data: shipped.Photographs) -> Callable[[str], float]:
    """`label_accuracy` after a change to one layer, given its name: the blocks before it are not run again."""
    if data.model.config.pooling != "mean" or not data.model.config.norm_first:
        raise ValueError(
            f"the answer is read off the mean of normalised tokens; got pooling {data.model.config.pooling!r}"
        )
    blocks = list(data.model.blocks)
    kept: dict[int, Tensor] = {}  # the tokens before each block

    def keep(i: int, _: nn.Module, inputs: tuple[Tensor]) -> None:
        kept[i] = inputs[0]

    hooks = [block.register_forward_pre_hook(partial(keep, i)) for i, block in enumerate(blocks)]
    shipped.label_accuracy(data)
    for hook in hooks:
        hook.remove()

    @torch.no_grad()
    def accuracy(name: str) -> float:
        first = int(name.split(".")[1])
        x = kept[first]
        for block in blocks[first:]:
            x = block(x)
        assert data.model.head is not None
        scores = data.model.head(data.model.norm(x).mean(1))
        return (scores.argmax(-1) == data.labels).double().mean().item()

    return accuracy


def remove_heads(model: nn.Module, accuracy: Callable[[str], float], redundant: float) -> Removal:
    """Every head by itself, then all redundant ones together, then all heads there are."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    from_first = partial(accuracy, next(iter(layers)))
    whole = from_first()
    losses = [
        [whole - without(layer, [head], partial(accuracy, name)) for head in range(layer.heads)]
        for name, layer in layers.items()
    ]
    spare = [[head for head, lost in enumerate(of_layer) if lost <= redundant] for of_layer in losses]
    every = [list(range(layer.heads)) for layer in layers.values()]
    together, nothing = (whole - all_without([*layers.values()], heads, from_first) for heads in (spare, every))
    return Removal(whole, losses, together, nothing)


def measure_heads(p: HeadsSettings) -> HeadsMeasurement:
    """Remove the heads of each model, and count the answers that are lost."""
    scenes, photographs = shipped.load_scenes(p.scenes), shipped.load_photographs(p.photographs)
    removals = {shipped.CAPTIONER: remove_heads(scenes.model, lambda _: shipped.caption_accuracy(scenes), p.redundant)}
    if photographs is not None:
        removals[shipped.CLASSIFIER] = remove_heads(photographs.model, resume(photographs), p.redundant)
    return HeadsMeasurement(removals, shipped.name_models(photographs))


def claim_heads(p: HeadsSettings, m: HeadsMeasurement) -> Claims:
    for name, removal in m.removals.items():
        losses = [lost for of_layer in removal.losses for lost in of_layer]
        spare = [lost for lost in losses if lost <= p.redundant]
        yield Thesis(f"heads.{name}.matters", f"Every head of {name} matters.").false(
            at_least(p.redundant, "least share of answers lost by removing one head", min(losses)),
            twin=("lost by removing all of them", removal.nothing),
            truth=f"{len(spare)} of {len(losses)} can be removed, one at a time, for {p.redundant:.0%} of the answers "
            "or less.",
        )
        yield Thesis(
            f"heads.{name}.together", f"Heads of {name} that can be removed one at a time can be removed together."
        ).false(
            at_most(p.redundant, f"share of answers lost without all {len(spare)} of them", removal.together),
            twin=("largest share lost without one of them", max(spare)),
            truth="They stand in for each other: each is redundant while the others are there.",
        )


def draw_heads(p: HeadsSettings, m: HeadsMeasurement) -> Drawing:
    numbers, panels = {}, []
    for name, removal in m.removals.items():
        losses = [lost for of_layer in removal.losses for lost in of_layer]
        numbers |= {
            f"{name}: share of answers right": removal.whole,
            f"{name}: heads": len(losses),
            f"{name}: redundant one by one": sum(lost <= p.redundant for lost in losses),
            f"{name}: lost without the head that matters most": max(losses),
            f"{name}: lost without all redundant ones": removal.together,
            f"{name}: lost without any head": removal.nothing,
        }
        rows, unit = "attention, from the first", "share of answers lost"
        cells, high = torch.tensor(removal.losses), max(0.05, *losses)
        panels.append(heatmap(f"{name}: {unit} without a head", cells, rows=rows, columns="head", high=high, unit=unit))
    return numbers | {"models": m.models}, panels


HEADS = Experiment(
    name="heads",
    title="Heads removed",
    statement="Many heads can be removed one at a time, few of them together.",
    formula="Y = Σ_h Z_h·W_o^h + b; without head h, its rows of W_o are zero",
    predict="vit-cifar10 has 28 heads. How many can go, one at a time, for one answer in a hundred or less?",
    fails="A head's mean is removed with it; replacing it by its mean costs less. The shares are of a few hundred "
    "pictures.",
    functions=(measure_heads, claim_heads, draw_heads),
    helpers=(without, all_without, remove_heads),
)
