"""A trace as one file (.pellucid): a JSON header and raw arrays, small enough to send, simple enough for any language.

docs/trace.md describes it byte by byte. Reading checks everything, so that nobody has to trust the file.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pellucid.config import from_json, one_line, parse_json, to_json
from pellucid.explain.trace import Layer, Map, Tokens, Trace
from pellucid.files import sync_named

MAGIC = b"PELLUCID"
VERSION = 1
SUFFIX = ".pellucid"
ALIGNED = 8  # bytes: header and arrays begin at multiples of it
MOST_HEADER = 2**26  # bytes
MOST_ROWS, MOST_LAYERS = 256, 4096  # of tokens; of attention
MOST_SAID = 300  # characters of what came, in a sentence

DType = Literal["float16", "float32", "uint8"]
NUMPY_DTYPES: dict[DType, np.dtype] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4"), "uint8": np.dtype("u1")}


@dataclass(frozen=True)
class Array:
    """Where an array lies in the data, and what its numbers are to be multiplied by."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    length: int
    scale: float = 1.0


@dataclass(frozen=True)
class LayerHeader:
    """A layer, its arrays by their places. beta is a number, or "inf" or "-inf" for hard attention."""

    name: str
    queries: str
    keys: str
    beta: float | Literal["inf", "-inf"]
    causal: bool
    q: Array
    k: Array
    values: Array
    mask: Array | None


@dataclass(frozen=True)
class MapHeader:
    """A map, its values by their place."""

    method: str
    target: str
    word: int | None
    values: Array


@dataclass(frozen=True)
class TokensHeader:
    """A row of tokens."""

    name: str
    labels: tuple[str, ...]
    grid: tuple[int, int] | None


@dataclass(frozen=True)
class TraceHeader:
    """Everything of a trace that is no array, and where the arrays are, in the order in which they lie."""

    model: str
    kind: Literal["classifier", "captioner"]
    image: Array
    tokens: tuple[TokensHeader, ...]
    layers: tuple[LayerHeader, ...]
    answers: tuple[tuple[str, float], ...]
    words: tuple[tuple[str, float], ...]
    maps: tuple[MapHeader, ...]

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """All of them with their names, first to last."""
        yield "image", self.image
        for i, layer in enumerate(self.layers):
            for part in ("q", "k", "values", "mask"):
                if (array := getattr(layer, part)) is not None:
                    yield f"layers[{i}].{part}", array
        for i, each in enumerate(self.maps):
            yield f"maps[{i}].values", each.values


def save_trace(trace: Trace, path: Path | str) -> None:
    """Write the trace to a file, whose name ends in .pellucid."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"a trace's file ends in {SUFFIX}; got {str(path)!r}")
    path.write_bytes(to_bytes(trace))
    sync_named(path)


def load_trace(path: Path | str) -> Trace:
    """Read a trace that `save_trace` wrote. ValueError if the file is anything else."""
    try:
        return from_bytes(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def to_bytes(trace: Trace) -> bytes:
    """The trace as the bytes of its file, q and k in half precision. The same trace gives the same bytes."""
    check_trace(trace)
    data = _Data()
    header = TraceHeader(
        model=trace.model,
        kind=trace.kind,
        image=data.put(trace.image, "uint8"),
        tokens=tuple(TokensHeader(each.name, each.labels, each.grid) for each in trace.tokens),
        layers=tuple(_layer_header(layer, data) for layer in trace.layers),
        answers=trace.answers,
        words=trace.words,
        maps=tuple(MapHeader(m.method, m.target, m.word, data.put(m.values, "float32")) for m in trace.maps),
    )
    text = json.dumps(to_json(header), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % ALIGNED)
    return MAGIC + struct.pack("<II", VERSION, len(text)) + text + b"".join(data.pieces)


def from_bytes(data: bytes) -> Trace:
    """The trace in these bytes. They may come from anybody: whatever is wrong with them is a ValueError."""
    start = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"the bytes begin with {data[:8]!r}; expected {MAGIC!r}, as a trace does")
    if len(data) < start:
        raise ValueError(f"the trace ends after {len(data)} bytes, before its header")
    version, length = struct.unpack("<II", data[len(MAGIC) : start])
    if version != VERSION:
        raise ValueError(f"the trace is of version {version}; this program reads version {VERSION}")
    if length > MOST_HEADER or start + length > len(data) or (start + length) % ALIGNED:
        raise ValueError(
            f"the trace's header is said to take {length} bytes; expected at most {MOST_HEADER}, inside the file's "
            f"{len(data)}, and an end at a multiple of {ALIGNED}"
        )
    header = _header(data[start : start + length])
    check_trace(header)
    return _trace(header, _arrays(header, data[start + length :]))


def check_trace(trace: Trace | TraceHeader) -> None:
    """Raise ValueError if the parts of the trace, or of its header, don't fit together."""
    shape = tuple(trace.image.shape)
    _expect(len(shape) == 3 and shape[0] in (1, 3) and min(shape) > 0, f"image is {shape}", "1 or 3 channels of pixels")
    _expect(len(trace.tokens) <= MOST_ROWS, f"there are {len(trace.tokens):,} rows of tokens", f"up to {MOST_ROWS}")
    _expect(len(trace.layers) <= MOST_LAYERS, f"there are {len(trace.layers):,} layers", f"up to {MOST_LAYERS:,}")
    counts = {each.name: len(each.labels) for each in trace.tokens}
    _expect(len(counts) == len(trace.tokens), "two rows of tokens have one name", "a name for each")
    for each in trace.tokens:
        rows, columns = each.grid or (1, 1)
        fits = each.grid is None or (min(rows, columns) > 0 and rows * columns <= len(each.labels))
        _expect(fits, f"{each.name!r} has {len(each.labels)} tokens for {rows}×{columns} patches", "as many or more")
    for layer in trace.layers:
        _check_layer(layer, counts)
    for each in trace.maps:
        of, tokens = f"the map {each.method!r} of {each.target!r}", counts.get("image")
        _expect(each.values.shape == (tokens,), f"{of} has shape {tuple(each.values.shape)}", f"({tokens},)")
        word = each.word is None or 0 <= each.word < len(trace.words)
        _expect(word, f"{of} is of word {each.word}", f"one of {len(trace.words)}")
    for name, number in (*trace.answers, *trace.words):
        _expect(math.isfinite(number), f"{name!r} has the number {number}", "a finite one")


def _check_layer(layer: Layer | LayerHeader, counts: dict[str, int]) -> None:
    of = f"layer {layer.name!r}"
    for name in (layer.queries, layer.keys):
        _expect(name in counts, f"{of} has tokens {name!r}", f"one of {', '.join(counts)}")
    _expect(not math.isnan(float(layer.beta)), f"{of} has β = NaN", "a number")
    shape = tuple(layer.q.shape)
    _expect(len(shape) == 3 and shape[0] * shape[2] > 0, f"q of {of} has shape {shape}", "(heads, queries, width)")
    (heads, _, width), n_queries, n_keys = shape, counts[layer.queries], counts[layer.keys]
    shapes = {"q": (heads, n_queries, width), "k": (heads, n_keys, width), "values": (heads, n_keys)}
    for part, expected in (shapes if layer.mask is None else shapes | {"mask": (n_queries, n_keys)}).items():
        came = tuple(getattr(layer, part).shape)
        _expect(came == expected, f"{part} of {of} has shape {came}", str(expected))


def _expect(right: bool, came: str, expected: str) -> None:
    if not right:
        raise ValueError(f"{one_line(came)[:MOST_SAID]}; expected {one_line(expected)[:MOST_SAID]}")


@dataclass
class _Data:
    """The arrays as they are laid down, one after the other."""

    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    def put(self, tensor: Tensor, dtype: DType) -> Array:
        _expect(bool(tensor.isfinite().all()), "an array of the trace holds NaN or infinity", "finite numbers")
        scale = half_scale(tensor) if dtype == "float16" else 1.0
        numbers = tensor.detach().cpu().double() / scale if dtype == "float16" else tensor.detach().cpu()
        raw = np.ascontiguousarray(numbers.numpy(), NUMPY_DTYPES[dtype]).tobytes()
        array = Array(dtype, tuple(tensor.shape), self.size, len(raw), scale)
        padding = bytes(-len(raw) % ALIGNED)
        self.pieces += [raw, padding]
        self.size += len(raw) + len(padding)
        return array


def half_scale(tensor: Tensor) -> float:
    """A power of two to divide by where half precision would overflow, or lose digits of the largest number.

    >>> half_scale(torch.tensor([3.0])), half_scale(torch.tensor([1e6])), half_scale(torch.tensor([1e-9]))
    (1.0, 524288.0, 9.313225746154785e-10)
    """
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0.0 or 2**-4 <= largest < 2**15:
        return 1.0
    return 2.0 ** max(math.frexp(largest)[1] - 1, -1000)


def _layer_header(layer: Layer, data: _Data) -> LayerHeader:
    beta = layer.beta if math.isfinite(layer.beta) else "inf" if layer.beta > 0 else "-inf"
    return LayerHeader(
        name=layer.name,
        queries=layer.queries,
        keys=layer.keys,
        beta=beta,
        causal=layer.causal,
        q=data.put(layer.q, "float16"),
        k=data.put(layer.k, "float16"),
        values=data.put(layer.values, "float32"),
        mask=None if layer.mask is None else data.put(layer.mask, "uint8"),
    )


def _header(text: bytes) -> TraceHeader:
    data = parse_json(text, "the trace's header", most_bytes=MOST_HEADER)
    try:
        return from_json(TraceHeader, data)
    except ValueError as error:
        raise ValueError(f"the trace's header can't be read: {error}") from None


def _arrays(header: TraceHeader, data: bytes) -> dict[str, Tensor]:
    """The arrays by their names. They lie without gaps or overlaps: a small file can't ask for a lot of memory."""
    tensors, end = {}, 0
    for name, array in header.arrays():
        expected = {"q": "float16", "k": "float16", "mask": "uint8", "image": "uint8"}.get(
            name.split(".")[-1], "float32"
        )
        count = math.prod(array.shape) if min(array.shape, default=0) >= 0 else -1
        place = (array.offset, array.length) == (end, count * NUMPY_DTYPES[array.dtype].itemsize)
        _expect(
            place and array.dtype == expected and end + array.length <= len(data) and 0.0 < array.scale < math.inf,
            f"{name} of the trace is {array.dtype} of shape {array.shape}, {array.length} bytes at {array.offset}",
            f"{expected}, as many bytes as its shape takes, at {end}, inside {len(data)}",
        )
        numbers = np.frombuffer(data, NUMPY_DTYPES[array.dtype], count, array.offset).reshape(array.shape)
        tensors[name] = _tensor(name, array, numbers)
        end += array.length + -array.length % ALIGNED
    _expect(end == len(data), f"the trace holds {len(data)} bytes of data", f"{end}")
    return tensors


def _tensor(name: str, array: Array, numbers: np.ndarray) -> Tensor:
    if array.dtype == "uint8":
        mask = name.endswith("mask")
        _expect(not mask or numbers.max(initial=0) <= 1, f"{name} of the trace is no mask", "0 and 1")
        return torch.from_numpy(numbers.astype(bool if mask else np.uint8))
    # Half precision is widened: sums of products are not for it.
    with np.errstate(over="ignore", invalid="ignore"):
        wide = (numbers.astype(np.float64) * array.scale).astype(np.float32)
    _expect(bool(np.isfinite(wide).all()), f"{name} of the trace holds NaN or infinity", "finite numbers")
    return torch.from_numpy(wide)


def _trace(header: TraceHeader, arrays: dict[str, Tensor]) -> Trace:
    layers = [
        Layer(
            name=layer.name,
            queries=layer.queries,
            keys=layer.keys,
            q=arrays[f"layers[{i}].q"],
            k=arrays[f"layers[{i}].k"],
            beta=float(layer.beta),
            causal=layer.causal,
            mask=arrays.get(f"layers[{i}].mask"),
            values=arrays[f"layers[{i}].values"],
        )
        for i, layer in enumerate(header.layers)
    ]
    return Trace(
        model=header.model,
        kind=header.kind,
        image=arrays["image"],
        tokens=tuple(Tokens(each.name, each.labels, each.grid) for each in header.tokens),
        layers=tuple(layers),
        answers=header.answers,
        words=header.words,
        maps=tuple(
            Map(each.method, each.target, each.word, arrays[f"maps[{i}].values"]) for i, each in enumerate(header.maps)
        ),
    )
