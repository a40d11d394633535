"""Configurations: frozen dataclasses, to JSON and back. A field that no class knows is an error, not a leftover."""

import dataclasses
import json
import math
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def read_json(path: Path) -> Any:
    """What a JSON file holds; one sentence if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None


def finite(value: Any) -> Any:
    """The same data without NaN and ∞, which JSON has no words for.

    >>> finite({"x": [1.0, math.nan], "y": ("a", math.inf)})
    {'x': [1.0, None], 'y': ['a', None]}
    """
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(config: Any) -> Any:
    """Dataclasses as dicts, tuples as lists: what `json.dump` takes.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Size:
    ...     patch: tuple[int, int] = (4, 4)
    >>> to_json(Size())
    {'patch': [4, 4]}
    >>> from_json(Size, {"patch": [2, 2]})
    Size(patch=(2, 2))
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: to_json(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, (list, tuple)):
        return [to_json(value) for value in config]
    return config


def from_json(cls: type, data: Any, path: str = "") -> Any:
    """The dataclass `cls` out of what `to_json` made. Fields that are missing take their defaults."""
    if not isinstance(data, dict):
        raise ValueError(f"config {path or 'file'} is {data!r}; expected an object with the fields of {cls.__name__}")
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        names = ", ".join(f"{path}{name}" for name in unknown)
        raise ValueError(f"unknown field in the config: {names}; {cls.__name__} has {', '.join(fields)}")
    required = (dataclasses.MISSING, dataclasses.MISSING)
    missing = [n for n, f in fields.items() if n not in data and (f.default, f.default_factory) == required]
    if missing:
        raise ValueError(f"the config lacks {', '.join(path + name for name in missing)}")
    return cls(**{name: _value(hints[name], value, f"{path}{name}") for name, value in data.items()})


def override(config: Any, changes: dict[str, Any]) -> Any:
    """The dataclass with fields changed: by name, by a path with dots, or by a dict of an inner one's fields.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Optim:
    ...     lr: float = 0.1
    >>> @dataclasses.dataclass(frozen=True)
    ... class Run:
    ...     optim: Optim = Optim()
    ...     seed: int = 0
    >>> override(Run(), {"seed": 1, "optim": {"lr": 0.5}}) == override(Run(), {"seed": 1, "optim.lr": 0.5})
    True
    """
    data = to_json(config)
    for path, value in changes.items():
        _set(data, path.split("."), to_json(value))
    return from_json(type(config), data)


def _set(data: dict[str, Any], names: list[str], value: Any) -> None:
    """Put a value at a path; what isn't there is left to `from_json`, which says so."""
    for name in names[:-1]:
        data = data.setdefault(name, {})
    name, inner = names[-1], data.get(names[-1])
    if isinstance(value, dict) and isinstance(inner, dict):
        for field, changed in value.items():
            _set(inner, field.split("."), changed)
    else:
        data[name] = value


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        wrong = None
        for argument in arguments:
            if argument is type(None):
                continue
            try:
                return _value(argument, value, path)
            except ValueError as error:
                wrong = error
        raise wrong or ValueError(f"config {path} is {value!r}; expected {hint}")
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"config {path} is {value!r}; expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _items(arguments, value, path)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, f"{path}.")  # pyright: ignore[reportArgumentType]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise ValueError(f"config {path} is {value!r}; expected {hint.__name__}")
    return value


def _items(arguments: tuple, value: Any, path: str) -> tuple:
    if not isinstance(value, list):
        raise ValueError(f"config {path} is {value!r}; expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(value) != len(arguments):
        raise ValueError(f"config {path} has {len(value)} values; expected {len(arguments)}")
    pairs = zip(arguments, value, strict=True)
    return tuple(_value(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(pairs))
