"""What the kernels for summaries know of each row before they can tell its weights."""

from typing import NamedTuple

from torch import Tensor


class Totals(NamedTuple):
    """Of each row (b h q): its largest score times log₂e, or anything near, and Σ 2^(score·log₂e − top) in float32.

    A row that may attend to nothing has 0 and 0. They are two because a row whose every score was brought down to −10³⁸
    by a bias is a row like others, and its total is lost in the logarithm of both together.
    """

    top: Tensor
    total: Tensor
