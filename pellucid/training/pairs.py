"""Learning without labels: two views of a picture must find each other among the views of all (Chen et al. 2020).

What is compared is what the last layer reads, with no projection beside it: nothing is learned that the model doesn't
keep, and what is alike to it can be asked at once (`evaluate --probe knn`).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def compare(features: Float[Tensor, "v d"], temperature: float) -> Float[Tensor, "v v"]:
    """Cosines between views, divided by the temperature; a view is not compared with itself.

    The first half of the v views are of the pictures in their order, the others of the same pictures again.
    """
    z = F.normalize(features, dim=-1)
    return (z @ z.T / temperature).fill_diagonal_(-torch.inf)


def partners(views: int, device: torch.device | None = None) -> Int[Tensor, " v"]:
    """Where the other view of each picture stands.

    >>> partners(6)
    tensor([3, 4, 5, 0, 1, 2])
    """
    return torch.arange(views, device=device).roll(views // 2)


def partners_differ(features: Float[Tensor, "v d"], temperature: float) -> Float[Tensor, " b"]:
    """Of each picture the cross-entropy of finding the other view by the one, and the one by the other, in the mean.

    >>> alike = torch.eye(4).repeat(2, 1)
    >>> bool(partners_differ(alike, 0.1).max() < 1e-3 < partners_differ(torch.ones(8, 4), 0.1).min())
    True
    """
    logits = compare(features, temperature)
    loss = F.cross_entropy(logits, partners(len(features), features.device), reduction="none")
    return loss.view(2, -1).mean(0)


def find_partners(features: Float[Tensor, "v d"]) -> Bool[Tensor, " b"]:
    """Whether the most alike of all other views is the same picture's.

    >>> find_partners(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]))
    tensor([True, True])
    """
    right = compare(features, 1.0).argmax(1) == partners(len(features), features.device)
    return right[: len(features) // 2]
