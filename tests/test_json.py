"""One reader for JSON: what is let in, what isn't and why, and that everything that reads JSON goes through it."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limited import run_limited

import pellucid
from pellucid.config import MOST_BYTES, MOST_LEVELS, MOST_VALUES, parse_json, read_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
# By Python's own reader: what a program that we start writes into a folder that was just made, and what the processes
# of one run tell each other.
TRUSTED = {"evaluation/jars.py", "training/checkpoint.py"}


@given(ANY)
def test_what_python_writes_is_read_as_python_reads_it(value):
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert parse_json(text, "it") == json.loads(text) == value
        assert parse_json(text.encode(), "it") == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    {
        "nothing": ("", r"a\.json is not JSON \(Expecting value"),
        "cut": ('{"a": [1, 2', r"a\.json is not JSON \("),
        "more": ("{} {}", r"a\.json is not JSON \(Extra data"),
        "latin-1": ('"é"'.encode("latin-1"), r"a\.json is not JSON \('utf-8' codec can't decode"),
        "deep": (
            "[" * 200_000,
            "a.json can't be read: it has lists and objects inside one another, more than 64 levels",
        ),
        "deep objects": ('{"a":' * 200_000, "more than 64 levels"),
        "deep and whole": ('[{"a":' * 33 + "1" + "}]" * 33, "more than 64 levels"),
        "nan": ('{"a": NaN}', "it has NaN, which is no number of JSON"),
        "infinity": ("[-Infinity]", "it has -Infinity, which is no number of JSON"),
        "large": ("[1e999]", "it has the number '1e999', which is too large"),
        "digits": ("9" * 1_000_000, "it has a number of 1,000,000 digits; expected up to 300"),
        "twice": ('{"a": 1, "b": 2, "a": 3}', "it has 'a' twice in one object"),
        "values": ("[" + "[]," * MOST_VALUES + "[]]", "it holds more than 1,048,576 values"),
        "bytes": (b" " * (MOST_BYTES + 1), "it is larger than 16,777,216 bytes"),
    }.values(),
)
def test_what_is_not_let_in_is_said_in_a_sentence(text, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence) as refused:
        parse_json(text, "a.json")
    assert len(str(refused.value)) < 200
    (tmp_path / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=sentence):
        read_json(tmp_path / "a.json")


def test_the_bounds_themselves_are_let_in():
    deepest = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert json.dumps(parse_json(deepest, "it")) == deepest
    assert len(parse_json("[" + "0," * (MOST_VALUES - 2) + "0]", "it")) == MOST_VALUES - 1
    assert float(parse_json("9" * 300, "it")) == 1e300
    assert parse_json(f'"{"x" * (MOST_BYTES - 2)}"', "it") == "x" * (MOST_BYTES - 2)
    assert parse_json('{"a": {"b": 1}, "b": {"a": 1}}', "it") == {"a": {"b": 1}, "b": {"a": 1}}
    assert parse_json(b"\xef\xbb\xbf[1]", "it") == [1]  # as some editors begin a file


def test_halves_of_characters_become_what_can_be_written():
    text = r'{"\ud83d\ude00": "\ud83d", "b": ["\udE00\ud83d\ude00x", "\\ud83d", "\u00e9\n\""]}'
    read = parse_json(text, "it")
    assert read == {"😀": "\ufffd", "b": ["\ufffd😀x", "\\ud83d", 'é\n"']}
    assert json.loads(json.dumps(read, ensure_ascii=False).encode()) == read


def test_a_log_may_hold_what_is_no_number():
    nan, infinity = parse_json('[NaN, {"a": -Infinity}]', "it", allow_nan=True)
    assert nan != nan
    assert infinity == {"a": -float("inf")}


def test_a_file_that_never_ends_is_read_to_the_bound():
    with pytest.raises(ValueError, match="/dev/zero can't be read: it is larger than 16,777,216 bytes"):
        read_json(Path("/dev/zero"))


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["[],", "{},", '{"a":1},', '{"a":{}},', "1e9,", '"ab",', "1234567,", "[[[[]]]],"])
def test_the_most_that_is_let_in_takes_little_memory(piece):
    """As much of it as the bounds allow: 400 MB hold Python, the text, and what it says."""
    said = run_limited(
        f"""
        piece = {piece!r}
        times = min(MOST_BYTES // len(piece), MOST_VALUES // sum(map(piece.count, ",[{{"))) - 2
        print(len(parse_json("[" + piece * times + "0]", "it")))
        """,
        imports="from pellucid.config import MOST_BYTES, MOST_VALUES, parse_json",
        megabytes=400,
    )
    assert int(said) > 100_000


def test_nothing_else_in_the_package_reads_json():
    package = Path(pellucid.__file__).parent
    reading = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\bjson\.(loads?|JSONDecoder)\b|\bfrom json import|\bread_text\(.*json", path.read_text())
    }
    assert reading == {"config.py"} | TRUSTED
