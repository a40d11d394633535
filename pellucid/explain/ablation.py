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
    chosen = list(names) if layers is None else [layers] if isinstance(layers, str) else list(layers)
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"no attention {unknown[0]!r} was seen; seen: {', '.join(map(repr, names))}")
    if not chosen:
        raise ValueError(f"layers is empty; expected some of {', '.join(map(repr, names))}")

    def without(layer: str, head: int) -> Callable[[str], Change | None]:
        return lambda name: Change(off=[head]) if name == layer else None  # and no other time that it attends

    losses = {}
    for layer in chosen:
        rows = []
        for head in range(names[layer]):
            with watch(model, change=without(layer, head)):
                rows.append(whole - score())
        losses[layer] = torch.stack(rows)
    return losses
