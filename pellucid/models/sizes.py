"""How large a model would be, known before it is made: bounds on every size, shapes without numbers, bytes.

A config may come from anybody. Its sizes are compared with these bounds, its shapes with those of the weights, and its
bytes with the machine's, before any memory is taken for it.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from pellucid.config import brief
from pellucid.devices import memory_of

Module = TypeVar("Module", bound=nn.Module)
# Some four times of the largest that anybody has trained: what is beyond is a slip, or malice.
MOST_BLOCKS = 256
MOST_WIDTH = 1 << 16
MOST_HIDDEN = 1 << 20
MOST_HEADS = 1 << 10
MOST_CLASSES = 1 << 20  # and words of a vocabulary
MOST_CHANNELS = 1 << 10
MOST_SIDE = 1 << 14  # pixels of an image, as a model sees it, or of a patch
MOST_TOKENS = 1 << 16  # of an image
MOST_LENGTH = 1 << 8  # tokens of a sentence: a model may go on that long, step by step
TRAINED = 2  # numbers for each weight, at least: itself and its gradient


def check_sizes(config: Any, **most: int) -> None:
    """Each of these fields is one or more, and no larger than its bound; for a tuple, each of its values."""
    for name, bound in most.items():
        value = getattr(config, name)
        for size in value if isinstance(value, tuple) else (value,):
            if not size >= 1:
                raise ValueError(f"{name} is {brief(value)}; expected one or more")
            if size > bound:
                raise ValueError(f"{name} is {brief(value)}; expected up to {bound:,}")


def outline(module_class: type[Module], config: Any) -> Module:
    """The module with its names and shapes, and without numbers: it takes no memory to speak of.

    >>> from pellucid.models import ViT, ViTConfig
    >>> outline(ViT, ViTConfig(width=1024)).head.weight.shape
    torch.Size([10, 1024])
    """
    with torch.device("meta"):
        return module_class(config)  # pyright: ignore[reportCallIssue]


def check_memory(module: nn.Module, device: torch.device | str = "cpu", *, copies: float = 1.0) -> None:
    """Raise ValueError if the device has less memory than so many copies of the module's numbers take."""
    numbers = [*module.parameters(), *module.buffers()]
    needed = copies * sum(each.nelement() * each.element_size() for each in numbers)
    there = memory_of(device)
    if needed > there:
        count = sum(each.nelement() for each in module.parameters())
        raise ValueError(
            f"a {type(module).__name__} of {count:,} parameters takes at least {needed / 1e9:,.1f} GB of memory here, "
            f"and there are {there / 1e9:,.1f} GB; make it smaller"
        )
