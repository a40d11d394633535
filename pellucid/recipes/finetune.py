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

    Evidence: vit-cifar10 to 20 classes of Tiny ImageNet, their validation images, one H200, means of three seeds
    (results/finetuning-cuda.json): top-1 48.1 % with 20 images of each class and 62.6 % with 100; from scratch 17.9 %
    and 36.2 %.

    The rate suits some hundreds to some thousands of images; with more, fewer epochs do. benchmarks/finetuning.py
    measures all three recipes.
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
        precision="bf16",
        label_smoothing=0.1,
        evaluate_every="5 epochs",
        checkpoint_every="5 epochs",
    )


def vit_probe() -> ClassifierRun:
    """pellucid train vit_probe --start SOURCE --data.name folder:PATH: the head alone, the rest stays as it is.

    Evidence: as vit_finetune; 34.3 % with 20 images of each class and 48.5 % with 100.
    """
    return replace(
        vit_finetune(),
        recipe="vit_probe",
        optim=Optim(lr=3e-3, weight_decay=0.0, warmup=0.1),
        tune=Tune(freeze=("body",)),
    )


def vit_lora() -> ClassifierRun:
    """pellucid train vit_lora --start SOURCE --data.name folder:PATH: thin products beside its matrices (LoRA).

    Evidence: as vit_finetune; 49.3 % with 20 images of each class and 63.1 % with 100, moving 4.4 % of the parameters.

    Products of rank 8 beside all six matrices of a block, for twice as long, chosen on held-out images
    (results/finetuning_choice-cuda.json): there it has 49.2 % where moving every weight has 49.5, with 40 epochs 1.2
    points less, and beside q, k, v and out alone 2.4 less. The norms move, too. What is kept is an ordinary model with
    the products added in.
    """
    return replace(
        vit_finetune(),
        recipe="vit_lora",
        optim=Optim(lr=2e-3, weight_decay=0.0, warmup=0.1, clip=1.0),
        tune=Tune(rank=8, adapt=("q", "k", "v", "out", "inner", "outer"), beside=("norms",)),
        duration="80 epochs",
    )
