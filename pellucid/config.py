"""JSON from anybody, read within bounds; configurations as frozen dataclasses, to JSON and back.

A field that no class knows is an error, not a leftover.
"""

import dataclasses
import json
import math
import re
import reprlib
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MOST_BYTES = 1 << 24
MOST_VALUES = 1 << 20  # an empty object is 3 bytes of a file, and 72 in memory
MOST_LEVELS = 64  # of lists and objects inside one another
MOST_DIGITS = 300  # of a whole number, so that it is a float too
TOO_DEEP = f"it has lists and objects inside one another, more than {MOST_LEVELS} levels"

MOST_LETTERS = 1 << 10  # of a word or a path in a config: a sentence may repeat it
MOST_SHOWN, MOST_NAMED = 80, 10  # characters of a value, and names, that a sentence repeats
# JSON can spell half a character, which UTF-8 can't. What stays as it is, a pair or another escape, is the group.
HALF = re.compile(r"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\[^u])|\\u[dD][89a-fA-F]..")

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = MOST_SHOWN


def read_json(
    path: Path, *, most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES, allow_nan: bool = False
) -> Any:
    """What a JSON file holds; one sentence if it is none, or beyond the bounds."""
    with path.open("rb") as file:
        text = file.read(most_bytes + 1)
    return parse_json(text, path, most_bytes=most_bytes, most_values=most_values, allow_nan=allow_nan)


def parse_json(
    text: str | bytes,
    source: object,
    *,
    most_bytes: int = MOST_BYTES,
    most_values: int = MOST_VALUES,
    allow_nan: bool = False,
) -> Any:
    """What JSON says, whoever wrote it, within bounds of size, depth and digits, and with no name twice in an object.

    Halves of characters become U+FFFD, as bytes do that are none: what is read can be written again.
    source: what the sentence names if it can't be read. allow_nan: NaN and ∞ too, which Python writes into a log.

    >>> parse_json('{"lr": 1e-3}', "config.json")
    {'lr': 0.001}
    >>> parse_json("[" * 200_000, "config.json")
    Traceback (most recent call last):
    ...
    ValueError: config.json can't be read: it has lists and objects inside one another, more than 64 levels
    """
    try:
        if len(text) > most_bytes:
            raise ValueError(f"it is larger than {most_bytes:,} bytes")
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if sum(map(text.count, ",[{")) >= most_values:
            raise ValueError(f"it holds more than {most_values:,} values")
        if "\\ud" in text or "\\uD" in text:
            text = HALF.sub(lambda match: match[1] or "\\ufffd", text)
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=None if allow_nan else _finite_number,
            parse_constant=None if allow_nan else _no_constant,
        )
        _check_levels(value)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not JSON ({error})") from None
    except RecursionError:
        raise ValueError(f"{source} can't be read: {TOO_DEEP}") from None
    except ValueError as error:
        raise ValueError(f"{source} can't be read: {error}") from None
    return value


def _check_levels(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_LEVELS):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
    if level:
        raise ValueError(TOO_DEEP)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"it has {brief(twice)} twice in one object")
    return names


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits; expected up to {MOST_DIGITS}")
    return int(digits)


def _finite_number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"it has the number {brief(digits)}, which is too large")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"it has {name}, which is no number of JSON")


def brief(value: Any) -> str:
    """A value as a sentence shows it, however large it is.

    >>> brief("cat"), len(brief("cat" * 1000)), len(brief(["cat"] * 1000))
    ("'cat'", 80, 47)
    """
    return _brief.repr(value)


def one_line(text: str) -> str:
    """Names of files, and what a library says of their content, may hold line breaks; a sentence may not."""
    return " ".join(text.split())


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
    if isinstance(config, dict):
        return {name: to_json(value) for name, value in config.items()}
    return config


def from_json(cls: type, data: Any, path: str = "") -> Any:
    """The dataclass `cls` out of what `to_json` made. Fields that are missing take their defaults."""
    if not isinstance(data, dict):
        came = f"config {path or 'file'} is {brief(data)}"
        raise ValueError(f"{came}; expected an object with the fields of {cls.__name__}")
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        names = ", ".join(f"{path}{name[:MOST_SHOWN]}" for name in unknown[:MOST_NAMED])
        more = f" and {len(unknown) - MOST_NAMED:,} more" if len(unknown) > MOST_NAMED else ""
        raise ValueError(f"unknown field in the config: {names}{more}; {cls.__name__} has {', '.join(fields)}")
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


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _set(data: dict[str, Any], names: list[str], value: Any) -> None:
    """Put a value at a path; what isn't there is left to `from_json`, which says so."""
    for name in names[:-1]:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ValueError(f"the config has no {'.'.join(names)}: {name} is {brief(data)}")
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
        raise wrong or ValueError(f"config {path} is {brief(value)}; expected {hint}")
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"config {path} is {brief(value)}; expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _items(arguments, value, path)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, f"{path}.")  # pyright: ignore[reportArgumentType]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, path)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise ValueError(f"config {path} is {brief(value)}; expected {hint.__name__}")
    if isinstance(value, str) and len(value) > MOST_LETTERS:
        raise ValueError(f"config {path} has {len(value):,} letters; expected up to {MOST_LETTERS:,}")
    return value


def _as_float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"config {path} is a number beyond every float; expected a smaller one") from None


def _items(arguments: tuple, value: Any, path: str) -> tuple:
    if not isinstance(value, list):
        raise ValueError(f"config {path} is {brief(value)}; expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(value) != len(arguments):
        raise ValueError(f"config {path} has {len(value)} values; expected {len(arguments)}")
    pairs = zip(arguments, value, strict=True)
    return tuple(_value(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(pairs))
