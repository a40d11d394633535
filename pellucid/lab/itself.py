"""Does a word attend most to itself? Counted in trained models."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pellucid.data.tokenizer import PAD
from pellucid.lab.frame import Case, Claim, Experiment, Result
from pellucid.lab.panels import Bars
from pellucid.lab.shipped import CAPTIONER, captioned, models_used, photographed
from pellucid.layers import watch


@dataclass(frozen=True)
class Itself:
    """How many pictures the models look at."""

    scenes: int = 200
    """Drawn scenes for captioner-scenes."""
    photographs: int = 50
    """Test images of CIFAR-10 for vit-cifar10, if they are in the cache."""


def on_itself(weights: Float[Tensor, "b h q k"], rows: Bool[Tensor, "b q"]) -> Float[Tensor, " h"]:
    """For each head, the share of the chosen rows whose largest weight is on the token that asks."""
    own = weights.argmax(-1) == torch.arange(weights.shape[2])
    return own.movedim(1, -1)[rows].double().mean(0)


@torch.no_grad()
def itself(p: Itself) -> Result:
    """Where the largest weight of each row lies, in every head that attends to its own tokens."""
    data = captioned(p.scenes)
    read = data.tokens[:, :-1]
    words = read != PAD
    words[:, 0] = False  # the first token sees nobody but itself
    with watch(data.model) as seen:
        data.model(data.images, read)
    heads: dict[str, Float[Tensor, " h"]] = {}
    for name, record in seen.items():
        if "cross" in name:
            continue
        of_words = name.startswith("decoder")
        rows = words if of_words else torch.ones(len(data.images), record.q.shape[2], dtype=torch.bool)
        label = f"{'words' if of_words else 'patches'}, layer {name.split('.')[2]}"
        heads[label] = on_itself(record.weights(), rows)
    photographs = photographed(p.photographs)
    if photographs is not None:
        with watch(photographs.model) as seen:
            photographs.model(photographs.images)
        for i, record in enumerate(seen.values()):
            everyone = torch.ones(record.q.shape[0], record.q.shape[2], dtype=torch.bool)
            heads[f"photograph, layer {i}"] = on_itself(record.weights(), everyone)
    spoken = torch.cat([shares for name, shares in heads.items() if name.startswith("words")])
    looked = torch.cat([shares for name, shares in heads.items() if not name.startswith("words")])
    place = torch.arange(1, read.shape[1] + 1)
    chance = (1 / place.double()).expand(len(read), -1)[words].mean().item()
    claims = (
        Claim(
            "itself.word",
            "A word attends most to itself.",
            "false",
            "≥",
            0.5,
            breaks=(
                Case(
                    f"share of words that do, all heads of {CAPTIONER} (by chance {chance:.2f})", spoken.mean().item()
                ),
            ),
            twin=Case("share that attend most to another", 1 - spoken.mean().item()),
            truth=f"Not in general: from head to head the share goes from {spoken.min():.2f} to {spoken.max():.2f}.",
            heard=True,
        ),
        Claim(
            "itself.patch",
            "A patch attends most to itself.",
            "false",
            "≥",
            0.5,
            breaks=(Case(f"share of patches that do, all heads of {models_used(photographs)}", looked.mean().item()),),
            twin=Case("share that attend most to another", 1 - looked.mean().item()),
            truth=f"Not in general: from head to head the share goes from {looked.min():.2f} to {looked.max():.2f}.",
        ),
    )
    most = max(len(shares) for shares in heads.values())
    names = tuple(heads)
    series = tuple((f"head {i}", tuple(heads[name][i].item() for name in names)) for i in range(most))
    panels = (Bars("rows whose largest weight is on themselves", "share", names, series, line=("half", 0.5)),)
    numbers = {
        name: f"{shares.mean():.3f} (heads: {', '.join(f'{x:.2f}' for x in shares)})" for name, shares in heads.items()
    }
    return Result(numbers | {"words, by chance": chance, "models": models_used(photographs)}, panels, claims)


EXPERIMENTS = (
    Experiment(
        name="itself",
        title="Does a word attend most to itself?",
        statement="In trained models a token's largest weight is rarely on itself.",
        formula="share of rows i with argmaxⱼ Pᵢⱼ = i",
        predict="A caption of seven words, a trained decoder. For how many words is the largest weight on the word "
        "itself?",
        fails="It says where the largest weight is, not where most of the weight is, and residuals hand a token "
        "itself anyway.",
        parameters=Itself,
        run=itself,
        shown=(on_itself,),
    ),
)
