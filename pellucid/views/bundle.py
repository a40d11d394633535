"""A trace as one file (.pellucid): safetensors, whose metadata say what the tensors are. Any language opens it.

docs/trace.md describes it field by field. Reading checks everything, so that nobody has to trust the file. The tensors
lie in the order in which a page wants them: pictures, layer by layer, maps.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pellucid.config import from_json, parse_json, to_json
from pellucid.explain.layers import Windows
from pellucid.explain.trace import Layer, Likely, Map, SeenPicture, Stream, Trace
from pellucid.files import sync_named
from pellucid.views.first_bundle import MAGIC, read_first
from pellucid.views.fitting import MOST_HEADER, AttentionHeader, build_layer, check_picture, check_trace, expect

FORMAT, VERSION = "pellucid-trace", "2"
SUFFIX = ".pellucid"
ALIGNED = 8  # bytes: the data begin at a multiple of it

DType = Literal["F16", "F32", "I32", "U8"]
NUMPY_DTYPES: dict[DType, np.dtype] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}


@dataclass(frozen=True)
class PictureHeader:
    """A picture and its tensor's name."""

    name: str
    tensor: str


@dataclass(frozen=True)
class WindowsHeader:
    """The windows of a layer, their tensors by their names."""

    places: str
    kinds: str
    bias: str | None = None
    mask: str | None = None
    bias_scale: float = 1.0


@dataclass(frozen=True)
class LayerHeader(AttentionHeader):
    """A layer, its tensors by their names."""

    heads: int
    q: str
    k: str
    values: str
    softcap: float | None = None
    bias: str | None = None
    sinks: str | None = None
    mask: str | None = None
    q_scale: float = 1.0
    k_scale: float = 1.0
    bias_scale: float = 1.0
    windows: WindowsHeader | None = None


@dataclass(frozen=True)
class MapHeader:
    """A map and its tensor's name."""

    method: str
    target: str
    stream: str
    word: int | None
    tensor: str


@dataclass(frozen=True)
class TraceHeader:
    """Everything of a trace that is no tensor."""

    model: str
    kind: str
    streams: tuple[Stream, ...]
    pictures: tuple[PictureHeader, ...]
    layers: tuple[LayerHeader, ...]
    answers: tuple[tuple[str, float], ...]
    steps: tuple[Likely, ...]
    words: tuple[tuple[str, float], ...]
    maps: tuple[MapHeader, ...]
    missed: tuple[tuple[str, str], ...]

    def tensors(self) -> dict[str, DType]:
        """Their names and what their numbers are, in the order in which they lie."""
        named: dict[str, DType] = {each.tensor: "U8" for each in self.pictures}
        for layer in self.layers:
            names = layer.q, layer.k, layer.values, layer.bias, layer.sinks, layer.mask
            dtypes: tuple[DType, ...] = ("F16", "F16", "F32", "F16", "F32", "U8")
            if (windows := layer.windows) is not None:
                names += windows.places, windows.kinds, windows.bias, windows.mask
                dtypes += "I32", "I32", "F16", "U8"
            for name, dtype in zip(names, dtypes, strict=True):
                if name is not None:
                    expect(named.setdefault(name, dtype) == dtype, f"the tensor {name!r} is {named[name]}", dtype)
        for each in self.maps:
            expect(named.setdefault(each.tensor, "F32") == "F32", f"the tensor {each.tensor!r} is no map", "F32")
        return named


@dataclass(frozen=True)
class Entry:
    """A tensor, as safetensors describes it."""

    dtype: DType
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def save_trace(trace: Trace, path: Path | str) -> None:
    """Write the trace to a file, whose name ends in .pellucid."""
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"a trace's file ends in {SUFFIX}; got {str(path)!r}")
    path.write_bytes(to_bytes(trace))
    sync_named(path)


def load_trace(path: Path | str) -> Trace:
    """Read a trace that `save_trace` wrote, of version 1 or 2. ValueError if the file is anything else."""
    try:
        return from_bytes(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# Writing


def to_bytes(trace: Trace) -> bytes:
    """The trace as the bytes of its file, q and k in half precision. The same trace gives the same bytes."""
    check_trace(trace)
    data = _Data()
    header = TraceHeader(
        model=trace.model,
        kind=trace.kind,
        streams=trace.streams,
        pictures=tuple(
            PictureHeader(each.name, data.put(f"pictures.{i}", each.pixels, "U8"))
            for i, each in enumerate(trace.pictures)
        ),
        layers=tuple(_layer_header(f"layers.{i}", layer, data) for i, layer in enumerate(trace.layers)),
        answers=trace.answers,
        steps=trace.steps,
        words=trace.words,
        maps=tuple(
            MapHeader(m.method, m.target, m.stream, m.word, data.put(f"maps.{i}", m.values, "F32"))
            for i, m in enumerate(trace.maps)
        ),
        missed=trace.missed,
    )
    metadata = {"format": FORMAT, "version": VERSION, "trace": _dump(to_json(header))}
    text = _dump({"__metadata__": metadata, **{name: to_json(entry) for name, entry in data.entries.items()}}).encode()
    text += b" " * (-len(text) % ALIGNED)
    return b"".join([struct.pack("<Q", len(text)), text, *data.pieces])


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass
class _Data:
    """The tensors as they are laid down, one after the other."""

    entries: dict[str, Entry] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    known: dict[tuple[str, bytes], str] = field(default_factory=dict)
    size: int = 0

    def put(self, name: str, tensor: Tensor, dtype: DType, scale: float = 1.0) -> str:
        expect(bool(tensor.isfinite().all()), f"{name} of the trace holds NaN or infinity", "finite numbers")
        tensor = tensor.detach().cpu()
        numbers = (tensor.double() / scale if scale != 1.0 else tensor).numpy()
        return self.lay(name, np.ascontiguousarray(numbers, NUMPY_DTYPES[dtype]), dtype)

    def lay(self, name: str, numbers: np.ndarray, dtype: DType) -> str:
        raw = numbers.tobytes()
        self.entries[name] = Entry(dtype, numbers.shape, (self.size, self.size + len(raw)))
        self.pieces.append(raw)
        self.size += len(raw)
        return name

    def share(self, name: str, numbers: np.ndarray, dtype: DType) -> str:
        """The same numbers are laid down once: masks and biases are often those of all layers."""
        key = (f"{dtype}{numbers.shape}", numbers.tobytes())
        if key not in self.known:
            self.known[key] = self.lay(name, numbers, dtype)
        return self.known[key]


def half_scale(tensor: Tensor) -> float:
    """A power of two to divide by where half precision would overflow, or lose digits of the largest number.

    >>> half_scale(torch.tensor([3.0])), half_scale(torch.tensor([1e6])), half_scale(torch.tensor([1e-9]))
    (1.0, 524288.0, 9.313225746154785e-10)
    """
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest == 0.0 or 2**-4 <= largest < 2**15:
        return 1.0
    return 2.0 ** max(math.frexp(largest)[1] - 1, -1000) if math.isfinite(largest) else 1.0


def _layer_header(name: str, layer: Layer, data: _Data) -> LayerHeader:
    scales = {part: half_scale(getattr(layer, part)) for part in ("q", "k")}
    placed = {part: data.put(f"{name}.{part}", getattr(layer, part), "F16", scales[part]) for part in ("q", "k")}
    values = data.put(f"{name}.values", layer.values, "F32")
    bias, bias_scale = _lay_bias(f"{name}.bias", layer.bias, data)
    sinks = None if layer.sinks is None else data.put(f"{name}.sinks", layer.sinks, "F32")
    mask = _lay_mask(f"{name}.mask", layer.mask, data)
    return LayerHeader(
        name=layer.name,
        queries=layer.queries,
        keys=layer.keys,
        beta=layer.beta if math.isfinite(layer.beta) else "inf" if layer.beta > 0 else "-inf",
        causal=layer.causal,
        heads=len(layer.q),
        values=values,
        softcap=layer.softcap,
        bias=bias,
        sinks=sinks,
        mask=mask,
        q_scale=scales["q"],
        k_scale=scales["k"],
        bias_scale=bias_scale,
        windows=None if layer.windows is None else _windows_header(f"{name}.windows", layer.windows, data),
        **placed,
    )


def _windows_header(name: str, windows: Windows, data: _Data) -> WindowsHeader:
    places, kinds = (
        data.share(f"{name}.{part}", getattr(windows, part).numpy().astype(NUMPY_DTYPES["I32"]), "I32")
        for part in ("places", "kinds")
    )
    bias, bias_scale = _lay_bias(f"{name}.bias", windows.bias, data)
    return WindowsHeader(places, kinds, bias, _lay_mask(f"{name}.mask", windows.mask, data), bias_scale)


def _lay_bias(name: str, bias: Tensor | None, data: _Data) -> tuple[str | None, float]:
    """The name of its tensor, in half precision, and what that is to be multiplied by."""
    if bias is None:
        return None, 1.0
    expect(bool(bias.isfinite().all()), f"{name} of the trace holds NaN or infinity", "finite numbers")
    scale = half_scale(bias)
    return data.share(name, (_with_heads(bias).double() / scale).numpy().astype(NUMPY_DTYPES["F16"]), "F16"), scale


def _lay_mask(name: str, mask: Tensor | None, data: _Data) -> str | None:
    """The name of its tensor, a bit for each key."""
    if mask is None:
        return None
    return data.share(name, np.packbits(_with_heads(mask).numpy(), axis=-1, bitorder="little"), "U8")


def _with_heads(x: Tensor) -> Tensor:
    return (x[None] if x.ndim == 2 else x).detach().cpu()


# Reading


def from_bytes(data: bytes) -> Trace:
    """The trace in these bytes. They may come from anybody: whatever is wrong with them is a ValueError."""
    if data[: len(MAGIC)] == MAGIC:
        trace = read_first(data)
    else:
        entries, header, start = _read_header(data)
        trace = _trace(header, _tensors(header, entries, memoryview(data)[start:]))
    check_trace(trace)
    return trace


def _read_header(data: bytes) -> tuple[dict[str, Entry], TraceHeader, int]:
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else -1
    if not 2 <= length <= MOST_HEADER or 8 + length > len(data):
        raise ValueError(
            f"the bytes begin with {data[:8]!r}; expected {MAGIC!r} or the length of a header of safetensors that lies "
            f"inside the file's {len(data)} bytes"
        )
    listed = parse_json(data[8 : 8 + length], "the trace's header", most_bytes=MOST_HEADER)
    metadata = listed.pop("__metadata__", None) if isinstance(listed, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(f"the file is no trace: its metadata don't say that their format is {FORMAT!r}")
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"the trace is of version {metadata.get('version')!r:.80}; this program reads versions 1 and 2"
        )
    text = metadata.get("trace", b"")
    expect(isinstance(text, str) and len(metadata) == 3, "the trace's metadata are others", "format, version and trace")
    try:
        entries = {name: from_json(Entry, entry) for name, entry in listed.items()}
        return entries, from_json(TraceHeader, parse_json(text, "the trace", most_bytes=MOST_HEADER)), 8 + length
    except ValueError as error:
        raise ValueError(f"the trace's header can't be read: {error}") from None


def _tensors(header: TraceHeader, entries: Mapping[str, Entry], data: memoryview) -> dict[str, Tensor]:
    """The tensors by their names. They lie without gaps or overlaps: a small file can't ask for a lot of memory."""
    named, tensors, end = header.tensors(), {}, 0
    extra = set(entries) - set(named)
    expect(not extra, f"the file holds {len(extra)} tensors that the trace doesn't name", "none")
    for name, dtype in named.items():
        expect(name in entries, f"the file has no tensor {name!r}", "each that the trace names")
        entry = entries[name]
        begin, stop = entry.data_offsets
        count = math.prod(entry.shape) if min(entry.shape, default=0) >= 0 else -1
        place = (begin, stop) == (end, end + count * NUMPY_DTYPES[dtype].itemsize)
        expect(
            place and entry.dtype == dtype and count >= 0 and stop <= len(data),
            f"{name} of the trace is {entry.dtype} of shape {entry.shape} at {begin}…{stop}",
            f"{dtype}, as many bytes as its shape takes, at {end}, inside {len(data)}",
        )
        numbers = np.frombuffer(data, NUMPY_DTYPES[dtype], count, begin).reshape(entry.shape)
        tensors[name] = torch.from_numpy(numbers.copy())
        end = stop
    expect(end == len(data), f"the trace holds {len(data)} bytes of data", f"{end}")
    return tensors


def _trace(header: TraceHeader, tensors: Mapping[str, Tensor]) -> Trace:
    counts = {each.name: len(each.labels) for each in header.streams}
    for each in header.pictures:
        check_picture(each.name, tensors[each.tensor])
    for each in header.maps:
        expect(tensors[each.tensor].ndim == 1, f"the map {each.method!r} has more axes than one", "one")
    return Trace(
        model=header.model,
        kind=header.kind,
        streams=header.streams,
        pictures=tuple(SeenPicture(each.name, tensors[each.tensor]) for each in header.pictures),
        layers=tuple(_layer(layer, tensors, counts) for layer in header.layers),
        answers=header.answers,
        words=header.words,
        maps=tuple(
            Map(each.method, each.target, each.word, _widen(each.tensor, tensors, 1.0), each.stream)
            for each in header.maps
        ),
        steps=header.steps,
        missed=header.missed,
    )


def _layer(layer: LayerHeader, tensors: Mapping[str, Tensor], counts: Mapping[str, int]) -> Layer:
    q = _widen(layer.q, tensors, layer.q_scale)
    expect(q.ndim == 3 and len(q) == layer.heads, f"layer {layer.name!r} says {layer.heads} heads", str(len(q)))
    parts: dict[str, Any] = {name: getattr(layer, name) for name in ("name", "queries", "keys", "causal", "softcap")}
    parts |= {"q": q, "k": _widen(layer.k, tensors, layer.k_scale), "beta": float(layer.beta)}
    parts["values"] = _widen(layer.values, tensors, 1.0)
    parts["mask"] = _unpack(layer.mask, tensors, 3, counts.get(layer.keys, 0))
    parts["bias"] = None if layer.bias is None else _widen(layer.bias, tensors, layer.bias_scale)
    parts["sinks"] = None if layer.sinks is None else _widen(layer.sinks, tensors, 1.0)
    parts["windows"] = None if layer.windows is None else _windows(layer.windows, tensors)
    return build_layer(parts, counts)


def _windows(windows: WindowsHeader, tensors: Mapping[str, Tensor]) -> SimpleNamespace:
    """Their parts, not yet known to fit together."""
    places, kinds = tensors[windows.places].long(), tensors[windows.kinds].long()
    mask = _unpack(windows.mask, tensors, 4, places.shape[-1] if places.ndim else 0)
    bias = None if windows.bias is None else _widen(windows.bias, tensors, windows.bias_scale)
    return SimpleNamespace(places=places, kinds=kinds, mask=mask, bias=bias)


def _unpack(name: str | None, tensors: Mapping[str, Tensor], axes: int, n_keys: int) -> Tensor | None:
    if name is None:
        return None
    bits = tensors[name]
    right = bits.ndim == axes and bits.shape[-1] == (n_keys + 7) // 8
    expect(right, f"{name} of the trace has shape {tuple(bits.shape)}", f"a bit for each of {n_keys} keys")
    mask = np.unpackbits(bits.numpy(), axis=-1, bitorder="little")
    expect(not mask[..., n_keys:].any(), f"{name} of the trace has bits behind its last key", "zeros")
    return torch.from_numpy(mask[..., :n_keys].astype(bool))


def _widen(name: str, tensors: Mapping[str, Tensor], scale: float) -> Tensor:
    """In float32: sums of products are not for half precision."""
    expect(0.0 < scale < math.inf, f"the scale of {name} is {scale}", "a positive number")
    wide = (tensors[name].double() * scale).float()
    expect(bool(wide.isfinite().all()), f"{name} of the trace holds NaN or infinity", "finite numbers")
    return wide
