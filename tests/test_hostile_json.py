"""Traces, captions, tokenizers and facts that are made to take memory or time: one sentence, in little of either."""

import json
import shutil
import struct

import pytest
from fuzz_json import targets
from limited import run_commands, run_limited
from PIL import Image
from test_hostile_models import is_one_sentence, saved

from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.runs import checkpoints
from pellucid.runs.checkpoints import Checkpoints

__all__ = ["saved"]  # a fixture


def bundle(header: str) -> bytes:
    text = header.encode() + b" " * (-(16 + len(header.encode())) % 8)
    return b"PELLUCID" + struct.pack("<II", 1, len(text)) + text


@pytest.fixture(scope="module")
def trace_header(tmp_path_factory):
    every = {each.name: each for each in targets(tmp_path_factory.mktemp("targets"))}
    return every["first trace"].valid


MANY = {
    "maps": lambda header: header | {"maps": header["maps"][:1] * 40_000},
    "layers": lambda header: header | {"layers": header["layers"][:1] * 20_000},
    "tokens": lambda header: header | {"tokens": [{"name": "image", "labels": [], "grid": None}] * 100_000},
    "labels": lambda header: header | {"tokens": [{"name": "image", "labels": ["x"] * 1_000_000, "grid": None}]},
    "shape": lambda header: header | {"image": header["image"] | {"shape": [1] * 1_000_000}},
    "answers": lambda header: header | {"answers": [["x", 0.5]] * 300_000},
    "unknown": lambda header: header | {str(i): 0 for i in range(500_000)},
    "brackets": lambda header: "[" * 1_000_000,
    "lists": lambda header: [[]] * 10_000_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_a_trace_of_very_many_parts(name, trace_header, tmp_path):
    header = MANY[name](trace_header)
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    (tmp_path / "trace").write_bytes(bundle(text))
    said = run_limited(
        f"""
        try:
            load_trace({str(tmp_path / "trace")!r})
        except ValueError as error:
            print(error)
        """,
        imports="from pellucid.views.bundle import load_trace",
    )
    assert said.count("\n") == 1
    assert 20 < len(said) < 1000


def test_a_caption_of_megabytes_is_left_out(tmp_path):
    """The library that cuts captions into words ends the process if it has no memory for one."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    said = json.dumps({"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": "x" * (14 << 20)}]}]})
    (tmp_path / "dataset.json").write_text(said)
    (tmp_path / "captions.csv").write_text("image,caption\na.png,b" + "," * (14 << 20))
    commands = [["data", "inspect", tmp_path / name] for name in ("dataset.json", "captions.csv")]
    for said in map(is_one_sentence, run_commands(commands)):
        assert "1 captions of more than 65,536 letters: 'a.png'" in said


@pytest.mark.slow
def test_captions_that_are_nothing_but_brackets(tmp_path):
    """Empty objects take 24 times what they take in the file."""
    files = {
        "many": '{"images": [' + "{}," * 20_000_000 + "{}]}",
        "deep": '{"images": ' + "[" * 200_000,
        "number": '{"images": [{"filename": "a.png", "cocoid": ' + "9" * 1_000_000 + "}]}",
        "twice": '{"images": [], "images": []}',
    }
    for name, text in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset_mine.json").write_text(text)
    paths = [tmp_path / name / "dataset_mine.json" for name in files]
    many, deep, number, twice = map(is_one_sentence, run_commands([["data", "inspect", path] for path in paths]))
    assert "it holds more than 16,777,216 values" in many
    assert "more than 64 levels" in deep
    assert "it has a number of 1,000,000 digits; expected up to 300" in number
    assert "it has 'images' twice in one object" in twice


def with_tokenizer(saved, folder, change):
    shutil.copytree(saved / "captioner", folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(change if isinstance(change, str) else json.dumps(data | change(data)))
    return ["caption", folder, saved / "a.png"]


def gap(data):
    vocabulary = data["model"]["vocab"]
    return {"model": data["model"] | {"vocab": vocabulary | {"cat": 10**6}}}


TOKENIZERS = {
    "gap": (gap, "tokens are not 0…"),
    "pattern": (
        lambda data: {"pre_tokenizer": data["pre_tokenizer"] | {"pattern": {"Regex": "(a+)+$"}}},
        "the tokenizer has another pre_tokenizer than those that are trained here",
    ),
    "padding": (lambda data: {"padding": {"strategy": {"Fixed": 10**9}}}, "the tokenizer has another padding than"),
    "brackets": ("[" * 200_000, "more than 64 levels"),
    "list": ("[1, 2]", "it is no tokenizer of whole words"),
    "large": ('{"version": "' + "1" * 20_000_000 + '"}', "it is larger than 16,777,216 bytes"),
    "long": (lambda data: {"model": {"type": "x" * 10**6}}, "it is no tokenizer of whole words"),
    "vocabulary": (lambda data: {"model": data["model"] | {"vocab": "x" * 10**6}}, "it is no tokenizer ("),
    "more": (
        lambda data: {"added_tokens": [data["added_tokens"][0] | {"id": i, "content": str(i)} for i in range(50_000)]},
        "tokenizer.json",
    ),
}


@pytest.mark.slow
def test_tokenizers_that_nobody_trained_here(saved, tmp_path):
    commands = [with_tokenizer(saved, tmp_path / name, change) for name, (change, _) in TOKENIZERS.items()]
    for answer, (_, sentence) in zip(run_commands(commands), TOKENIZERS.values(), strict=True):
        assert sentence in is_one_sentence(answer)


def test_a_tokenizer_is_read_as_it_was_written(saved):
    whole = CaptionTokenizer.load(saved / "captioner" / "tokenizer.json")
    again = CaptionTokenizer.from_json(whole.to_json())
    assert again.to_json() == whole.to_json()
    pieces = CaptionTokenizer.train(["a cat and a dog", "cats and dogs"], kind="bpe", size=40)
    assert CaptionTokenizer.from_json(pieces.to_json()).encode("a dog") == pieces.encode("a dog")


@pytest.mark.parametrize(
    "facts", ['"text"', "[1]", "3", "null", '{"step": "x"}', "[" * 200_000, "{", '{"step": 1e999}']
)
def test_facts_that_are_none_are_left_out_of_the_listing(facts, saved, tmp_path):
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "vit_run" / "checkpoints" / "best.safetensors")
    save_file(weights, tmp_path / "step-1.safetensors", metadata={"facts": facts})
    save_file(weights, tmp_path / "step-2.safetensors", metadata={"facts": '{"step": 2, "seconds": 1.0}'})
    assert [each.step for each in Checkpoints(tmp_path).listing()] == [2]
    with pytest.raises(ValueError, match="is damaged or no checkpoint"):
        checkpoints.read_state_facts(tmp_path / "step-1.safetensors")


@pytest.mark.parametrize("length", [1 << 62, 99_000_000, 1_000_000])
def test_a_part_of_a_checkpoint_whose_header_claims_much(length, tmp_path):
    """PyTorch's own reader would read as many bytes as the header says, and as many levels."""
    folder = tmp_path / "last-5"
    folder.mkdir()
    part = length.to_bytes(8, "little") + b"[" * 1_000_000
    (folder / "a.safetensors").write_bytes(part)
    (folder / "facts.json").write_text(json.dumps({"step": 5, "seconds": 1.0, "files": {"a.safetensors": len(part)}}))
    with pytest.raises(ValueError, match=r"last-5 is damaged or no checkpoint \("):
        checkpoints.read_shapes(folder)
