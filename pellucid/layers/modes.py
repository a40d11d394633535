"""A module as it answers, for a while, and what it reads when it does."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module as it answers, not as it trains: nothing is dropped. Afterwards it is as it was, whatever happens.

    >>> dropout = nn.Dropout()
    >>> with evaluating(dropout):
    ...     print(dropout.training)
    False
    >>> dropout.training
    True
    """
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@contextmanager
def reading(module: nn.Module) -> Iterator[list[Tensor]]:
    """What the module's last linear layer reads in each forward pass, a row of features for each picture.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> with reading(model) as read:
    ...     _ = model(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> read
    [tensor([[1., 2., 3., 4.]])]
    """
    last = [each for each in module.modules() if isinstance(each, nn.Linear)]
    if not last:
        raise ValueError(f"a {type(module).__name__} has no linear layer whose features could be read")
    read: list[Tensor] = []
    handle = last[-1].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].flatten(1)))
    try:
        yield read
    finally:
        handle.remove()
