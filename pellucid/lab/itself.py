"""Does a word attend most to itself? Counted in trained models."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.data.tokenizer import PAD
from pellucid.lab.frame import Claims, Drawing, Experiment, Thesis, at_least
from pellucid.lab.panels import bar_chart
from pellucid.lab.shipped import CAPTIONER, load_photographs, load_scenes, name_models
from pellucid.watching import watch


class ItselfSettings(NamedTuple):
    """How many pictures the models look at."""

    scenes: int = 200  # Drawn scenes for captioner-scenes.
    photographs: int = 50  # Test images of CIFAR-10 for vit-cifar10, if they are in the cache.


class ItselfMeasurement(NamedTuple):
    shares: dict[str, Float[Tensor, " h"]]  # of rows whose largest weight is on themselves: for each layer, its heads
    chance: float  # for words
    models: str


def share_on_itself(weights: Float[Tensor, "b h q k"], rows: Bool[Tensor, "b q"]) -> Float[Tensor, " h"]:
    """For each head, the share of the chosen rows whose largest weight is on the token that asks."""
    own = weights.argmax(-1) == torch.arange(weights.shape[2])
    return own.movedim(1, -1)[rows].double().mean(0)


@torch.no_grad()
def measure_itself(p: ItselfSettings) -> ItselfMeasurement:
    """Where the largest weight of each row lies, in every head that attends to its own tokens."""
    data, photographs = load_scenes(p.scenes), load_photographs(p.photographs)
    read = data.tokens[:, :-1]
    words = read != PAD
    words[:, 0] = False  # the first token sees nobody but itself
    with watch(data.model) as seen:
        data.model(data.images, read)
    shares: dict[str, Float[Tensor, " h"]] = {}
    for name, record in seen.items():
        everyone = torch.ones(record.q.shape[0], record.q.shape[2], dtype=torch.bool)
        if name.startswith("decoder") and "cross" not in name:
            shares[f"words, layer {name.split('.')[2]}"] = share_on_itself(record.weights(), words)
        elif "cross" not in name:
            shares[f"patches, layer {name.split('.')[2]}"] = share_on_itself(record.weights(), everyone)
    if photographs is not None:
        with watch(photographs.model) as seen:
            photographs.model(photographs.images)
        for i, record in enumerate(seen.values()):
            everyone = torch.ones(record.q.shape[0], record.q.shape[2], dtype=torch.bool)
            shares[f"photograph, layer {i}"] = share_on_itself(record.weights(), everyone)
    place = torch.arange(1, read.shape[1] + 1)
    chance = (1 / place.double()).expand(len(read), -1)[words].mean().item()
    return ItselfMeasurement(shares, chance, name_models(photographs))


def claim_itself(p: ItselfSettings, m: ItselfMeasurement) -> Claims:
    words = torch.cat([shares for name, shares in m.shares.items() if name.startswith("words")])
    patches = torch.cat([shares for name, shares in m.shares.items() if not name.startswith("words")])
    mean = words.mean().item()
    yield Thesis("itself.word", "A word attends most to itself.").false(
        at_least(0.5, f"share of words that do, all heads of {CAPTIONER} (by chance {m.chance:.2f})", mean),
        twin=("share that attend most to another", 1 - mean),
        truth=f"Not in general: from head to head the share goes from {words.min():.2f} to {words.max():.2f}.",
        heard=True,
    )
    yield Thesis("itself.patch", "A patch attends most to itself.").false(
        at_least(0.5, f"share of patches that do, all heads of {m.models}", patches.mean().item()),
        twin=("share that attend most to another", 1 - patches.mean().item()),
        truth=f"Not in general: from head to head the share goes from {patches.min():.2f} to {patches.max():.2f}.",
    )


def draw_itself(p: ItselfSettings, m: ItselfMeasurement) -> Drawing:
    numbers = {
        name: f"{shares.mean():.3f} (heads: {', '.join(f'{x:.2f}' for x in shares)})"
        for name, shares in m.shares.items()
    }
    heads = range(max(map(len, m.shares.values())))
    bars = {f"head {i}": {name: shares[i].item() for name, shares in m.shares.items()} for i in heads}
    chart = bar_chart("rows whose largest weight is on themselves", "share", bars, line=("half", 0.5))
    return numbers | {"words, by chance": m.chance, "models": m.models}, [chart]


ITSELF = Experiment(
    name="itself",
    title="Does a word attend most to itself?",
    statement="In trained models a token's largest weight is rarely on itself.",
    formula="share of rows i with argmaxⱼ Pᵢⱼ = i",
    predict="A caption of seven words, a trained decoder. For how many words is the largest weight on the word itself?",
    fails="It says where the largest weight is, not where most of the weight is, and residuals hand a token itself "
    "anyway.",
    functions=(measure_itself, claim_itself, draw_itself),
    helpers=(share_on_itself,),
)
