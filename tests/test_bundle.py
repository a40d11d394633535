"""Traces as files: nothing lost but half the digits of q and k, small, and safe to read from anybody."""

import contextlib
import json
import math
import re
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pellucid.explain.trace import Layer, Map, Tokens, Trace
from pellucid.views.bundle import from_bytes, load_trace, save_trace, to_bytes

WORDS = (("a", -0.5), ("dög", -1.25))


def make(n: int = 5, heads: int = 2, width: int = 4, **layer: Any) -> Trace:
    """A small trace with everything in it."""
    image = Tokens("image", ("class", *(f"patch 0,{i}" for i in range(n - 1))), (1, n - 1))
    words = Tokens("words", ("<start>", "a"), None)
    q, k, w = torch.randn(heads, n, width), torch.randn(heads, n, width), torch.randn(heads, 2, width)
    own = {"name": "own", "queries": "image", "keys": "image", "q": q, "k": k, "beta": 0.5, "causal": False}
    own |= {"mask": torch.rand(n, n) > 0.5, "values": torch.rand(heads, n)}
    cross = Layer("cross", "words", "image", w, k * 2, math.inf, True, None, torch.rand(heads, n))
    maps = (Map("rollout", "a", 0, torch.rand(n)), Map("gradient", "dög", None, torch.rand(n)))
    picture = torch.randint(256, (3, 4, 4 * (n - 1)), dtype=torch.uint8)
    return Trace("model", "captioner", picture, (image, words), (Layer(**own | layer), cross), (), WORDS, maps)


def large() -> Trace:
    """As large as a ViT-B/16: 12 layers of 12 heads, 197 tokens, a picture of 224 pixels, every layer masked."""
    tokens = Tokens("image", ("class", *(f"patch {i // 14},{i % 14}" for i in range(196))), (14, 14))
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
    return Trace("b16", "classifier", image, (tokens,), tuple(layers), (("cat", 0.9),), (), ())


def assert_same(a: Any, b: Any) -> None:
    """Equal in every field; q and k within half precision."""
    assert type(a) is type(b)
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, Tensor):
            if field.name in ("q", "k"):
                assert_close(y, x, rtol=2**-11, atol=2**-24 * float(x.abs().max()))
            else:
                assert_close(y, x, rtol=0, atol=0)
        elif field.name in ("tokens", "layers", "maps"):
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
    trace = make()
    data = to_bytes(trace)
    version, length = struct.unpack("<II", data[8:16])
    header = json.loads(data[16 : 16 + length])
    assert (data[:8], version, (16 + length) % 8) == (b"PELLUCID", 1, 0)
    place = header["layers"][1]["k"]
    assert (place["dtype"], place["shape"], place["offset"] % 8) == ("float16", [2, 5, 4], 0)
    raw = data[16 + length + place["offset"] :][: place["length"]]
    stored = torch.frombuffer(bytearray(raw), dtype=torch.float16).view(2, 5, 4)
    assert_close(stored.float() * place["scale"], trace.layers[1].k, rtol=2**-11, atol=1e-6)
    assert header["layers"][1]["beta"] == "inf"
    assert header["image"]["length"] == trace.image.numel()
    assert header["words"] == [["a", -0.5], ["dög", -1.25]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"q": torch.full((2, 5, 4), math.nan)}, "NaN or infinity"),
        ({"beta": math.nan}, "β = NaN"),
        ({"keys": "sounds"}, "tokens 'sounds'; expected one of image, words"),
        ({"queries": "words"}, r"expected \(2, 2, 4\)"),
    ],
)
def test_a_trace_that_does_not_fit_together_is_not_written(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_bytes(make(**change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": (Tokens("image", ("a",) * 5, (2, 3)), Tokens("words", ("a", "b"), None))}, "for 2×3 patches"),
        ({"tokens": (Tokens("image", ("a",) * 5, None),) * 2}, "one name"),
        ({"image": torch.zeros(2, 4, 4, dtype=torch.uint8)}, "1 or 3 channels"),
        ({"words": (("a", -math.inf),)}, "of word 0|a finite one"),
        ({"maps": (Map("raw", "a", 7, torch.rand(5)),)}, "of word 7; expected one of 2"),
        ({"maps": (Map("raw", "a", None, torch.rand(4)),)}, r"shape \(4,\); expected \(5,\)"),
    ],
)
def test_parts_must_fit(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_bytes(replace(make(), **change))


def altered(data: bytes, alter: Any) -> bytes:
    """The file with its header changed."""
    length = struct.unpack("<I", data[12:16])[0]
    header = json.loads(data[16 : 16 + length])
    alter(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return data[:12] + struct.pack("<I", len(text)) + text + data[16 + length :]


def test_altering_nothing_changes_nothing():
    assert_same(make_once(), from_bytes(altered(SOUND, lambda header: None)))


def make_once() -> Trace:
    torch.manual_seed(0)
    return make()


SOUND = to_bytes(make_once())


@pytest.mark.parametrize(
    ("alter", "sentence"),
    [
        (lambda h: h.pop("model"), "lacks model"),
        (lambda h: h.update(extra=1), "unknown field"),
        (lambda h: h.update(kind="poet"), "expected one of 'classifier', 'captioner'"),
        (lambda h: h["image"].update(dtype="float64"), "dtype"),
        (lambda h: h["image"].update(shape=[3, 4, 10**9]), "as many bytes as its shape takes"),
        (lambda h: h["image"].update(shape=[3, -4, -16]), "1 or 3 channels"),
        (lambda h: h["layers"][0]["q"].update(offset=0), "at 192"),
        (lambda h: h["layers"][0]["q"].update(offset=-8), "at 192"),
        (lambda h: h["layers"][0]["q"].update(scale=0), "q of the trace"),
        (lambda h: h["layers"][0]["q"].update(scale=1e300), "NaN or infinity"),
        (lambda h: h["layers"][0]["q"].update(dtype="uint8"), "expected float16"),
        (lambda h: h["layers"][0].update(beta="soft"), "beta"),
        (lambda h: h["layers"][0].update(beta=10**400), "can't be read"),
        (lambda h: h["layers"][0]["values"].update(shape=[5, 2]), r"has shape \(5, 2\); expected \(2, 5\)"),
        (lambda h: h["layers"].pop(), "bytes at|bytes of data"),
        (lambda h: h["layers"].extend(h["layers"] * 3), "layers"),
        (lambda h: h["tokens"][0].update(grid=[0, 4]), "patches"),
        (lambda h: h["maps"][0].update(word=99), "of word 99"),
        (lambda h: h.update(words=[["a", "b"]]), r"words\[0\]"),
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
        (b"", "begin with b''; expected b'PELLUCID'"),
        (b"PELLUCID", "ends after 8 bytes"),
        (b"PELLUCID" + struct.pack("<II", 2, 0), "version 2; this program reads version 1"),
        (b"PELLUCID" + struct.pack("<II", 1, 2**32 - 1), "said to take"),
        (b"PELLUCID" + struct.pack("<II", 1, 8) + b"\xff" * 8, "the trace's header is not JSON"),
        (b"PELLUCID" + struct.pack("<II", 1, 80_000) + b"[" * 80_000, "can't be read"),
        (b"PELLUCID" + struct.pack("<II", 1, 8) + b"NaN     ", "header can't be read: it has NaN, which"),
        (SOUND[:-8], "inside"),
        (SOUND + bytes(8), "bytes of data"),
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
    read_or_sentence(b"PELLUCID" + struct.pack("<I", 1) + data if begun else data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_a_trace_or_a_sentence(draw):
    data = bytearray(SOUND)
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
    def alter(header: Any) -> None:
        place = header
        while True:
            inner = list(place) if isinstance(place, dict) else range(len(place))
            key = draw.draw(st.sampled_from(sorted(inner)))
            if not isinstance(place[key], (dict, list)) or not place[key] or draw.draw(st.booleans()):
                place[key] = draw.draw(JSON)
                return
            place = place[key]

    read_or_sentence(altered(SOUND, alter))
