"""Traces as files: nothing lost but half the digits of q and k, small, and safe to read from anybody."""

import contextlib
import itertools
import json
import math
import re
import struct
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pellucid.explain.layers import Windows
from pellucid.explain.trace import Layer, Likely, Map, SeenPicture, Stream, Trace
from pellucid.ops import weights
from pellucid.views.bundle import from_bytes, load_trace, save_trace, to_bytes

WORDS = (("a", -0.5), ("dög", -1.25))
TWO = Stream("words", "text", ("a", "b"))
FIRST = Path(__file__).parent / "traces-1" / "everything.pellucid"


def make(n: int = 5, heads: int = 2, width: int = 4, **layer: Any) -> Trace:
    """A small trace with everything in it."""
    image = Stream.patches("image", ("class", *(f"patch 0,{i}" for i in range(n - 1))), (1, n - 1))
    words = Stream("words", "text", ("<start>", "a"), special=(0,), prompt=1)
    sound = Stream("frames", "frames", ("0.00 s", "0.02 s", "0.04 s"), seconds=0.02)
    q, k, w = torch.randn(heads, n, width), torch.randn(heads, n, width), torch.randn(heads, 2, width)
    own = {"name": "own", "queries": "image", "keys": "image", "q": q, "k": k, "beta": 0.5, "causal": False}
    own |= {"mask": torch.rand(n, n) > 0.5, "values": torch.rand(heads, n)}
    cross = Layer("cross", "words", "image", w, k * 2, math.inf, True, None, torch.rand(heads, n))
    heard = Layer(
        *("heard", "frames", "frames", torch.randn(heads, 3, width), torch.randn(1, 3, width), -0.5, False),
        *(torch.rand(heads, 3, 3) > 0.5, torch.rand(heads, 3), torch.randn(heads, 3, 3).half().float(), 30.0),
        torch.randn(heads),
    )
    windows = Windows(
        torch.tensor([[2, 3], [0, 1]]), torch.tensor([1, 0]), torch.rand(2, 1, 2, 2) > 0.2, torch.ones(2, 1, 2, 2)
    )
    within = replace(
        heard, name="within", k=torch.randn(1, 4, width), values=torch.rand(heads, 4), mask=None, bias=None
    )
    within = replace(within, windows=windows)
    maps = (Map("rollout", "a", 0, torch.rand(n)), Map("gradient", "dög", None, torch.rand(3), "frames"))
    picture = torch.randint(256, (3, 4, 4 * (n - 1)), dtype=torch.uint8)
    return Trace(
        *("model", "captioner", (image, words, sound), (SeenPicture("image", picture),)),
        *((Layer(**own | layer), cross, heard, within), (("cat", 0.75),), WORDS, maps),
        *((Likely("words", 1, (("dog", 0.5), ("cat", 0.25))),), (("odd", "it mixes its heads"),)),
    )


def large() -> Trace:
    """As large as a ViT-B/16: 12 layers of 12 heads, 197 tokens, a picture of 224 pixels, every layer masked."""
    tokens = Stream.patches("image", ("class", *(f"patch {i // 14},{i % 14}" for i in range(196))), (14, 14))
    layers = [
        Layer(
            f"blocks.{i}.attention",
            "image",
            "image",
            torch.randn(12, 197, 64),
            torch.randn(12, 197, 64),
            0.125,
            False,
            torch.ones(197, 197, dtype=torch.bool),
            torch.rand(12, 197),
        )
        for i in range(12)
    ]
    image = torch.randint(256, (3, 224, 224), dtype=torch.uint8)
    return Trace("b16", "classifier", (tokens,), (SeenPicture("image", image),), tuple(layers), (("cat", 0.9),), (), ())


def assert_same(a: Any, b: Any) -> None:
    """Equal in every field; q and k within half precision."""
    assert type(a) is type(b)
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if is_dataclass(x):
            assert_same(x, y)
        elif isinstance(x, Tensor):
            if field.name == "mask" and x.ndim == 2:
                x = x[None]
            if field.name in ("q", "k"):
                assert_close(y, x, rtol=2**-11, atol=2**-24 * float(x.abs().max()))
            else:
                assert_close(y, x, rtol=0, atol=0)
        elif field.name in ("streams", "pictures", "layers", "maps"):
            assert len(x) == len(y)
            for mine, theirs in zip(x, y, strict=True):
                assert_same(mine, theirs)
        else:
            assert x == y, field.name


def test_round_trip(tmp_path):
    trace = make()
    assert_same(trace, from_bytes(to_bytes(trace)))
    save_trace(trace, tmp_path / "a.pellucid")
    assert (tmp_path / "a.pellucid").read_bytes() == to_bytes(trace)
    assert_same(load_trace(tmp_path / "a.pellucid"), from_bytes(to_bytes(trace)))
    with pytest.raises(ValueError, match=r"ends in \.pellucid"):
        save_trace(trace, tmp_path / "a.bin")


def test_what_was_read_is_written_as_the_same_bytes():
    data = to_bytes(make())
    assert to_bytes(from_bytes(data)) == data


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_numbers_beyond_half_precision_are_scaled(factor):
    q, k = torch.randn(2, 5, 4) * factor, torch.randn(2, 5, 4) / factor
    read = from_bytes(to_bytes(make(q=q, k=k))).layers[0]
    assert_close(read.q / factor, q / factor, rtol=2**-11, atol=1e-6)
    assert_close(read.q @ read.k.mT, q @ k.mT, rtol=0, atol=0.02)


def test_a_large_model_fits_into_ten_megabytes():
    data = to_bytes(large())
    assert len(data) <= 10_000_000
    assert len(from_bytes(data).layers) == 12


def test_layout_is_as_documented():
    """Other tools open it: it is safetensors, and what lies where is said in the metadata."""
    trace = make()
    data = to_bytes(trace)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    said = json.loads(metadata["trace"])
    assert (metadata["format"], metadata["version"], (8 + length) % 8) == ("pellucid-trace", "2", 0)
    assert list(header) == [
        "pictures.0",
        *(f"layers.0.{part}" for part in ("q", "k", "values", "mask")),
        *(f"layers.1.{part}" for part in ("q", "k", "values")),
        *(f"layers.2.{part}" for part in ("q", "k", "values", "bias", "sinks", "mask")),
        *(f"layers.3.{part}" for part in ("q", "k", "values", "sinks")),
        *(f"layers.3.windows.{part}" for part in ("places", "kinds", "bias", "mask")),
        *("maps.0", "maps.1"),
    ]
    ends = [entry["data_offsets"] for entry in header.values()]
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    opened = safetensors.torch.load(data)
    assert_close(opened["layers.1.k"].float() * said["layers"][1]["k_scale"], trace.layers[1].k, rtol=2**-11, atol=1e-6)
    assert said["layers"][1]["beta"] == "inf"
    assert said["words"] == [["a", -0.5], ["dög", -1.25]]
    bits = np.unpackbits(opened["layers.0.mask"].numpy(), axis=-1, bitorder="little")[..., :5]
    assert torch.equal(torch.from_numpy(bits).bool()[0], trace.layers[0].mask)


def test_what_all_layers_share_lies_there_once():
    trace = make()
    twin = replace(trace.layers[2], name="again")
    one, two = (to_bytes(replace(trace, layers=(*trace.layers[:2], *layers))) for layers in ([twin], [twin, twin]))
    (length,) = struct.unpack("<Q", two[:8])
    header = json.loads(two[8 : 8 + length])
    assert "layers.3.q" in header
    assert not {"layers.3.bias", "layers.3.mask"} & set(header)
    assert_same(from_bytes(two).layers[3], from_bytes(one).layers[2])


def test_heads_that_share_keys_keep_few_of_them():
    k = torch.randn(1, 5, 4)
    grouped, spread = (from_bytes(to_bytes(make_once(k=x))) for x in (k, k.expand(2, 5, 4)))
    assert grouped.layers[0].k.shape == (1, 5, 4)
    rows = [weights(each.layers[0].q[None], each.layers[0].k[None], **each.layers[0].how) for each in (grouped, spread)]
    assert_close(*rows)


def test_the_first_version_still_opens():
    """Its bytes were written by the program that wrote version 1; its numbers are those of then."""
    data = FIRST.read_bytes()
    found = from_bytes(data)
    torch.manual_seed(0)
    q = torch.randn(2, 5, 4)
    assert_close(found.layers[0].q, q, rtol=2**-11, atol=1e-6)
    assert [(each.name, each.kind, each.grid, each.prompt) for each in found.streams] == [
        ("image", "patches", (1, 4), None),
        ("words", "text", None, 1),
    ]
    assert (found.streams[0].first, found.pictures[0].pixels.shape, found.words) == (1, (3, 4, 16), WORDS)
    assert (found.layers[0].mask.shape, found.layers[1].beta, found.maps[0].stream) == ((5, 5), math.inf, "image")
    assert_same(from_bytes(to_bytes(found)), from_bytes(to_bytes(from_bytes(to_bytes(found)))))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": torch.full((2, 5, 4), math.nan)}, "NaN or infinity"),
        ({"beta": math.nan}, "β = NaN"),
        ({"keys": "sounds"}, "tokens 'sounds'; expected one of image, words, frames"),
        ({"queries": "words"}, r"expected \(2, 2, 4\)"),
    ],
)
def test_a_trace_that_does_not_fit_together_is_not_written(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_bytes(make(**change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"streams": (Stream.patches("image", ("a",) * 5, (2, 3)), TWO)}, "for 2×3 patches"),
        ({"streams": (Stream("image", "patches", ("a",) * 5), TWO, TWO)}, "one name"),
        ({"streams": (Stream("image", "patches", ("a",) * 5, picture=1), TWO)}, "of picture 1; expected one of 1"),
        ({"streams": (Stream("image", "text", ("a",) * 5, prompt=6), TWO)}, "a prompt of 6"),
        ({"streams": (Stream("image", "text", ("a",) * 5, special=(5,)), TWO)}, "special tokens elsewhere"),
        ({"streams": (Stream("image", "frames", ("a",) * 5, seconds=0.0), TWO)}, "expected some time"),
        ({"pictures": (SeenPicture("image", torch.zeros(2, 4, 4, dtype=torch.uint8)),)}, "1 or 3 channels"),
        ({"words": (("a", -math.inf),)}, "of word 0|a finite one"),
        ({"maps": (Map("raw", "a", 7, torch.rand(5)),)}, "of word 7; expected one of 2"),
        ({"maps": (Map("raw", "a", None, torch.rand(4)),)}, r"shape \(4,\); expected \(5,\)"),
        ({"maps": (Map("raw", "a", None, torch.rand(4), "sea"),)}, "of the stream 'sea'"),
        ({"steps": (Likely("words", 2, ()),)}, "a step stands at 2 of 'words'"),
    ],
)
def test_parts_must_fit(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_bytes(replace(make(), **change))


def altered(data: bytes, alter: Any) -> bytes:
    """The file with its header changed: `alter` gets the trace's own, and that of safetensors."""
    (length,) = struct.unpack("<Q", data[:8])
    outer = json.loads(data[8 : 8 + length])
    inner = json.loads(outer["__metadata__"]["trace"])
    alter(inner, outer)
    if isinstance(metadata := outer.get("__metadata__"), dict) and isinstance(metadata.get("trace"), str):
        metadata["trace"] = json.dumps(inner)
    text = json.dumps(outer).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def test_altering_nothing_changes_nothing():
    assert_same(make_once(), from_bytes(altered(SOUND, lambda inner, outer: None)))


def make_once(**layer: Any) -> Trace:
    torch.manual_seed(0)
    return make(**layer)


SOUND = to_bytes(make_once())


@pytest.mark.parametrize(
    ("alter", "sentence"),
    [
        (lambda h, o: h.pop("model"), "lacks model"),
        (lambda h, o: h.update(extra=1), "unknown field"),
        (lambda h, o: h.update(kind=7), "expected str"),
        (lambda h, o: h["streams"][0].update(kind="poem"), "expected one of 'text', 'patches', 'frames', 'tokens'"),
        (lambda h, o: h["streams"][0].update(first=-1), "patches from -1 on"),
        (lambda h, o: h["streams"][0].update(grid=[0, 4]), "patches"),
        (lambda h, o: h["layers"][0].update(q_scale=0), "scale of layers.0.q"),
        (lambda h, o: h["layers"][0].update(q_scale=1e300), "NaN or infinity"),
        (lambda h, o: h["layers"][0].update(q="maps.0"), "the tensor 'maps.0'"),
        (lambda h, o: h["layers"][0].update(q="layers.9.q"), "layers.9.q|doesn't name"),
        (lambda h, o: h["layers"][0].update(beta="soft"), "beta"),
        (lambda h, o: h["layers"][0].update(beta=10**400), "can't be read"),
        (lambda h, o: h["layers"][0].update(heads=3), "says 3 heads"),
        (lambda h, o: h["layers"][2].update(softcap=-1), "softcap"),
        (lambda h, o: h["layers"].pop(), "doesn't name"),
        (lambda h, o: h["layers"][3].update(windows=None), "doesn't name"),
        (lambda h, o: h["layers"][3].update(causal=True), "has windows; expected no mask"),
        (lambda h, o: h["layers"][3].update(queries="words"), "has windows; expected no mask"),
        (
            lambda h, o: h["layers"][3]["windows"].update(places="layers.3.windows.kinds"),
            "windows of layer 'within'|doesn't",
        ),
        (lambda h, o: o["layers.3.windows.places"].update(shape=[4, 1]), "mask of the trace|has shape"),
        (lambda h, o: o["layers.3.windows.kinds"].update(shape=[1, 2]), "the windows' kinds"),
        (lambda h, o: o["layers.3.windows.bias"].update(shape=[1, 2, 2, 2]), "kinds|window's mask or bias"),
        (lambda h, o: o["layers.3.windows.mask"].update(shape=[1, 1, 2, 2]), "a bit for each of 2 keys"),
        (lambda h, o: h["maps"][0].update(word=99), "of word 99"),
        (lambda h, o: h.update(words=[["a", "b"]]), r"words\[0\]"),
        (lambda h, o: o["__metadata__"].update(version="3"), "version '3'; this program reads versions 1 and 2"),
        (lambda h, o: o["__metadata__"].update(more="x"), "metadata are others"),
        (lambda h, o: o.pop("__metadata__"), "the file is no trace"),
        (lambda h, o: o["pictures.0"].update(dtype="F64"), "dtype"),
        (lambda h, o: o["pictures.0"].update(shape=[3, 4, 10**9]), "as many bytes as its shape takes"),
        (lambda h, o: o["pictures.0"].update(shape=[3, -4, -16]), "as many bytes"),
        (lambda h, o: o["layers.0.q"].update(data_offsets=[0, 80]), "at 192"),
        (lambda h, o: o["layers.0.q"].update(dtype="U8"), "expected F16"),
        (lambda h, o: o["layers.0.values"].update(shape=[5, 2]), r"has shape \(5, 2\); expected \(2, 5\)"),
        (lambda h, o: o["layers.0.mask"].update(shape=[5, 1, 1]), r"mask of 'own' has shape|mask of layer 'own'"),
        (lambda h, o: o.update(more=o["maps.0"]), "1 tensors that the trace doesn't name"),
        (lambda h, o: o.pop("maps.0"), "has no tensor 'maps.0'"),
    ],
)
def test_hostile_headers(alter, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        from_bytes(altered(SOUND, alter))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "begin with b''; expected b'PELLUCID' or the length of a header"),
        (b"PELLUCID", "ends after 8 bytes"),
        (b"PELLUCID" + struct.pack("<II", 3, 0), "version 3; this program reads versions 1 and 2"),
        (b"PELLUCID" + struct.pack("<II", 1, 2**32 - 1), "said to take"),
        (b"PELLUCID" + struct.pack("<II", 1, 8) + b"\xff" * 8, "the trace's header is not JSON"),
        (b"PELLUCID" + struct.pack("<II", 1, 80_000) + b"[" * 80_000, "can't be read"),
        (struct.pack("<Q", 2**60) + b"{}", "expected b'PELLUCID' or the length"),
        (struct.pack("<Q", 8) + b"\xff" * 8, "the trace's header is not JSON"),
        (struct.pack("<Q", 80_000) + b"[" * 80_000, "can't be read"),
        (struct.pack("<Q", 8) + b"NaN     ", "header can't be read: it has NaN, which"),
        (struct.pack("<Q", 2) + b"[]", "the file is no trace"),
        (SOUND[:-8], "inside"),
        (SOUND + bytes(8), "bytes of data"),
        (FIRST.read_bytes()[:-8], "inside"),
        (FIRST.read_bytes() + bytes(8), "bytes of data"),
    ],
)
def test_hostile_bytes(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_bytes(data)


def test_a_file_is_named_in_its_sentence(tmp_path: Path):
    (tmp_path / "a.pellucid").write_bytes(b"else")
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'a.pellucid'}: the bytes begin with b'else'")):
        load_trace(tmp_path / "a.pellucid")


def read_or_sentence(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        from_bytes(data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_a_trace_or_a_sentence(data, begun):
    read_or_sentence(b"PELLUCID" + struct.pack("<I", 1) + data if begun else struct.pack("<Q", len(data)) + data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_a_trace_or_a_sentence(draw):
    data = bytearray(draw.draw(st.sampled_from((SOUND, FIRST.read_bytes()))))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    read_or_sentence(bytes(data[: draw.draw(st.sampled_from((len(data), 0, 100, len(data) - 1)))]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_headers_with_anything_anywhere_are_a_trace_or_a_sentence(draw):
    def alter(inner: Any, outer: Any) -> None:
        place = draw.draw(st.sampled_from((inner, outer)))
        while True:
            inner = list(place) if isinstance(place, dict) else range(len(place))
            key = draw.draw(st.sampled_from(sorted(inner)))
            if not isinstance(place[key], (dict, list)) or not place[key] or draw.draw(st.booleans()):
                place[key] = draw.draw(JSON)
                return
            place = place[key]

    read_or_sentence(altered(SOUND, alter))
