"""Configs that nobody means, and weights that don't fit: one sentence, at once, and nothing is made before it."""

import json
import shutil
from dataclasses import fields, replace

import pytest
import torch
from limited import run_commands
from PIL import Image
from safetensors.torch import load_file, save_file

from pellucid.config import to_json
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig

LOOKS = ViTConfig(
    classes=2, image=(8, 8), width=8, depth=1, heads=1, labels=("cat", "dog"), mean=(0.5,) * 3, std=(0.3,) * 3
)
TOKENIZER = CaptionTokenizer.train(["a cat", "a dog"], min_count=1)
SPEAKS = CaptionerConfig(
    vocabulary=len(TOKENIZER), encoder=replace(LOOKS, pooling="none"), layers=1, heads=1, max_length=8
)
NAN = float("nan")

pytestmark = pytest.mark.slow  # each starts a process of its own


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders that are whole: a classifier, a captioner, and a run of each; a picture beside them."""
    here = tmp_path_factory.mktemp("saved")
    ViT(LOOKS).save_pretrained(here / "vit")
    Captioner(SPEAKS).save_pretrained(here / "captioner")
    TOKENIZER.save(here / "captioner" / "tokenizer.json")
    for name, config, kind in (("vit", LOOKS, "classifier"), ("captioner", SPEAKS, "captioner")):
        run = here / f"{name}_run"
        (run / "checkpoints").mkdir(parents=True)
        weights = {f"model.{key}": value for key, value in load_file(here / name / "model.safetensors").items()}
        facts = {"facts": json.dumps({"step": 1, "seconds": 1.0})}
        save_file(weights, run / "checkpoints" / "best.safetensors", metadata=facts)
        (run / "config.json").write_text(json.dumps({"kind": kind, "recipe": "mine", "model": to_json(config)}))
        TOKENIZER.save(run / "tokenizer.json")
    Image.new("RGB", (8, 8)).save(here / "a.png")
    return here


def changed(saved, tmp_path, name, change):
    """A copy of a folder whose config was changed, and the command that opens it."""
    folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(saved / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(change if isinstance(change, str) else json.dumps(change(config)))
    return ["caption" if name.startswith("captioner") else "predict", folder, saved / "a.png"]


def in_the_model(name, change):
    """The change as one of a run's model, if the folder is a run's."""
    return (lambda config: config | {"model": change(config["model"])}) if name.endswith("_run") else change


def is_one_sentence(answer):
    code, said, seconds = answer
    assert code == 2, answer
    assert said.startswith("pellucid: "), said
    assert said.count("\n") == 1, said
    assert 20 < len(said) < 700, said
    assert seconds < 10
    return said


HOSTILE = {
    "a model that is a list": (lambda c: {"model": ["x"]}, ""),
    "brackets": ("[" * 200_000, "more than 64 levels"),
    "depth": (lambda c: c | {"depth": 10**5}, "depth is 100000; expected up to 256"),
    "registers": (lambda c: c | {"registers": 10**7}, "registers is 10000000; expected none or more, up to 65,536"),
    "image": (lambda c: c | {"image": [10**10] * 2}, "expected up to 16,384"),
    "image without positions": (lambda c: c | {"image": [10**10] * 2, "positions": "none"}, "expected up to 16,384"),
    "tokens": (lambda c: c | {"image": [16_384] * 2}, "is 16,777,216 tokens; expected up to 65,536"),
    "width": (lambda c: c | {"width": 10**30}, "expected up to 65,536"),
    "width within bounds": (lambda c: c | {"width": 65_536}, "doesn't fit this ViT: it has the wrong shape for "),
    "depth within bounds": (lambda c: c | {"depth": 256}, "blocks.1.attention_norm.bias, "),
    "heads": (lambda c: c | {"heads": 0}, "heads is 0; expected one or more"),
    "hidden": (lambda c: c | {"hidden": -3}, "hidden is -3; expected one or more"),
    "classes": (lambda c: c | {"classes": 10**9, "labels": None}, "classes is 1000000000; expected up to 1,048,576"),
    "nan": (lambda c: c | {"norm_eps": NAN}, "it has NaN, which is no number of JSON"),
    "number as a word": (lambda c: c | {"width": "8"}, "config width is '8'; expected int"),
    "long word": (lambda c: c | {"width": "8" * 10**6}, "config width is '88888"),
    "long name": (lambda c: c | {"labels": ["cat", "d" * 10**6]}, "labels[1] has 1,000,000 letters; expected up"),
    "many fields": (lambda c: c | {f"x{i}": 0 for i in range(10**5)}, "and 99,990 more; ViTConfig has"),
    "twice": ('{"model": "ViT", "classes": 2, "classes": 3}', "it has 'classes' twice in one object"),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(saved, tmp_path_factory):
    there = tmp_path_factory.mktemp("hostile")
    commands = [changed(saved, there, "vit", change) for change, _ in HOSTILE.values()]
    return dict(zip(HOSTILE, run_commands(commands), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_config_is_one_sentence_at_once(name, answers):
    assert HOSTILE[name][1] in is_one_sentence(answers[name])


def spoilt(config, path=()):
    """The config with each of its fields, and of those inside, as something that it can't be, or hardly."""
    for field in fields(config):
        value = getattr(config, field.name)
        if hasattr(value, "__dataclass_fields__"):
            yield from spoilt(value, (*path, field.name))
        for wrong in (0, -1, 10**6, 10**30, 1e308, "x", [], {}, True, [10**10, 10**10], [-1, 1], [[]], "1" * 1000):
            yield (*path, field.name), wrong


def with_field(config, path, value):
    if not path:
        return value
    return config | {path[0]: with_field(config.get(path[0], {}), path[1:], value)}


@pytest.mark.parametrize("name", ["vit", "captioner", "vit_run", "captioner_run"])
def test_whatever_a_field_is_the_model_answers_or_one_sentence(name, saved, tmp_path):
    config = SPEAKS if name.startswith("captioner") else LOOKS
    changes = [in_the_model(name, lambda c, p=path, v=value: with_field(c, p, v)) for path, value in spoilt(config)]
    commands = [changed(saved, tmp_path, name, change) for change in changes]
    answers = run_commands(commands)
    assert all(answer.code == 0 or is_one_sentence(answer) for answer in answers)
    refused = sum(answer.code == 2 for answer in answers)
    assert 0.8 * len(answers) < refused < len(answers)  # else nothing was asked, or nothing let in


def test_every_kind_of_folder_is_compared_before_it_is_made(saved, tmp_path):
    commands = [
        changed(saved, tmp_path, name, in_the_model(name, lambda c, p=path, v=value: with_field(c, p, v)))
        for name, part in (("vit_run", ()), ("captioner", ("encoder",)), ("captioner_run", ("encoder",)))
        for field, value in {"registers": 60_000, "depth": 250, "width": 65_536, "hidden": 1_000_000}.items()
        for path in [(*part, field)]
    ]
    assert all("doesn't fit this" in is_one_sentence(answer) for answer in run_commands(commands))


def test_what_no_weights_tell_of_is_bounded_too(saved, tmp_path):
    """How long a sentence may be stands in the config alone: a table of sinusoids, and as many steps."""
    answers = run_commands(
        [changed(saved, tmp_path, "captioner", lambda c, n=n: c | {"max_length": n}) for n in (10**9, 257, 256)],
        seconds=20,
    )
    assert [answer.code for answer in answers] == [2, 2, 0]
    assert "max_length is 1000000000; expected up to 256" in is_one_sentence(answers[0])
    assert answers[2].seconds < 25  # 10.0 measured on two cores under a load of 14


def test_a_model_that_the_machine_cannot_hold_is_not_begun(tmp_path):
    size = ["--model.depth", "200", "--model.width", "65536", "--model.heads", "1"]
    words = ["train", "vit_digits", "--out", tmp_path / "run", *size]
    huge = ["train", "vit_digits", "--out", tmp_path / "run", "--model.width", str(10**30)]
    data = ["train", "vit_digits", "--out", tmp_path / "run", *size, "--data.name", "folder:nowhere"]
    answers = run_commands([words, huge, data])
    assert "a ViT of 10,331,716,059,146 parameters takes at least 82,653.7 GB of memory here" in is_one_sentence(
        answers[0]
    )
    assert "width is 1000000000000000000000000000000; expected up to 65,536" in is_one_sentence(answers[1])
    assert "parameters takes at least" in is_one_sentence(answers[2])  # before the data is looked for
    assert not (tmp_path / "run").exists()


# Weights


def header(path, text, data=b""):
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(i):
    return f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'


def test_headers_of_weights_that_claim_much(saved, tmp_path):
    folders = []

    def broken(name):
        folders.append(tmp_path / name)
        shutil.copytree(saved / "vit", folders[-1])
        return folders[-1] / "model.safetensors"

    many = ("{" + ",".join(map(entry, range(1_200_000))) + "}").encode()
    header(broken("many"), many)
    header(broken("some"), ("{" + ",".join(map(entry, range(100_000))) + "}").encode())
    header(broken("deep"), b"[" * 1_000_000)
    broken("long").write_bytes((1 << 63).to_bytes(8, "little") + b"{}")
    broken("claims").write_bytes((99_000_000).to_bytes(8, "little") + b"{}")
    header(broken("overflow"), b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}')
    header(broken("negative"), b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', bytes(4))
    header(broken("nothing"), b"{}")
    broken("empty").write_bytes(b"")
    answers = run_commands([["predict", folder, saved / "a.png"] for folder in folders])
    said = {folder.name: is_one_sentence(answer) for folder, answer in zip(folders, answers, strict=True)}
    assert f"its header is said to take {len(many):,} bytes; expected up to 16,777,216" in said["many"]
    assert "it has unknown 0, 1, 10, 100, 1000, 10000, 10001, 10002, 10003, 10004 and 99,990 more" in said["some"]
    assert "it lacks blocks.0." in said["nothing"]
    assert all(
        "model.safetensors is damaged or no safetensors file" in said[name] for name in ("deep", "long", "empty")
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers(dtype, saved, tmp_path):
    shutil.copytree(saved / "vit", tmp_path / "odd")
    weights = load_file(saved / "vit" / "model.safetensors")
    save_file({name: value.to(dtype) for name, value in weights.items()}, tmp_path / "odd" / "model.safetensors")
    with pytest.raises(ValueError, match=r"it has other than real numbers for blocks\.0"):
        ViT.from_pretrained(tmp_path / "odd")
