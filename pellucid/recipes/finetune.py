"""Fine-tuning what others have trained, on images of one's own: everything, the head alone, or LoRA's products.

Each begins as vit-cifar10 unless `start` names something else, whose shape, size and normalisation are taken over.
"""

from dataclasses import replace

from pellucid.data.augment import Augment
from pellucid.data.sources import DataConfig
from pellucid.runs.config import ClassifierRun, Optim
from pellucid.runs.tuning import Tune


def vit_finetune() -> ClassifierRun:
    """pellucid train vit_finetune --start SOURCE --data.name folder:PATH: every weight moves, the lower the less.

    The rate suits some hundreds to some thousands of images; with more, fewer epochs do.
    """
    return ClassifierRun(
        recipe="vit_finetune",
        start="vit-cifar10",
        data=DataConfig(name="folder:pictures"),
        augment=Augment(flip="random", zoom=0.5),
        optim=Optim(lr=5e-4, weight_decay=0.05, warmup=0.1, clip=1.0),
        tune=Tune(layer_decay=0.8),
        duration="40 epochs",
        batch=64,
        label_smoothing=0.1,
        evaluate_every="5 epochs",
        checkpoint_every="5 epochs",
    )


def vit_probe() -> ClassifierRun:
    """pellucid train vit_probe --start SOURCE --data.name folder:PATH: the head alone, the rest stays as it is."""
    return replace(
        vit_finetune(),
        recipe="vit_probe",
        optim=Optim(lr=3e-3, weight_decay=0.0, warmup=0.1),
        tune=Tune(freeze=("body",)),
    )


def vit_lora() -> ClassifierRun:
    """pellucid train vit_lora --start SOURCE --data.name folder:PATH: products of rank 16 beside q, k, v and o.

    The norms move, too. What is kept is an ordinary model with the products added in.
    """
    return replace(
        vit_finetune(),
        recipe="vit_lora",
        optim=Optim(lr=3e-3, weight_decay=0.0, warmup=0.1, clip=1.0),
        tune=Tune(rank=16, beside=("norms",)),
    )
