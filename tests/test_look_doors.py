"""Anybody's model at the command line and on the server: text, pictures, both; one sentence for what doesn't fit."""

import json
import wave

import numpy as np
import pytest
from strangers import RATE, TEXT, picture, sound, stranger

import pellucid
from pellucid.cli import main
from pellucid.data.images import to_picture
from pellucid.serve.app import create_app
from pellucid.serve.limits import Limits
from pellucid.views.bundle import from_bytes, load_trace

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("timm", "transformers"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models as folders, a picture and a sound beside them."""
    root = tmp_path_factory.mktemp("models")
    for name in ("gpt2", "clip", "whisper"):
        made = stranger(name)
        made.model.save_pretrained(root / name)
        made.reader.save_pretrained(root / name)
    to_picture(picture(), "it").save(root / "a.png")
    with wave.open(str(root / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound() * 2**14).astype("<i2").tobytes())
    return root


def attend(*words: object) -> int | None:
    return main(["attend", *map(str, words)])


@pytest.mark.parametrize(
    ("model", "asked", "kind", "streams"),
    [
        ("gpt2", ["--text", TEXT, "--figure", "FIGURE"], "language", ["text"]),
        ("clip", ["a.png", "--text", "the cat sat", "a dog ran"], "classifier", ["image", "text"]),
        ("whisper", ["--audio", "a.wav", "--generate", "2"], "transcriber", ["frames", "target"]),
    ],
)
def test_a_command_gives_a_page(folders, tmp_path, capsys, model, asked, kind, streams):
    asked = [
        str(tmp_path / "a.png") if word == "FIGURE" else str(folders / word) if "a." in word else word for word in asked
    ]
    kept = ["--out", tmp_path / "a.html", "--trace", tmp_path / "a.pellucid", "--json"]
    attend(f"hf:{folders / model}", *asked, *kept)
    told = json.loads(capsys.readouterr().out)
    found = load_trace(tmp_path / "a.pellucid")
    assert (told["kind"], found.kind) == (kind, kind)
    assert [stream.name for stream in found.streams] == streams
    (one,) = told["inputs"]
    assert [each["label"] for each in one["answers"]] == [label for label, _ in found.answers]
    assert one["maps"]
    assert (tmp_path / "a.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["hf:nowhere/at/all/./x", "--text", "a"], "can't be opened|is no model"),
        (["hf:MODEL"], "is given nothing to read"),
        (["MODEL", "--text", "a"], "holds a model of Hugging Face's; name it hf:/"),
        (["hf:MODEL", "--text", TEXT, "--heads", "a.png"], "--heads is for models of ours"),
        (["hf:MODEL", "--text", " ".join([TEXT] * 6)], "places for 32"),
        (["hf:MODEL", "--text", "a", "b", "c"], "names 3 texts"),
        (["hf:MODEL", "--audio", "pyproject.toml"], "can't be read as a .wav file"),
        (["vit-cifar10", "--text", "a"], "--text is for hf: models and translators"),
    ],
)
def test_what_can_not_be_looked_at_is_said_in_one_sentence(folders, capsys, asked, sentence):
    assert attend(*(word.replace("MODEL", str(folders / "gpt2")) for word in asked)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert np.any([part in said for part in sentence.split("|")]), said


@pytest.fixture(scope="module")
def client(folders):
    from starlette.testclient import TestClient

    models = {name: pellucid.load(f"hf:{folders / name}") for name in ("gpt2", "clip")}
    models["translator-en-de"] = pellucid.load("translator-en-de")
    with TestClient(create_app(models, limits=Limits()), base_url="http://127.0.0.1") as client:
        yield client


def test_the_server_says_what_each_reads(client):
    listed = {each["name"]: each for each in client.get("/api/models").json()}
    assert (listed["gpt2"]["reads"], listed["gpt2"]["image"], listed["gpt2"]["kind"]) == (["text"], None, "model")
    assert (listed["gpt2"]["channels"], listed["clip"]["channels"]) == (None, 3)
    assert (listed["clip"]["reads"], listed["clip"]["image"]) == (["text", "picture"], [16, 16])
    assert [listed["translator-en-de"][each] for each in ("kind", "reads", "image", "channels")] == [
        "translator",
        ["text"],
        None,
        None,
    ]


def test_the_server_traces_text_and_pictures(client, folders):
    response = client.post("/api/trace", params={"model": "gpt2"}, content=TEXT.encode())
    found = from_bytes(response.content)
    assert "".join(found.streams[0].labels).replace(" ", "") == TEXT.replace(" ", "")
    named = client.post("/api/trace", params={"model": "gpt2", "target": "cat"}, content=TEXT.encode())
    assert {each.target for each in from_bytes(named.content).maps} == {"cat"}
    both = {"model": "clip", "text": "the cat sat"}
    seen = from_bytes(client.post("/api/trace", params=both, content=(folders / "a.png").read_bytes()).content)
    assert [stream.name for stream in seen.streams] == ["image", "text"]


def test_the_server_traces_a_translation(client):
    """What comes is the model's own translation, with the words that were read for each of its pieces."""
    sentence = "A man rides a horse."
    response = client.post("/api/trace", params={"model": "translator-en-de"}, content=f" {sentence}\n".encode())
    found = from_bytes(response.content)
    (truth,) = pellucid.load("translator-en-de").translate(sentence)
    assert found.said == truth.text
    assert [stream.name for stream in found.streams] == ["source", "translation"]
    assert {each.word for each in found.maps} == set(range(len(found.words)))


def test_the_server_refuses_in_one_sentence(client, folders):
    for asked, body, status, part in (
        ({"model": "gpt2"}, b"\xff\xfe", 415, "isn't UTF-8"),
        ({"model": "gpt2"}, b" ", 422, "expected 1…2,000"),
        ({"model": "gpt2"}, (TEXT * 99).encode(), 422, "expected 1…2,000"),
        ({"model": "gpt2"}, " ".join([TEXT] * 6).encode(), 422, "places for 32"),
        ({"model": "gpt2", "text": "a"}, b"a", 422, "reads text alone"),
        ({"model": "gpt2", "target": "purple cow"}, b"the cat", 422, "tokens of this tokenizer"),
        ({"model": "clip", "text": "a"}, b"no picture", 415, "can't be read"),
        ({"model": "translator-en-de", "target": "a"}, b"A man.", 422, "leave out target"),
        ({"model": "translator-en-de", "text": "a"}, b"A man.", 422, "reads text alone"),
        ({"model": "translator-en-de"}, b"A man. " * 80, 422, "has 560 characters; expected 1…500"),
        ({"model": "translator-en-de"}, b"&%$#;" * 100, 422, "pieces; expected up to 256"),
    ):
        response = client.post("/api/trace", params=asked, content=body)
        assert (response.status_code, part in response.json()["error"]) == (status, True), response.text
    for name in ("gpt2", "translator-en-de"):
        told = client.post("/api/classify", params={"model": name}, content=b"a").json()["error"]
        assert "ask it at /api/trace" in told
