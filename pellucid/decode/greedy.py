"""The likeliest token, at every step."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Step = Callable[[Int[Tensor, "b 1"]], Float[Tensor, "b 1 v"]]


@torch.no_grad()
def greedy(step: Step, first: Int[Tensor, " b"], *, length: int, end: int | None = None) -> Int[Tensor, "b t"]:
    """Call `step` with the newest tokens, take its best next ones, `length` times at most.

    step: newest tokens (b 1) to the logits of the next (b 1 v); it keeps what it needs of the past.
    end: a sequence that has said this token goes on saying it; when all have, decoding stops.
    """
    token, said = first[:, None], []
    finished = torch.zeros_like(token, dtype=torch.bool)
    for _ in range(length):
        token = step(token).argmax(-1)
        if end is not None:
            token = token.masked_fill(finished, end)
            finished |= token == end
        said.append(token)
        if end is not None and bool(finished.all()):
            break
    return torch.cat(said, dim=1) if said else first.new_empty(len(first), 0)
