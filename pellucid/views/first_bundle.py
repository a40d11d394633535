"""Traces of version 1, which were written until version 0.2 of this package: they are read, and no longer written.

The bytes: `PELLUCID`, version and length of the header as uint32, a JSON header, arrays padded to multiples of eight.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pellucid.config import from_json, parse_json
from pellucid.explain.trace import Map, SeenPicture, Stream, Trace
from pellucid.views.fitting import MOST_HEADER, AttentionHeader, build_layer, check_picture, expect

MAGIC = b"PELLUCID"
VERSION = 1
ALIGNED = 8  # bytes: header and arrays begin at multiples of it

FirstDType = Literal["float16", "float32", "uint8"]
NUMPY_DTYPES: dict[FirstDType, np.dtype] = {
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "uint8": np.dtype("u1"),
}


@dataclass(frozen=True)
class Array:
    """Where an array lies in the data, and what its numbers are to be multiplied by."""

    dtype: FirstDType
    shape: tuple[int, ...]
    offset: int
    length: int
    scale: float = 1.0


@dataclass(frozen=True)
class FirstLayerHeader(AttentionHeader):
    """A layer, its arrays by their places."""

    q: Array
    k: Array
    values: Array
    mask: Array | None


@dataclass(frozen=True)
class FirstMapHeader:
    """A map, its values by their place."""

    method: str
    target: str
    word: int | None
    values: Array


@dataclass(frozen=True)
class TokensHeader:
    """A row of tokens; the patches of a grid are its last."""

    name: str
    labels: tuple[str, ...]
    grid: tuple[int, int] | None


@dataclass(frozen=True)
class FirstTraceHeader:
    """Everything of a trace that is no array, and where the arrays are, in the order in which they lie."""

    model: str
    kind: Literal["classifier", "captioner"]
    image: Array
    tokens: tuple[TokensHeader, ...]
    layers: tuple[FirstLayerHeader, ...]
    answers: tuple[tuple[str, float], ...]
    words: tuple[tuple[str, float], ...]
    maps: tuple[FirstMapHeader, ...]

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """All of them with their names, first to last."""
        yield "image", self.image
        for i, layer in enumerate(self.layers):
            for part in ("q", "k", "values", "mask"):
                if (array := getattr(layer, part)) is not None:
                    yield f"layers[{i}].{part}", array
        for i, each in enumerate(self.maps):
            yield f"maps[{i}].values", each.values


def read_first(data: bytes) -> Trace:
    """The trace in bytes that begin as a trace of version 1; whoever made them, what is wrong is a ValueError."""
    start = len(MAGIC) + 8
    if len(data) < start:
        raise ValueError(f"the trace ends after {len(data)} bytes, before its header")
    version, length = struct.unpack("<II", data[len(MAGIC) : start])
    if version != VERSION:
        raise ValueError(f"the trace is of version {version}; this program reads versions 1 and 2")
    if length > MOST_HEADER or start + length > len(data) or (start + length) % ALIGNED:
        raise ValueError(
            f"the trace's header is said to take {length} bytes; expected at most {MOST_HEADER}, inside the file's "
            f"{len(data)}, and an end at a multiple of {ALIGNED}"
        )
    text = parse_json(data[start : start + length], "the trace's header", most_bytes=MOST_HEADER)
    try:
        header: FirstTraceHeader = from_json(FirstTraceHeader, text)
    except ValueError as error:
        raise ValueError(f"the trace's header can't be read: {error}") from None
    for each in header.tokens:
        rows, columns = each.grid or (1, 1)
        fits = each.grid is None or (min(rows, columns) > 0 and rows * columns <= len(each.labels))
        expect(fits, f"{each.name!r} has {len(each.labels)} tokens for {rows}×{columns} patches", "as many or more")
    return _trace(header, _arrays(header, data[start + length :]))


def _arrays(header: FirstTraceHeader, data: bytes) -> dict[str, Tensor]:
    """The arrays by their names. They lie without gaps or overlaps: a small file can't ask for a lot of memory."""
    tensors, end = {}, 0
    for name, array in header.arrays():
        expected = {"q": "float16", "k": "float16", "mask": "uint8", "image": "uint8"}.get(
            name.split(".")[-1], "float32"
        )
        count = math.prod(array.shape) if min(array.shape, default=0) >= 0 else -1
        place = (array.offset, array.length) == (end, count * NUMPY_DTYPES[array.dtype].itemsize)
        expect(
            place and array.dtype == expected and end + array.length <= len(data) and 0.0 < array.scale < math.inf,
            f"{name} of the trace is {array.dtype} of shape {array.shape}, {array.length} bytes at {array.offset}",
            f"{expected}, as many bytes as its shape takes, at {end}, inside {len(data)}",
        )
        numbers = np.frombuffer(data, NUMPY_DTYPES[array.dtype], count, array.offset).reshape(array.shape)
        tensors[name] = _tensor(name, array, numbers)
        end += array.length + -array.length % ALIGNED
    expect(end == len(data), f"the trace holds {len(data)} bytes of data", f"{end}")
    return tensors


def _tensor(name: str, array: Array, numbers: np.ndarray) -> Tensor:
    if array.dtype == "uint8":
        mask = name.endswith("mask")
        expect(not mask or numbers.max(initial=0) <= 1, f"{name} of the trace is no mask", "0 and 1")
        return torch.from_numpy(numbers.astype(bool if mask else np.uint8))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = (numbers.astype(np.float64) * array.scale).astype(np.float32)
    expect(bool(np.isfinite(wide).all()), f"{name} of the trace holds NaN or infinity", "finite numbers")
    return torch.from_numpy(wide)


def _trace(header: FirstTraceHeader, arrays: dict[str, Tensor]) -> Trace:
    """As version 2 says it: rows of tokens with a grid are patches, words are a text that was generated."""
    counts = {each.name: len(each.labels) for each in header.tokens}
    layers = []
    for i, layer in enumerate(header.layers):
        parts: dict[str, Tensor | None] = {part: arrays[f"layers[{i}].{part}"] for part in ("q", "k", "values")}
        parts["mask"] = arrays.get(f"layers[{i}].mask")
        said = {name: getattr(layer, name) for name in ("name", "queries", "keys", "causal")}
        layers.append(build_layer({**said, **parts, "beta": float(layer.beta)}, counts))
    check_picture("image", arrays["image"])
    for i, each in enumerate(header.maps):
        expect(arrays[f"maps[{i}].values"].ndim == 1, f"the map {each.method!r} has more axes than one", "one")
    return Trace(
        model=header.model,
        kind=header.kind,
        streams=tuple(map(_stream, header.tokens)),
        pictures=(SeenPicture("image", arrays["image"]),),
        layers=tuple(layers),
        answers=header.answers,
        words=header.words,
        maps=tuple(
            Map(each.method, each.target, each.word, arrays[f"maps[{i}].values"]) for i, each in enumerate(header.maps)
        ),
    )


def _stream(tokens: TokensHeader) -> Stream:
    if tokens.grid is not None:
        return Stream.patches(tokens.name, tokens.labels, tokens.grid)
    prompt = 1 if tokens.name == "words" and tokens.labels else None
    return Stream(tokens.name, "text" if prompt else "tokens", tokens.labels, prompt=prompt)
