"""What an answer loses when a head is switched off: the head's part in it, measured and not read off a map."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.watching import Change, watch


@torch.no_grad()
def ablate(
    model: nn.Module, score: Callable[[], Float[Tensor, " b"]], *, layers: Sequence[str] | None = None
) -> dict[str, Float[Tensor, "h b"]]:
    """How far the score falls for each head of each attention that is switched off alone, in any model.

    score: runs the model and gives one number for each input, as lambda: model(x).logits[:, 3].
    layers: names of attentions as `watch` gives them; all that are seen unless given.

    >>> from pellucid.layers import MultiHeadAttention
    >>> model, x = MultiHeadAttention(16, heads=4), torch.randn(2, 5, 16)
    >>> ablate(model, lambda: model(x)[:, 0, 0])[""].shape
    torch.Size([4, 2])
    """
    with watch(model) as seen:
        whole = score()
    names = {name: record.q.shape[1] for name, record in seen.items()}
    unknown = set(layers or ()) - set(names)
    if unknown:
        raise ValueError(f"no attention {sorted(unknown)[0]!r} was seen; seen: {', '.join(map(repr, names))}")
    losses = {}
    for name in names if layers is None else layers:
        rows = []
        for head in range(names[name]):
            with watch(model, change={name: Change(off=[head])}):
                rows.append(whole - score())
        losses[name] = torch.stack(rows)
    return losses
