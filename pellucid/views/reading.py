"""What a trace holds, to be drawn: rows of its maps, from q and k; its image tokens and layers, by name or number."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from pellucid.explain.trace import Layer, Stream, Trace
from pellucid.ops import column_mass, masks


def image_of(trace: Trace) -> Stream:
    """The tokens that lie on a grid."""
    image = next((each for each in trace.streams if each.grid is not None), None)
    if image is None:
        raise ValueError("the trace has no tokens on a grid; draw_matrix and draw_graph show any tokens")
    return image


def grid_of(image: Stream) -> tuple[int, int]:
    """Rows and columns of its patches."""
    assert image.grid is not None
    return image.grid


def picture_of(trace: Trace, image: Stream) -> UInt8[Tensor, "c y x"]:
    """The picture that its patches are of."""
    if image.picture is None:
        raise ValueError(f"the trace keeps no picture of {image.name!r}; draw_matrix shows its tokens without")
    return trace.pictures[image.picture].pixels


def patches(image: Stream, values: Float[Tensor, "*some n"]) -> Float[Tensor, "*some rows columns"]:
    """The patches' part of values over all tokens, in rows and columns."""
    rows, columns = grid_of(image)
    return values[..., image.first : image.first + rows * columns].unflatten(-1, (rows, columns))


def said(trace: Trace) -> Stream | None:
    """The words that were generated, if any are."""
    return next((each for each in trace.streams if each.prompt is not None or each.name == "words"), None)


def onto_image(trace: Trace) -> list[Layer]:
    """Of a classifier the self-attention, of a captioner the cross-attention."""
    image, saying = image_of(trace).name, said(trace)
    across = [each for each in trace.layers if saying and (each.queries, each.keys) == (saying.name, image)]
    layers = across or [each for each in trace.layers if (each.queries, each.keys) == (image, image)]
    if not layers:
        raise ValueError(f"the trace of {trace.model or 'this model'} has no attention onto the image")
    return layers


def attention_map(layer: Layer, heads: list[int] | None = None) -> Float[Tensor, "h q k"]:
    """The whole map, of all heads or those chosen: for few tokens."""
    return layer.weights(heads)


def look_of(layer: Layer, query: int | None, count: int) -> Float[Tensor, "h k"]:
    """One query's row of every head, or the mean of the first `count`."""
    if query is not None:
        return layer.weights(queries=[query])[:, 0]
    if count == layer.q.shape[1]:
        return column_mass(layer.q[None], layer.k[None], **layer.how)[0, :, : layer.n_keys] / count
    return layer.weights(queries=range(count)).mean(1)


def check_head(layer: Layer, head: int) -> int:
    """The head, if there is one of this number."""
    if not 0 <= head < len(layer.q):
        raise ValueError(f"head is {head}; expected 0…{len(layer.q) - 1}")
    return head


def head_or_mean(layer: Layer, head: int | None) -> Float[Tensor, "q k"]:
    """The map of one head, or the mean of all."""
    return attention_map(layer).mean(0) if head is None else attention_map(layer, [check_head(layer, head)])[0]


def find_layer(trace: Trace, layer: int | str) -> Layer:
    """A layer by its number among all, or by its name."""
    names = [each.name for each in trace.layers]
    if isinstance(layer, str) and layer in names:
        return trace.layers[names.index(layer)]
    if isinstance(layer, int) and -len(names) <= layer < len(names):
        return trace.layers[layer]
    raise ValueError(f"there is no layer {layer!r}; expected 0…{len(names) - 1} or one of {', '.join(names)}")


def may_attend(layer: Layer) -> Bool[Tensor, "q k"]:
    """Which query may see which key, in one head or more."""
    shape = (layer.q.shape[1], layer.n_keys)
    if layer.windows is not None:
        open_ = layer.windows.step()(torch.zeros(1, 1, shape[0], layer.k.shape[1]), torch.arange(shape[0]))
        return (open_ > -math.inf).any(1)[0, :, : shape[1]]
    mask = torch.ones(shape, dtype=torch.bool) if layer.mask is None else layer.mask
    mask = mask.any(0) if mask.ndim == 3 else mask
    return mask & masks.causal(*shape) if layer.causal else mask


def token_index(labels: Sequence[str], query: int | str) -> int:
    """A token by its number or its label; the first of those that are called so."""
    if isinstance(query, str) and query in labels:
        return list(labels).index(query)
    if isinstance(query, int) and -len(labels) <= query < len(labels):
        return query % len(labels)
    some = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")
    raise ValueError(f"there is no token {query!r}; expected 0…{len(labels) - 1} or one of {some}")
