"""Configurations to JSON and back, and a sentence for everything that doesn't fit."""

import dataclasses
import json
from typing import Literal

import pytest

from pellucid.config import from_json, to_json
from pellucid.models import ViTConfig


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    name: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner = Inner()
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[str, ...] | None = None
    inners: tuple[Inner, ...] = ()
    either: int | str = 0
    flag: bool = False
    parts: tuple[Inner, ...] = dataclasses.field(default_factory=tuple)


@pytest.mark.parametrize(
    "config",
    [
        Outer(3),
        Outer(3, Inner(0.5, "b"), (4, 5.5), ("x", "y"), (Inner(), Inner(2.0)), "word", True, (Inner(),)),
        Outer(3, many=()),
        ViTConfig(),
        ViTConfig(classes=2, image=(8, 24), labels=("cat", "dog"), mean=(0.1, 0.2, 0.3), layer_scale=1e-5, hidden=7),
        ViTConfig.named("huge", channels=4, positions="rotary", registers=4),
    ],
)
def test_there_and_back(config):
    text = json.dumps(to_json(config))
    again = from_json(type(config), json.loads(text))
    assert again == config
    assert json.dumps(to_json(again)) == text


def test_missing_fields_take_their_defaults_and_whole_numbers_are_floats():
    assert from_json(Outer, {"count": 1, "inner": {}}) == Outer(1)
    rate = from_json(Inner, {"rate": 1}).rate
    assert (rate, type(rate)) == (1.0, float)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], r"config file is \[\]; expected an object with the fields of Outer"),
        ({}, "the config lacks count$"),
        ({"count": 1, "size": 2, "age": 3}, "unknown field in the config: age, size; Outer has count, inner, pair"),
        ({"count": 1, "inner": {"speed": 1}}, r"unknown field in the config: inner\.speed; Inner has rate, name"),
        ({"count": 1, "inner": 3}, r"config inner\. is 3; expected an object with the fields of Inner"),
        ({"count": "1"}, "config count is '1'; expected int"),
        ({"count": 1.0}, r"config count is 1\.0; expected int"),
        ({"count": True}, "config count is True; expected int"),
        ({"count": None}, "config count is None; expected int"),
        ({"count": 1, "flag": 1}, "config flag is 1; expected bool"),
        ({"count": 1, "inner": {"rate": "fast"}}, r"config inner\.rate is 'fast'; expected float"),
        ({"count": 1, "inner": {"rate": True}}, r"config inner\.rate is True; expected float"),
        ({"count": 1, "inner": {"name": "c"}}, r"config inner\.name is 'c'; expected one of 'a', 'b'"),
        ({"count": 1, "pair": [1]}, "config pair has 1 values; expected 2"),
        ({"count": 1, "pair": 1}, "config pair is 1; expected a list"),
        ({"count": 1, "pair": [1, "x"]}, r"config pair\[1\] is 'x'; expected float"),
        ({"count": 1, "many": ["x", 2]}, r"config many\[1\] is 2; expected str"),
        ({"count": 1, "inners": [{}, {"rate": []}]}, r"config inners\[1\]\.rate is \[\]; expected float"),
        ({"count": 1, "either": []}, r"config either is \[\]; expected str"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_json(Outer, data)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"classes": 0}, "classes is 0; expected one or more"),
        ({"depth": 0}, "depth is 0; expected one or more"),
        ({"registers": -1}, "registers is -1; expected none or more"),
        ({"pooling": "max"}, "pooling is 'max'; expected 'class', 'mean', 'sequence' or 'none'"),
        ({"positions": "alibi"}, "positions is 'alibi'; expected 'learned', 'sinusoidal', 'rotary' or 'none'"),
        ({"drop_token": 1.0}, r"drop_token is 1\.0; expected a share in \[0, 1\)"),
        ({"labels": ("cat",)}, "labels names 1 classes; expected 10"),
        ({"mean": (0.5,)}, "mean has 1 values; expected one for each of 3 channels"),
        ({"std": (0.5,) * 4}, "std has 4 values; expected one for each of 3 channels"),
    ],
)
def test_a_vit_config_says_what_it_needs(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        ViTConfig(**fields)


def test_named_sizes():
    base = ViTConfig.named("base")
    assert (base.width, base.depth, base.heads, base.image, base.patch) == (768, 12, 12, (224, 224), (16, 16))
    with pytest.raises(ValueError, match="size is 'vast'; expected one of tiny, small, base, large, huge"):
        ViTConfig.named("vast")
