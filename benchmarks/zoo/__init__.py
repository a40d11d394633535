"""Other people's models, small and with random weights: which library, how to build one, how many attentions it has.

`entries()` lists them all and imports no library yet; `entry.build()` does, and gives a model in eval() with what to
call it with. One file for each library holds its table; `count.py` counts attentions without asking `pellucid`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
Maker = Callable[[], tuple[nn.Module, Inputs]]

# How a model is run, where that is what an entry is about.
GRADIENTS: dict[str, Callable[[], AbstractContextManager]] = {
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
}

LIBRARIES = {
    "HF": "hugging_face",
    "timm": "timm_models",
    "torch": "torch_models",
    "vit-pytorch": "vit_pytorch_models",
    "x-transformers": "x_transformers_models",
    "open_clip": "open_clip_models",
    "diffusers": "diffusers_models",
    "torchvision": "torchvision_models",
}


@dataclass(frozen=True)
class Entry:
    """One model in one implementation.

    attentions: how many it computes in one forward pass, counted by hand (read in its code); a softmax of a router, of
    a classifier or of a loss is none. quick: among those that the tests run. gradients: how it is run. counted: what
    count.py says where that is another number.
    """

    library: str
    family: str
    model: str
    implementation: str
    attentions: int
    make: Maker
    quick: bool = False
    gradients: str = "no_grad"
    counted: int | None = None

    @property
    def name(self) -> str:
        return " ".join((self.family, self.model, self.implementation))

    def build(self) -> tuple[nn.Module, Inputs]:
        """The model in eval() and what to call it with, the same at every call."""
        torch.manual_seed(0)
        model, inputs = self.make()
        stir(model)
        settle(model.eval(), inputs)
        return model, inputs

    def run(self, model: nn.Module, inputs: Inputs) -> Any:
        """One forward pass, the same at every call if the model is."""
        torch.manual_seed(1)
        with GRADIENTS[self.gradients]():
            return model(**inputs)


def entries(*, library: str = "", only: str = "", quick: bool = False) -> Iterator[Entry]:
    """The entries in the order of their tables. only: a part of the name."""
    if library and library not in LIBRARIES:
        raise ValueError(f"no library {library!r}; expected one of {', '.join(LIBRARIES)}")
    for name, file in LIBRARIES.items():
        if library in ("", name):
            for entry in import_module(f"zoo.{file}").ENTRIES:
                if only.lower() in entry.name.lower() and (entry.quick or not quick):
                    yield entry


def stir(model: nn.Module) -> None:
    """Move every parameter a little, so that no bias table is zero and no attention is even, as many begin."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                spread = 0.7 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 and parameter.numel() else 0.1
                parameter += spread * torch.randn(parameter.shape).to(parameter.dtype)


def settle(model: nn.Module, inputs: Inputs) -> None:
    """Let batch norms learn what they see, as after training: otherwise numbers grow from layer to layer."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        model(**inputs)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()
