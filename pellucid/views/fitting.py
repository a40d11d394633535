"""Whether the parts of a trace fit together: asked before one is written, and of every one that is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.config import one_line
from pellucid.explain.layers import Windows
from pellucid.explain.trace import Layer, Stream, Trace

MOST_HEADER = 2**26  # bytes
MOST_STREAMS, MOST_LAYERS = 256, 4096
MOST_SAID = 300  # characters of what came, in a sentence


@dataclass(frozen=True)
class AttentionHeader:
    """What every version says of a layer. beta is a number, or "inf" or "-inf" for hard attention."""

    name: str
    queries: str
    keys: str
    beta: float | Literal["inf", "-inf"]
    causal: bool


def expect(right: bool, came: str, expected: str) -> None:
    """Or a sentence."""
    if not right:
        raise ValueError(f"{one_line(came)[:MOST_SAID]}; expected {one_line(expected)[:MOST_SAID]}")


def check_trace(trace: Trace) -> None:
    """Raise ValueError if the parts of the trace don't fit together."""
    expect(len(trace.streams) <= MOST_STREAMS, f"there are {len(trace.streams):,} streams", f"up to {MOST_STREAMS}")
    expect(len(trace.layers) <= MOST_LAYERS, f"there are {len(trace.layers):,} layers", f"up to {MOST_LAYERS:,}")
    for each in trace.pictures:
        check_picture(each.name, each.pixels)
    counts = {each.name: len(each.labels) for each in trace.streams}
    expect(len(counts) == len(trace.streams), "two streams have one name", "a name for each")
    for each in trace.streams:
        _check_stream(each, len(trace.pictures))
    for layer in trace.layers:
        check_layer(layer, counts)
    for each in trace.maps:
        of = f"the map {each.method!r} of {each.target!r}"
        expect(each.stream in counts, f"{of} is of the stream {each.stream!r}", f"one of {', '.join(counts)}")
        check_shape(of, each.values, (counts[each.stream],))
        word = each.word is None or 0 <= each.word < len(trace.words)
        expect(word, f"{of} is of word {each.word}", f"one of {len(trace.words)}")
    _check_said(trace, counts)


def _check_said(trace: Trace, counts: Mapping[str, int]) -> None:
    said = [stream for stream in trace.streams if stream.prompt is not None]
    expect(len(said) <= 1, f"{len(said)} streams have a prompt", "one at most")
    for step in trace.steps:
        right = step.stream in counts and 0 <= step.position < counts[step.stream]
        expect(right, f"a step stands at {step.position} of {step.stream!r}", "a token of one of the streams")
    for name, number in (*trace.answers, *trace.words, *(pair for step in trace.steps for pair in step.answers)):
        expect(math.isfinite(number), f"{name!r} has the number {number}", "a finite one")


def _check_stream(stream: Stream, pictures: int) -> None:
    of, tokens = f"{stream.name!r}", len(stream.labels)
    if stream.grid is not None:
        rows, columns = stream.grid
        expect(
            min(rows, columns) > 0 and stream.first >= 0 and stream.first + rows * columns <= tokens,
            f"{of} has {tokens} tokens for {rows}×{columns} patches from {stream.first} on",
            "as many or more",
        )
    elif stream.first:
        expect(False, f"{of} begins its patches at {stream.first}", "a grid of them, or 0")
    right = stream.picture is None or 0 <= stream.picture < pictures
    expect(right, f"{of} is of picture {stream.picture}", f"one of {pictures}")
    right = stream.seconds is None or 0 < stream.seconds < math.inf
    expect(right, f"{of} has frames of {stream.seconds} seconds", "some time")
    right = stream.prompt is None or 0 < stream.prompt <= tokens
    expect(right, f"{of} has a prompt of {stream.prompt}", f"1…{tokens} tokens")
    right = all(0 <= place < tokens for place in stream.special)
    expect(right, f"{of} has special tokens elsewhere", f"places in 0…{tokens - 1}")


def check_picture(name: str, pixels: Tensor) -> None:
    shape = tuple(pixels.shape)
    right = len(shape) == 3 and shape[0] in (1, 3) and min(shape) > 0
    expect(right, f"the picture {name!r} is {shape}", "1 or 3 channels of pixels")


def check_shape(of: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    expect(tuple(tensor.shape) == shape, f"{of} has shape {tuple(tensor.shape)}", str(shape))


def build_layer(parts: dict[str, Any], counts: Mapping[str, int]) -> Layer:
    """A layer of parts that were read, if they fit together."""
    check_layer(SimpleNamespace(**{"bias": None, "softcap": None, "sinks": None, "windows": None, **parts}), counts)
    windows = parts.get("windows")
    return Layer(**{**parts, "windows": None if windows is None else Windows(**vars(windows))})


def check_layer(layer: Layer | SimpleNamespace, counts: Mapping[str, int]) -> None:
    of = f"layer {layer.name!r}"
    for name in (layer.queries, layer.keys):
        expect(name in counts, f"{of} has tokens {name!r}", f"one of {', '.join(counts)}")
    expect(not math.isnan(float(layer.beta)), f"{of} has β = NaN", "a number")
    right = layer.softcap is None or 0 < layer.softcap < math.inf
    expect(right, f"{of} has the softcap {layer.softcap}", "a positive number")
    shape, groups = tuple(layer.q.shape), tuple(layer.k.shape)[:1]
    expect(len(shape) == 3 and shape[0] * shape[2] > 0, f"q of {of} has shape {shape}", "(heads, queries, width)")
    (heads, _, width), n_queries, n_keys = shape, counts[layer.queries], counts[layer.keys]
    group = groups[0] if groups and 0 < groups[0] <= heads and heads % groups[0] == 0 else heads
    held = n_keys if layer.windows is None else _count_held(of, layer, layer.windows, n_queries)
    shapes = {"q": (heads, n_queries, width), "k": (group, held, width), "values": (heads, held)}
    for part, shape in shapes.items():
        check_shape(f"{part} of {of}", getattr(layer, part), shape)
    for part in ("mask", "bias"):
        beside: Tensor | None = getattr(layer, part)
        if beside is not None:
            came, whole = tuple(beside.shape), (n_queries, n_keys)
            expect(came in (whole, (1, *whole), (heads, *whole)), f"{part} of {of} has shape {came}", f"(1, *{whole})")
    if layer.sinks is not None:
        check_shape(f"sinks of {of}", layer.sinks, (heads,))


def _count_held(of: str, layer: Layer | SimpleNamespace, windows: Windows | SimpleNamespace, tokens: int) -> int:
    """How many keys a layer within windows holds, padding among them, if its windows make sense."""
    alone = layer.queries == layer.keys and not layer.causal and layer.mask is None and layer.bias is None
    expect(alone, f"{of} has windows", "no mask, no bias and no other keys beside them")
    places, kinds = windows.places, windows.kinds
    held = places.numel()
    each = places.ndim == 2 and held >= tokens and bool((places.flatten().sort().values == torch.arange(held)).all())
    expect(each, f"the windows of {of} have shape {tuple(places.shape)}", f"{tokens} tokens or more, each in one place")
    many, size = places.shape
    check_shape(f"the windows' kinds of {of}", kinds, (many,))
    parts = [part for part in (windows.mask, windows.bias) if part is not None]
    most = min((len(part) for part in parts), default=1)
    expect(many > 0 and 0 <= int(kinds.min()) <= int(kinds.max()) < most, f"{of} has other kinds", f"up to {most}")
    for part in parts:
        came = tuple(part.shape)
        right = came in ((most, 1, size, size), (most, len(layer.q), size, size))
        expect(right, f"a window's mask or bias of {of} has shape {came}", f"({most}, 1, {size}, {size})")
    return held
