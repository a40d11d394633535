"""The API: what it answers, what it refuses and with which sentence, and that nothing else ever comes out."""

import asyncio
import io
import json
import logging
import struct
import threading
import time
import zlib
from pathlib import Path
from urllib.parse import unquote

import anyio
import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis import GenerationMode, checks
from starlette.requests import Request
from starlette.testclient import TestClient

from pellucid import lab
from pellucid.cli import main
from pellucid.data.named import cache_folder
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ready import ReadyCaptioner, ReadyClassifier, load_classifier
from pellucid.runs import ClassifierRun, RunFolder
from pellucid.serve.app import create_app
from pellucid.serve.callers import Callers
from pellucid.serve.desk import WHOLE, Desk
from pellucid.serve.doors import Door
from pellucid.serve.guard import HEADERS, check_token
from pellucid.serve.limits import Limits, Room
from pellucid.serve.problems import UNEXPECTED, Problem
from pellucid.serve.runs import Runs
from pellucid.serve.uploads import Uploads
from pellucid.serve.worker import Worker
from pellucid.training.checkpoint import save_checkpoint
from pellucid.views.bundle import from_bytes

OURS = {"Host": "127.0.0.1:8000"}
CHECKS = [
    checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_headers_conformance, checks.response_schema_conformance, checks.unsupported_method,
]  # fmt: skip
HOME = "http://127.0.0.1:8000"
LIMITS = Limits(bytes=200_000, pixels=1 << 16, seconds=20.0)
LABELS = ("zebra", "ant", "mole")
LOOKS = ViTConfig(classes=3, image=(8, 8), width=16, depth=1, heads=2, labels=LABELS, mean=(0.5,) * 3, std=(0.2,) * 3)


@pytest.fixture(scope="module")
def models():
    """A small classifier and a small captioner, with random weights."""
    torch.manual_seed(0)
    tokenizer = CaptionTokenizer.train(["a red circle", "two blue squares"], min_count=1)
    looks = ViTConfig(image=(8, 8), width=16, depth=1, heads=2, pooling="none", mean=(0.5,) * 3, std=(0.2,) * 3)
    speaks = CaptionerConfig(vocabulary=len(tokenizer), encoder=looks, layers=1, heads=2, max_length=8)
    return {
        "small": ReadyClassifier(ViT(LOOKS), name="small"),
        "speaker": ReadyCaptioner(Captioner(speaks), tokenizer, name="speaker"),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs, as training leaves them: one whole and trained for a moment, one strange, one that isn't."""
    folder = tmp_path_factory.mktemp("runs")
    words = "train vit_digits --model.width 16 --model.depth 1 --model.heads 2 --batch 64 --data.held-out 0"
    assert (
        main([*words.split(), "--duration", "6 steps", "--evaluate-every", "3 steps", "--out", f"{folder}/digits"]) == 0
    )
    strange = folder / "strange"
    strange.mkdir()
    (strange / "config.json").write_text('{"recipe": ["no", "text"], "lr": NaN}')
    lines = [
        "nonsense",
        "[1]",
        '{"step": 1}',
        '{"step": 1, "epoch": 0.5, "loss": NaN, "accuracy": "much"}',
        '{"step": 2, "epoch": 1e999, "loss": 1}',
        '{"step": true, "epoch": 1, "loss": 1}',
        '{"step": 2, "epoch": 1.0, "evaluation": {"top1": Infinity}}',
        '{"step": 2, "epoch": 1.0, "evaluation": 3}',
        '{"step": 3, "epoch": 1.5, "loss": 1',
    ]
    (strange / "log.jsonl").write_text("\n".join(lines))
    (folder / "empty").mkdir()
    (folder / "file").write_text("no folder")
    secret = tmp_path_factory.mktemp("outside")
    (secret / "config.json").write_text('{"recipe": "secret"}')
    (folder / "linked").symlink_to(secret)
    half = folder / "half"
    half.mkdir()
    (half / "config.json").write_text('{"recipe": "half"}')
    (secret / "log.jsonl").write_text('{"step": 1, "epoch": 1, "loss": 7}\n')
    (half / "log.jsonl").symlink_to(secret / "log.jsonl")
    return folder


@pytest.fixture(scope="module")
def client(models, runs):
    with opened(models, runs) as found:
        yield found


def opened(models, runs=None, limits=LIMITS, **how):
    return TestClient(create_app(models, runs, limits=limits, **how), base_url=HOME)


def file_of(mode="RGB", size=(20, 10), kind="PNG", **how):
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    (image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)).save(stream, kind, **how)
    return stream.getvalue()


def refusal(response, status):
    """The sentence of a refusal, which is all that there is."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    assert "Traceback" not in body["error"]
    return body["error"]


# What it answers


def test_models_and_health(client):
    small, speaker = client.get("/api/models").json()
    assert small | {"parameters": 0} == {
        "name": "small", "kind": "classifier", "reads": ["picture"], "image": [8, 8], "channels": 3, "parameters": 0,
        "labels": list(LABELS),
    }  # fmt: skip
    assert speaker["kind"] == "captioner"
    assert client.get("/api/health").json()["limits"] == {"bytes": 200_000, "pixels": 1 << 16, "seconds": 20.0}


def test_classes_are_those_of_the_command(client, models, tmp_path, capsys):
    picture = file_of()
    found = client.post("/api/classify", params={"model": "small", "top": 2}, content=picture).json()
    (tmp_path / "a.png").write_bytes(picture)
    models["small"].model.save_pretrained(tmp_path / "small")
    assert main(["predict", str(tmp_path / "small"), str(tmp_path / "a.png"), "--top", "2", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert [each["label"] for each in found["classes"]] == [each["label"] for each in said["predictions"]]
    for mine, theirs in zip(found["classes"], said["predictions"], strict=True):
        assert mine["probability"] == pytest.approx(theirs["probability"], abs=1e-6)


def test_captions_are_those_of_the_model(client, models):
    picture = file_of()
    found = client.post("/api/caption", params={"model": "speaker", "n_best": 2}, content=picture).json()["captions"]
    speaker = models["speaker"]
    expected = speaker.caption(picture, beam=5, n_best=2)
    assert [each["caption"] for each in found] == [each.text for each in expected]
    assert found[0]["log_prob"] == pytest.approx(expected[0].log_prob, abs=1e-5)
    assert [each["word"] for each in found[0]["words"]] == list(expected[0].words)


@pytest.mark.parametrize("model", ["small", "speaker"])
def test_a_trace_can_be_read_back(client, models, model):
    picture = file_of()
    response = client.post("/api/trace", params={"model": model}, content=picture)
    assert response.headers["content-type"] == "application/octet-stream"
    found = from_bytes(response.content)
    assert found.model == model
    assert torch.equal(found.pictures[0].pixels, models[model].read(picture)[0])


def test_a_trace_explains_the_class_that_is_asked_for(client):
    for target in LABELS:
        response = client.post("/api/trace", params={"model": "small", "target": target}, content=file_of())
        assert {each.target for each in from_bytes(response.content).maps} == {target}
    refusal(client.post("/api/trace", params={"model": "small", "target": "cow"}, content=file_of()), 422)
    refusal(client.post("/api/trace", params={"model": "speaker", "target": "ant"}, content=file_of()), 422)


KINDS = {
    "grey": file_of("L"),
    "cmyk": file_of("CMYK", kind="TIFF"),
    "16 bits": file_of("I;16"),
    "transparent": file_of("RGBA"),
    "palette": file_of("P", kind="GIF"),
    "1 bit": file_of("1"),
    "jpeg": file_of(kind="JPEG"),
    "webp": file_of(kind="WEBP"),
    "animated": file_of("L", kind="GIF", save_all=True, append_images=[Image.new("L", (20, 10))]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_every_kind(client, kind):
    response = client.post("/api/classify?model=small", content=KINDS[kind], headers={"content-type": "text/plain"})
    assert response.status_code == 200, response.text


def test_samples_can_be_looked_at(client):
    listed = client.get("/api/samples").json()
    assert {each["kind"] for each in listed} == {"photograph", "drawing", "scene"}
    for each in listed:
        response = client.get(f"/api/samples/{each['name']}")
        with Image.open(io.BytesIO(response.content)) as picture:
            assert response.headers["content-type"] == Image.MIME[picture.format or ""]
    assert "no sample is called" in refusal(client.get("/api/samples/nothing"), 404)


def test_the_experiments_of_the_lab_are_listed(client):
    found = client.get("/api/lab").json()
    assert [each["name"] for each in found] == list(lab.EXPERIMENTS)
    assert all(each["title"] and each["statement"] for each in found)


def test_the_page_and_all_its_parts(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in page.text
    assert "style=" not in page.text
    folders = [Path(create_app.__code__.co_filename).parent / "page"]
    folders.append(folders[0].parents[1] / "show" / "viewer")
    for folder in folders:
        for path in folder.glob("*.js"):
            response = client.get(f"/{folder.name}/{path.name}")
            assert response.content == path.read_bytes()
            assert response.headers["content-type"] == "text/javascript; charset=utf-8"


def test_every_answer_carries_its_headers(client):
    answers = [client.get(path) for path in ("/", "/api/health", "/api/nothing", "/page/page.css")]
    answers += [client.delete("/api/health"), client.get("/", headers={"Host": "elsewhere.org"})]
    for answer in answers:
        for name, value in HEADERS.items():
            if name != "Cache-Control":
                assert answer.headers[name] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


# Runs


def test_runs_are_listed_and_what_lies_outside_is_not(client):
    listed = {each["name"]: each for each in client.get("/api/runs").json()}
    assert sorted(listed) == ["digits", "half", "strange"]
    assert listed["digits"]["step"] == listed["digits"]["steps"] == 6
    assert not listed["digits"]["running"]
    assert set(listed["digits"]["figures"]) == {"top1", "loss"}
    assert listed["half"]["step"] == 0  # its log is a link that leads out


def test_a_run_is_told_whole_and_from_a_step_on(client, runs):
    whole = client.get("/api/runs/digits").json()
    logged = [json.loads(line) for line in (runs / "digits" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in logged if "evaluation" not in line]
    assert whole["curves"]["loss"] == [line["loss"] for line in steps]
    assert [each["step"] for each in whole["evaluations"]] == [3, 6]
    assert whole["config"]["recipe"] == "vit_digits"
    later = client.get("/api/runs/digits", params={"after": 4}).json()
    assert later["curves"]["step"] == [5, 6]
    assert later["curves"]["loss"] == whole["curves"]["loss"][4:]
    assert [each["step"] for each in later["evaluations"]] == [6]


def test_a_strange_run_breaks_nothing(client):
    found = client.get("/api/runs/strange").json()
    assert found["curves"] == {"step": [1], "epoch": [0.5], "loss": [None], "accuracy": [None]}
    assert found["evaluations"] == [{"step": 2, "epoch": 1.0, "seconds": None, "figures": {"top1": None}}]
    assert found["config"] == {"recipe": ["no", "text"], "lr": None}
    assert found["odd_lines"] == 6


OUTSIDE = [
    "linked",
    "empty",
    "file",
    "..",
    ".",
    "",
    "..%2f..%2fetc%2fpasswd",
    "digits%2f..%2f..",
    "digits%00",
    "~",
    "C:",
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("rest", ["", "/confusion.png"])
def test_no_name_leads_out_of_the_folder(client, name, rest):
    status, body = asked_raw(client, f"/api/runs/{name}{rest}")
    assert status == 404
    assert list(json.loads(body)) == ["error"]


def asked_raw(client, path):
    """GET this path as it stands, for clients tidy up what they are given."""
    scope = {"type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http"}  # fmt: skip
    sent = []

    async def receive():
        await anyio.sleep_forever()  # there is no body, and they don't leave

    async def send(message):
        sent.append(message)

    client.portal.call(client.app, scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_the_confusion_matrix_is_drawn_once(client, monkeypatch):
    response = client.get("/api/runs/digits/confusion.png")
    assert response.headers["X-Images"] == "360"
    with Image.open(io.BytesIO(response.content)) as picture:
        assert picture.width > 500
    monkeypatch.setattr(client.app.state.service.killable, "run", None)
    assert client.get("/api/runs/digits/confusion.png").content == response.content
    assert "has kept no weights yet" in refusal(client.get("/api/runs/strange/confusion.png"), 404)


def test_a_confusion_matrix_fetches_no_data(runs, models, tmp_path):
    copied = tmp_path / "runs" / "far"
    (copied / "checkpoints").mkdir(parents=True)
    config = json.loads((runs / "digits" / "config.json").read_text())
    config["data"]["name"] = "cifar10"
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "checkpoints" / "best.safetensors").write_bytes(
        (runs / "digits/checkpoints/best.safetensors").read_bytes()
    )
    with opened(models, tmp_path / "runs") as found:
        said = refusal(found.get("/api/runs/far/confusion.png"), 404)
    assert "the images of cifar10 are not on this machine" in said
    assert not list(cache_folder().glob("*cifar10*"))


def test_a_picture_through_the_checkpoints(client, runs):
    checkpoints = client.get("/api/runs/digits").json()["checkpoints"]
    assert sorted(each["name"] for each in checkpoints) == ["best", "last"]
    assert [each["step"] for each in checkpoints] == sorted(each["step"] for each in checkpoints)
    frames = {}
    for each in checkpoints:
        response = client.post("/api/runs/digits/trace", params={"checkpoint": each["name"]}, content=file_of())
        frames[each["name"]] = from_bytes(response.content)
        assert frames[each["name"]].model == f"digits, step {each['step']}"
    expected = load_classifier(runs / "digits").predict(file_of(), top=5)
    assert [label for label, _ in frames["best"].answers] == [label for label, _ in expected]
    assert [share for _, share in frames["best"].answers] == pytest.approx([share for _, share in expected], abs=1e-5)
    for name in ("nothing", "../best", "best.safetensors"):
        said = refusal(client.post("/api/runs/digits/trace", params={"checkpoint": name}, content=file_of()), 404)
        assert "has no checkpoint" in said
    refusal(client.post("/api/runs/strange/trace?checkpoint=best", content=file_of()), 404)


def test_a_checkpoint_with_an_average_and_a_damaged_one(models, tmp_path):
    """The average is what is looked at; weights that are no weights are a sentence."""
    run = ClassifierRun(model=LOOKS)
    folder = RunFolder(tmp_path / "averaged")
    folder.create(run)
    plain, average = (ViT(LOOKS).state_dict() for _ in range(2))
    tensors = {f"model.{k}": v for k, v in plain.items()} | {f"average.{k}": v for k, v in average.items()}
    save_checkpoint(folder.checkpoints.last, tensors, {"step": 3})
    folder.checkpoints.best.write_bytes(b"no weights")
    with opened(models, tmp_path) as client:
        assert client.get("/api/runs/averaged").json()["checkpoints"] == [{"name": "last", "step": 3}]
        frame = client.post("/api/runs/averaged/trace?checkpoint=last", content=file_of())
        refusal(client.post("/api/runs/averaged/trace?checkpoint=best", content=file_of()), 404)
        assert "is damaged" in refusal(client.get("/api/runs/averaged/confusion.png"), 404)
    expected = ViT(LOOKS).eval()
    expected.load_state_dict(average)
    (best,) = ReadyClassifier(expected).predict(file_of(), top=1)
    assert from_bytes(frame.content).answers[0][1] == pytest.approx(best.probability, abs=1e-5)


def test_long_curves_are_told_in_means(tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    text = "".join(json.dumps({"step": i, "epoch": i / 10, "loss": float(i % 2)}) + "\n" for i in range(1, 5001))
    (folder / "log.jsonl").write_text(text)
    curves = Runs(tmp_path).detail("long", folder, 0, points=100)["curves"]
    assert len(curves["loss"]) == 100
    assert curves["step"][-1] == 5000
    assert set(curves["loss"]) == {0.5}


# What it refuses


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/models", "/api/runs/digits", "/page/page.css", "/api/nothing"])
def test_head_is_get_without_a_body(client, path):
    whole, head = client.get(path), client.head(path)
    assert head.status_code == whole.status_code
    assert whole.content
    assert not head.content
    changing = {"date", "x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in changing} == {
        k: v for k, v in whole.headers.items() if k not in changing
    }
    assert client.head("/api/classify").status_code == 405


WRONG = {
    ("GET", "/api/nothing"): (404, "there is nothing at /api/nothing"),
    ("GET", "/nothing"): (404, "there is nothing at /nothing"),
    ("GET", "/page/../app.py"): (404, "there is nothing at /app.py"),
    ("GET", "/page/%2e%2e%2fapp.py"): (404, "there is nothing at"),
    ("GET", "/page/app.py"): (404, "the page has no part 'app.py'"),
    ("DELETE", "/api/models"): (405, "DELETE is not for /api/models"),
    ("GET", "/api/classify"): (405, "GET is not for /api/classify"),
    ("POST", "/api/classify"): (422, "model is missing"),
    ("POST", "/api/classify?model=cow"): (404, "no model is called 'cow'; there are: small, speaker"),
    ("POST", "/api/classify?model=speaker"): (422, "speaker is a captioner; ask it at /api/caption"),
    ("POST", "/api/caption?model=small"): (422, "small is a classifier; ask it at /api/classify"),
    ("POST", "/api/classify?model=small&top=0"): (422, "top is '0'; input should be greater than or equal to 1"),
    ("POST", "/api/classify?model=small&top=many"): (422, "top is 'many'; input should be a valid integer"),
    ("POST", "/api/classify?model=small&tpo=3"): (422, "there is no parameter tpo"),
    ("POST", "/api/caption?model=speaker&n_best=6"): (422, "n_best is 6; expected 1…5"),
    ("POST", "/api/classify?model=small"): (415, "the picture can't be read: it is empty"),
    ("GET", "/api/runs/digits?after=-1"): (422, "after is '-1'"),
    ("GET", "/api/runs/nothing"): (404, "no run is called 'nothing'"),
    ("GET", "/api/models?model=small"): (422, "there is no parameter model"),
}


@pytest.mark.parametrize("asked", WRONG, ids=" ".join)
def test_refusals_are_one_sentence(client, asked):
    status, sentence = WRONG[asked]
    assert sentence in refusal(client.request(*asked), status)


def bomb(width, height):
    """A PNG of one colour: kilobytes that would be gigabytes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


BROKEN = {
    "text": (b"hello, I am a picture", "it is no image in a format that is read here"),
    "cut": (file_of(size=(100, 100))[:300], "can't be read"),
    "bomb": (bomb(50_000, 50_000), "it is 50,000×50,000 pixels, more than the limit of 65,536; make it smaller"),
    "wide": (bomb(1 << 30, 1), "a side longer than the limit"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no image in a format that is read here (PNG, "),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is no image"),
    "html": (b"<!doctype html><script>alert(1)</script>", "it is no image"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("way", ["classify", "trace"])
def test_broken_pictures(client, name, way):
    data, sentence = BROKEN[name]
    headers = {"content-type": "image/png"}
    assert sentence in refusal(client.post(f"/api/{way}?model=small", content=data, headers=headers), 415)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_bounded_while_it_is_read(client, chunked):
    sent = []

    def parts():
        for _ in range(100):
            sent.append(10_000)
            yield bytes(10_000)

    content = parts() if chunked else bytes(1_000_000)
    said = refusal(client.post("/api/classify?model=small", content=content), 413)
    assert said == "the picture's file is larger than the limit of 200,000 bytes; shrink it"
    assert client.get("/api/health").json()["requests"] == 0


def test_hosts_and_origins(models):
    with opened(models, names=["gpu.example.org"]) as client:
        for host in ("127.0.0.1", "localhost:9000", "[::1]:8000", "gpu.example.org", "GPU.example.org:80", "10.0.0.7"):
            assert client.get("/api/health", headers={"Host": host}).status_code == 200
        for host in (
            "evil.org",
            "localhost.evil.org",
            "127.0.0.1.evil.org",
            "127.0.0.1:x",
            "",
            "a b",
            "[::1",
            "user@localhost",
        ):
            assert "Host header" in refusal(client.get("/api/health", headers={"Host": host}), 400)
        for origin in ("https://evil.org", "null", "http://127.0.0.1:9999", "http://127.0.0.1.evil.org:8000"):
            refusal(client.post("/api/classify?model=small", content=file_of(), headers={"Origin": origin}), 403)
        mine = client.post("/api/classify?model=small", content=file_of(), headers={"Origin": HOME})
        assert mine.status_code == 200
        assert "access-control-allow-origin" not in mine.headers


TOKEN = "a-token-of-some-length"


def test_a_token_is_asked_for(models):
    with opened(models, token=TOKEN) as client:
        for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Cookie": "pellucid=no"},
                      {"Authorization": "Bearer "}, {"Authorization": "Bearer ä"}):  # fmt: skip
            headers = {name: value.encode("latin-1") for name, value in wrong.items()}
            response = client.get("/api/models", headers=headers)
            assert "token" in refusal(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/api/models", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        refusal(client.get("/page/page.js"), 401)
        locked = client.get("/")
        assert (locked.status_code, "needs its token" in locked.text) == (401, True)
        assert client.get("/", params={"token": "guessed"}).status_code == 401
        refusal(client.get("/api/models", params={"token": TOKEN}), 401)  # an address is no place for it but once
        entered = client.get("/", params={"token": TOKEN}, follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        for word in ("HttpOnly", "SameSite=strict"):
            assert word in entered.headers["set-cookie"]
        assert client.get("/api/models").status_code == 200  # by the cookie
        again = client.get("/", params={"token": TOKEN}, follow_redirects=False)
        assert again.status_code == 303  # who is in already finds no token in the address either


def test_a_token_is_demanded_where_others_can_reach_the_server():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_token(None, host)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ValueError, match="others can reach the server"):
            check_token(None, host)
        check_token(TOKEN, host)
    for token in ("short", "with a space in the middle", "ümlaut-ümlaut-ümlaut"):
        with pytest.raises(ValueError, match="expected 16…200 letters"):
            check_token(token, "127.0.0.1")


def test_a_mistake_of_ours_is_told_to_the_log_alone(models, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(models["small"], "predict", broken)
    with opened(models) as client, caplog.at_level(logging.ERROR, "pellucid.serve"):
        response = client.post("/api/classify?model=small", content=file_of())
        assert refusal(response, 500) == UNEXPECTED
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "secret detail" in caplog.text
        assert client.post("/api/trace?model=small", content=file_of()).status_code == 200  # the worker lives on


# Many at a time


def held_up(models, monkeypatch):
    """The classifier waits for a sign; says how many pictures came together."""
    sign, batches, predict = threading.Event(), [], models["small"].predict

    def slow(images, top):
        sign.wait(10)
        batches.append(len(images))
        return predict(images, top)

    monkeypatch.setattr(models["small"], "predict", slow)
    return sign, batches


def at_once(client, count, picture):
    """So many requests at the same time; their responses."""
    found = [None] * count

    def one(i):
        found[i] = client.post("/api/classify?model=small", content=picture)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


def wait_until(true):
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_requests_go_through_the_model_together(models, monkeypatch):
    sign, batches = held_up(models, monkeypatch)
    with opened(models, limits=Limits(batch=8, gather=0.0)) as client:
        threads, found = at_once(client, 12, file_of())
        wait_until(lambda: client.get("/api/health").json()["requests"] == 12)
        time.sleep(0.1)
        sign.set()
        for thread in threads:
            thread.join()
        assert {response.status_code for response in found} == {200}
        assert sum(batches) == 12
        assert max(batches) <= 8
        assert len(batches) <= 4
        expected = client.post("/api/classify?model=small", content=file_of()).json()["classes"]
        assert [each["label"] for each in expected] == [each["label"] for each in found[0].json()["classes"]]


def test_a_full_house_says_when_to_come_again(models, monkeypatch):
    sign, _ = held_up(models, monkeypatch)
    with opened(models, limits=Limits(look=Room(slots=2, queue=1))) as client:
        threads, found = at_once(client, 3, file_of())
        wait_until(lambda: client.get("/api/health").json()["requests"] == 3)
        response = client.post("/api/classify?model=small", content=file_of())
        assert "the server is full" in refusal(response, 503)
        assert response.headers["retry-after"] == "1"
        sign.set()
        for thread in threads:
            thread.join()
        assert [response.status_code for response in found] == [200] * 3
        assert client.post("/api/classify?model=small", content=file_of()).status_code == 200


def test_one_caller_has_half_of_a_room():
    def asking(address):
        return Request({"type": "http", "client": (address, 1), "headers": []})

    async def ask():
        door, leave = Door(Room(slots=3, queue=1), Callers(["192.168.0.0/16"])), asyncio.Event()
        inside = [asyncio.create_task(door.through(asking("10.0.0.1"), leave.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="full"):
            await door.through(asking("10.0.0.1"), leave.wait)
        inside.append(asyncio.create_task(door.through(asking("10.0.0.2"), leave.wait)))
        await asyncio.sleep(0)
        assert door.inside == 3
        leave.set()
        await asyncio.gather(*inside)
        assert (door.inside, door.by_caller) == (0, {})
        leave.clear()
        inside = [asyncio.create_task(door.through(asking("192.168.0.1"), leave.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        assert (door.inside, door.waiting) == (3, 1), "bounds for one address don't hold for these"
        leave.set()
        await asyncio.gather(*inside)

    asyncio.run(ask())


def test_few_pictures_in_their_own_size_wait_for_a_model():
    """100 MB each: those that come later wait as the files that they are."""

    async def ask():
        limits = Limits()
        desk = Desk(Uploads(limits, Callers()), Worker(0.0), limits)
        held, most, leave = [0], [0], asyncio.Event()

        async def look():
            async with desk.whole(file_of()):
                held[0] += 1
                most[0] = max(held[0], most[0])
                try:
                    await leave.wait()
                finally:
                    held[0] -= 1

        async def look_at_a_broken_one():
            async with desk.whole(b"no picture"):
                pass

        waiting = [asyncio.create_task(look()) for _ in range(12)]
        while held[0] < WHOLE:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert most == [WHOLE]
        leave.set()
        await asyncio.gather(*waiting)
        assert most == [WHOLE]
        for _ in range(WHOLE + 1):  # each gives its place back
            with pytest.raises(Problem, match="can't be read"):
                await look_at_a_broken_one()
        desk.close()

    asyncio.run(ask())


def test_all_files_together_are_bounded(models):
    with opened(models, limits=Limits(held=1000)) as client:
        response = client.post("/api/classify?model=small", content=file_of(size=(60, 60)))
        assert "the server is full" in refusal(response, 503)
        assert client.post("/api/classify?model=small", content=file_of(size=(8, 8))).status_code == 200


def test_an_answer_has_a_time_limit(models, monkeypatch):
    sign, batches = held_up(models, monkeypatch)
    with opened(models, limits=Limits(seconds=0.2)) as client:
        response = client.post("/api/classify?model=small", content=file_of())
        assert "took longer than 0.2 s" in refusal(response, 503)
        assert response.headers["retry-after"] == "1"
        late = client.post("/api/classify?model=small", content=file_of())  # waits behind the first one, in vain
        assert late.status_code == 503
        sign.set()
        wait_until(lambda: batches)
        wait_until(lambda: client.post("/api/classify?model=small", content=file_of()).status_code == 200)
        assert client.get("/api/health").json()["requests"] == 0
    assert sum(batches) >= 2
    assert 0 not in batches  # who gave up is not looked at


def test_the_worker_takes_alike_jobs_together_and_in_order():
    worker, seen, sign = Worker(gather=0.0), [], threading.Event()

    def run(name):
        def of(items):
            sign.wait(10)
            seen.append((name, items))
            return [item * 10 for item in items]

        return of

    first = worker.submit("first", run("first"), 0)
    wait_until(lambda: not worker.row)
    jobs = [worker.submit(key, run(key), i, together=2) for i, key in enumerate(["a", "b", "a", "a"], 1)]
    dropped = worker.submit("a", run("a"), 9, together=2)
    assert dropped.cancel()
    sign.set()
    assert [job.result(10) for job in jobs] == [10, 20, 30, 40]
    assert first.result() == 0
    worker.close()
    assert seen == [("first", [0]), ("a", [1, 3]), ("b", [2]), ("a", [4])]
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit("a", run("a"), 1)


def test_a_wrong_number_of_results_is_an_error_of_that_batch():
    worker = Worker(gather=0.0)
    with pytest.raises(ValueError, match="zip"):
        worker.submit("a", lambda items: [], 1).result(10)
    assert worker.submit("a", lambda items: items, 1).result(10) == 1
    worker.close()


# Fuzzing


def test_no_bytes_break_the_server(client):
    kept = [file_of(kind=kind, size=(9, 7)) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "ICO", "PPM")]

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def tried(data):
        body = bytearray(data.draw(st.sampled_from(kept) | st.binary(max_size=300)))
        for _ in range(data.draw(st.integers(0, 4)) if body else 0):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        body = bytes(body[: data.draw(st.integers(0, len(body)))]) if data.draw(st.booleans()) else bytes(body)
        response = client.post("/api/classify?model=small", content=body)
        if response.status_code != 200:
            refusal(response, 415)

    tried()


KNOWN = {"model": ["small", "speaker"], "name": ["digits", "strange", "ship", "graph"]}


def test_the_api_keeps_to_its_description(models, runs):
    """Every operation, with parameters that fit and that don't: documented statuses, types and bodies alone."""
    described = schemathesis.openapi.from_asgi(
        "/api/openapi.json", create_app(models, runs, limits=LIMITS), headers=OURS
    )
    seen = set()
    for found in described.get_all_operations():
        operation = found.ok()
        cases = [operation.as_strategy(mode) for mode in GenerationMode]

        @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.data(), st.one_of(*cases))
        def tried(data, case):
            for values in (case.query, case.path_parameters):  # names that are there are hard to guess
                for name in KNOWN.keys() & (values or {}).keys():
                    values[name] = data.draw(st.sampled_from(KNOWN[name]) | st.just(values[name]))
            response = case.call(headers=OURS, timeout=60)
            seen.add((case.path, response.status_code))
            case.validate_response(response, checks=CHECKS)

        tried()
    assert {path for path, _ in seen} == set(described.raw_schema["paths"])
    assert {status for _, status in seen} >= {200, 404, 415, 422}
