"""The verb that shows what a model looks at, as a person runs it."""

import base64
import json
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from speaking import CAPTIONS, captioner, pictures

from pellucid.cli import attend as attend_room
from pellucid.cli import main
from pellucid.data.images import decode
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.explain.heads import report_heads
from pellucid.explain.trace import trace
from pellucid.models import ViT, ViTConfig
from pellucid.ready import ReadyCaptioner, load_checkpoint, load_classifier
from pellucid.runs import RunFolder
from pellucid.views.bundle import from_bytes, load_trace

LABELS = ("cat", "dog", "bird")
CONFIG = ViTConfig(classes=3, image=(8, 12), width=16, depth=2, heads=2, labels=LABELS, mean=(0.5,) * 3, std=(0.3,) * 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "sees"
    torch.manual_seed(0)
    ViT(CONFIG).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def teller(tmp_path_factory):
    """A captioner that knows five pictures by heart, and spells their words in pieces."""
    folder = tmp_path_factory.mktemp("models") / "tells"
    tokenizer = CaptionTokenizer.train(CAPTIONS * 3, min_count=1, kind="bpe", size=40)
    captioner(tokenizer).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(pictures()):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path / f"{i}.png")
    return path


def run(capsys, *words, code=0):
    assert main([str(word) for word in ("attend", *words)]) == code
    return capsys.readouterr()


def traces_in(page):
    """What a page carries."""
    found = re.findall(r'<script type="application/x-pellucid">([^<]*)</script>', page.read_text())
    return [from_bytes(base64.b64decode(each)) for each in found]


def test_a_page_of_what_a_classifier_sees(model, folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    said = run(capsys, model, folder / "0.png", folder / "1.png", "--out", out).out.splitlines()
    seen = traces_in(out)
    assert len(seen) == 2
    for i, (line, found) in enumerate(zip(said, seen, strict=False)):
        shares = "  ".join(f"{label} {100 * share:.1f} %" for label, share in found.answers)
        assert line == f"{folder / f'{i}.png'}  {shares}"
        truth = trace(load_classifier(model).transformer, decode(folder / f"{i}.png", size=(8, 12)))
        assert [label for label, _ in found.answers] == [label for label, _ in truth.answers]
        torch.testing.assert_close(found.maps[1].values, truth.maps[1].values)
    assert [each.method for each in seen[0].maps] == ["rollout", "gradient"]
    assert seen[0].model == "sees"
    assert said[2:] == [f"report: {out}"]


def test_the_summary_figures_and_traces(model, folder, tmp_path, capsys):
    words = ["--figure", tmp_path / "heads.png", "--trace", tmp_path / "seen.pellucid", "--out", tmp_path / "r.html"]
    said = run(capsys, model, folder, "--json", "--method", "input-gradient", "--target", "dog", *words).out
    found = json.loads(said)
    assert (found["model"], found["kind"], found["report"]) == ("sees", "classifier", str(tmp_path / "r.html"))
    assert [each["image"] for each in found["images"]] == [str(folder / f"{i}.png") for i in range(5)]
    for i, each in enumerate(found["images"]):
        assert sum(answer["probability"] for answer in each["answers"]) == pytest.approx(1.0)
        kept = load_trace(each["trace"])
        assert each["trace"] == str(tmp_path / f"seen-{i + 1}.pellucid")
        (mine,) = each["maps"]
        assert (mine["method"], mine["target"]) == ("input gradient", "dog")
        place = int(kept.maps[0].values.argmax())
        assert mine["most"] == kept.streams[0].labels[place]
        assert mine["value"] == pytest.approx(kept.maps[0].values[place].item())
        with Image.open(each["figure"]) as image:
            assert image.width > 400
    assert "faithfulness" not in found


def test_a_target_by_number(model, folder, tmp_path, capsys):
    for target in ("2", "bird"):
        run(capsys, model, folder / "0.png", "--out", tmp_path / "r.html", "--target", target)
        assert traces_in(tmp_path / "r.html")[0].maps[0].target == "bird"


def test_a_captioner_says_whole_words(teller, folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    said = run(capsys, teller, folder / "0.png", folder / "3.png", "--out", out, "--figure", tmp_path / "w.svg").out
    assert said.splitlines()[:2] == [f"{folder / '0.png'}  {CAPTIONS[0]}", f"{folder / '3.png'}  {CAPTIONS[3]}"]
    first, _ = traces_in(out)
    assert "".join(word for word, _ in first.words) == CAPTIONS[0].replace(" ", "")
    assert len(first.words) > len(CAPTIONS[0].split())  # pieces
    assert len(first.maps) == 2 * len(first.words)
    assert "<svg" in (tmp_path / "w-1.svg").read_text()
    found = json.loads(run(capsys, teller, folder / "0.png", "--out", out, "--json", "--beam", 2).out)
    (listed,) = found["images"]
    assert listed["caption"] == CAPTIONS[0]
    assert all(0 < word["probability"] <= 1 for word in listed["words"])


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ((), "where the token “class” looks"),
        (("--query", "patch 1,0"), "where the token “patch 1,0” looks"),
        (("--query", "0"), "where the token “class” looks"),
        (("--rescale",), "where the token “class” looks"),
    ],
)
def test_whose_look_the_figure_shows(words, title, model, folder, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(attend_room, "save_figure", lambda figure, path: drawn.append(figure))
    run(capsys, model, folder / "0.png", "--out", tmp_path / "r.html", "--figure", tmp_path / "h.png", *words)
    (figure,) = drawn
    assert title in figure.get_suptitle()
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert any("rescaled" in label for label in labels) == ("--rescale" in words)


def test_faithfulness_is_measured_beside_random(model, folder, tmp_path, capsys):
    out = tmp_path / "r.html"
    words = (model, folder / "0.png", folder / "1.png", "--out", out, "--method", "rollout", "--faithfulness")
    said = run(capsys, *words).out
    assert f"faithfulness: {tmp_path / 'r-faithfulness.png'}" in said
    with Image.open(tmp_path / "r-faithfulness.png") as image:
        assert image.width > 1000
    found = json.loads(run(capsys, *words, "--json").out)["faithfulness"]
    assert list(found) == ["rollout", "random"]
    for areas in found.values():
        for area in areas.values():
            assert 0 < area["low"] <= area["mean"] <= area["high"] < 1
    for method in found:
        (line,) = [line for line in said.splitlines() if line.startswith(method)]
        assert f"{found[method]['insertion']['mean']:.3f} [" in line


def test_a_picture_that_cannot_be_read_is_left_out(model, folder, tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    out = tmp_path / "r.html"
    said = run(capsys, model, tmp_path / "broken.png", folder / "0.png", "--out", out, code=2)
    assert "broken.png can't be read" in said.err
    assert "1 of 2 pictures could not be read" in said.err
    assert len(traces_in(out)) == 1


def test_the_heads_in_numbers_and_the_health_of_a_captioner(model, teller, folder, tmp_path, capsys, monkeypatch):
    """The picture's numbers are the report's; a captioner whose words all have one map is an alarm."""
    drawn = {}
    monkeypatch.setattr(attend_room, "save_figure", lambda figure, path: drawn.update({path.name: figure}))
    out = tmp_path / "r.html"
    run(capsys, model, folder / "0.png", folder / "1.png", "--out", out, "--heads", tmp_path / "h.png")
    assert list(drawn) == ["h-1.png", "h-2.png"]
    (first, _) = traces_in(out)
    entropy = report_heads(first)[0].entropy[0].item()
    texts = [text.get_text() for axes in drawn["h-1.png"].axes for text in axes.texts]
    assert texts[0] == f"{entropy:.1f}"
    said = run(capsys, teller, folder / "0.png", "--out", out, "--method", "raw", "--json").out
    health = json.loads(said)["health"]
    assert list(health) == ["raw"]
    assert health["raw"]["between_words"] > 0
    assert health["raw"]["between_pictures"] is None
    even = replace(traces_in(out)[0], maps=tuple(
        replace(each, values=torch.ones_like(each.values)) for each in traces_in(out)[0].maps
    ))  # fmt: skip
    monkeypatch.setattr(ReadyCaptioner, "trace", lambda *_, **__: even)
    told = run(capsys, teller, folder / "0.png", "--out", out).out
    assert "beware: by raw, the maps of different words differ in 0 % of their mass" in told


def test_a_run_is_followed_through_its_checkpoints(folder, tmp_path, capsys):
    """Kept every few steps with the average of the weights; the picture shows the class that the page explains."""
    words = ["--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--batch", "64", "--optim.ema", "0.5"]
    path = tmp_path / "run"
    how = ["--duration", "6 steps", "--keep-every", "2 steps", "--evaluate-every", "0 steps"]
    assert main(["train", "vit_digits", "--out", str(path), *words, *how]) == 0
    kept = [(step, file.stem) for step, file in RunFolder(path).checkpoints.listing()]
    assert kept == [(2, "step-2"), (4, "step-4"), (6, "best"), (6, "last"), (6, "step-6")]
    x = torch.rand(2, 1, 8, 8)
    at = {name: load_checkpoint(path, path / "checkpoints" / f"{name}.safetensors").model(x) for _, name in kept}
    torch.testing.assert_close(at["step-6"], at["last"])
    torch.testing.assert_close(at["best"], at["last"])
    assert not torch.allclose(at["step-2"], at["step-6"], atol=1e-4)
    drawn = []
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend_room, "save_figure", lambda figure, path: drawn.append((figure, path)))
        said = run(capsys, path, folder / "0.png", "--out", tmp_path / "r.html", "--lapse", tmp_path / "l.png").out
    ((figure, where),) = drawn
    assert f"lapse: {where}" in said
    (seen,) = traces_in(tmp_path / "r.html")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title().startswith("step")]
    assert [title.split("\n")[0] for title in titles] == ["step 2", "step 4", "step 6"]
    assert all(title.split("\n")[1].startswith(seen.answers[0][0]) for title in titles)


WRONG = {
    ("{model}",): "no pictures are given; name one or more files, folders or patterns",
    ("nothing", "a.png"): "no model 'nothing': as a path it is not there",
    ("{model}", "a.png"): "a.png can't be read: No such file",
    ("{model}", "{one}", "--out", "report.pdf"): "--out is 'report.pdf'; expected a page, as report.html",
    ("{model}", "{one}", "--out", "nowhere/r.html"): "the folder 'nowhere' doesn't exist; make it first",
    ("{model}", "{one}", "--figure", "heads.gif"): "a picture is .png, .svg, .pdf; got 'heads.gif'",
    ("{model}", "{one}", "--trace", "seen.json"): "expected a file that ends in .pellucid",
    ("{model}", "{one}", "--method", "guess"): "invalid choice 'guess'",
    ("{model}", "{one}", "--method"): "--method",
    (
        "{model}",
        "{one}",
        "--target",
        "horse",
    ): "expected one of cat, dog, bird, or a number in 0…2",
    ("{model}", "{one}", "--target", "3"): "--target is '3'",
    ("{model}", "{one}", "--target", "-1"): "--target",
    ("{model}", "{one}", "--beam", "3"): "--beam is for captioners",
    ("{model}", "{one}", "--query", "class"): "--query is of a figure; give --figure too",
    ("{model}", "{one}", "--rescale"): "--rescale is of a figure; give --figure too",
    ("{model}", "{one}", "--lapse", "l.png"): "--lapse follows a run through its checkpoints; ",
    ("{model}", "{one}", "--figure", "h.png", "--query", "patch 9,9"): "there is no token 'patch 9,9'; expected 0…6",
    ("{model}", "{one}", "--faithfulness", "--target", "cat"): "follows the likeliest class; leave out --target",
    ("{teller}", "{one}", "--target", "cat"): "--target is for classifiers",
    ("{teller}", "{one}", "--faithfulness"): "--faithfulness is for classifiers",
    ("{teller}", "{one}", "--beam", "0"): "--beam is 0; expected one or more",
    ("{model}", "{one}", "--device", "tpu"): "device is 'tpu'",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_mistakes_get_one_sentence_and_leave_nothing(words, model, teller, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": str(model), "teller": str(teller), "one": str(folder / "0.png")}
    said = run(capsys, *(word.format(**names) for word in words), code=2)
    assert said.out == ""
    assert said.err.startswith("pellucid: ")
    assert WRONG[words] in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_damaged_weights_are_said_to_be(folder, tmp_path, capsys):
    broken = ViT(CONFIG)
    with torch.no_grad():
        broken.head.bias.fill_(torch.nan)
    broken.save_pretrained(tmp_path / "broken")
    said = run(capsys, tmp_path / "broken", folder / "0.png", "--out", tmp_path / "r.html", code=2)
    assert "the model's answer is no number" in said.err
    assert not (tmp_path / "r.html").exists()
