"""What the kernels for summaries know of each row before they can tell its weights."""

import math
from typing import NamedTuple

from torch import Tensor


class Totals(NamedTuple):
    """Of each row (b h q): its largest score times log₂e, or anything near, and Σ 2^(score·log₂e − top) in float32.

    A row that may attend to nothing has 0 and 0. They are two because a row whose every score was brought down to −10³⁸
    by a bias is a row like others, and its total is lost in the logarithm of both together.
    """

    top: Tensor
    total: Tensor


def levels(totals: Totals) -> tuple[Tensor, Tensor, Tensor]:
    """The tops, log₂ of the totals, and their sum: a weight is 2 to the power of its score less that.

    Of a row that may attend to nothing the latter two are ∞, and so its weights 0. A tile would take the logarithm
    again for each of its keys, and the units that do are the ones that are busy.
    """
    top = totals.top.contiguous()
    logs = totals.total.contiguous().log2().nan_to_num_(posinf=math.inf, neginf=math.inf)
    return top, logs, top + logs
