"""Functions that return a run and state their evidence. `RECIPES` has those that `pellucid train` knows."""

from collections.abc import Callable

from pellucid.recipes import captioner, finetune, translator, vit
from pellucid.runs.config import AnyRun

RECIPES: dict[str, Callable[[], AnyRun]] = {
    function.__name__: function
    for function in (
        vit.vit_digits,
        vit.vit_64x5,
        vit.vit_256_course,
        vit.vit_cifar10_fast,
        vit.vit_cifar10_accurate,
        vit.vit_tiny_imagenet,
        finetune.vit_finetune,
        finetune.vit_lora,
        finetune.vit_probe,
        captioner.captioner_scenes,
        captioner.captioner_scenes_full,
        captioner.captioner_flickr8k,
        captioner.captioner_lite,
        translator.translator_multi30k,
        translator.translator_small,
    )
}


def recipe(name: str) -> AnyRun:
    """The run that a recipe's name stands for, to be changed and trained.

    >>> recipe("vit_digits").duration
    '45 epochs'
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; expected one of {', '.join(RECIPES)}")
    return RECIPES[name]()
