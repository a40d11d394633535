"""A module as it answers, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
