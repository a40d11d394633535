"""The verbs that caption pictures and judge captioners, as a person runs them."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from speaking import CAPTIONS, NORMALISE, captioner, pictures

from pellucid.cli import evaluate, main
from pellucid.cli.pictures import find_pictures
from pellucid.data.caption_sources import CaptionData
from pellucid.data.captions import CaptionSplits
from pellucid.data.scenes import SceneConfig, make_scenes
from pellucid.data.tokenizer import CaptionTokenizer
from pellucid.evaluation import captioning
from pellucid.evaluation.captioning import name_map
from pellucid.evaluation.captions import CAPTION_METRICS, score
from pellucid.evaluation.pointing import pointing_at
from pellucid.models import Captioner, CaptionerConfig, ViT, ViTConfig
from pellucid.ready import ReadyCaptioner, load_captioner
from pellucid.ready import captioner as ready_captioner
from pellucid.runs import CaptionerRun

OTHERS = ("a brown dog is running", "cats on the sofa", "green grass", "one cat lies on the grass", "some birds")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A captioner that knows five pictures by heart."""
    folder = tmp_path_factory.mktemp("models") / "heart"
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    captioner(tokenizer).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The five pictures as files, 0.png to 4.png."""
    path = tmp_path_factory.mktemp("pictures")
    for i, picture in enumerate(pictures()):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path / f"{i}.png")
    return path


def karpathy(path, folder, first=CAPTIONS, ids=None):
    """The pictures with two captions each, as a test split; the first two are to train on, too."""
    images = []
    for i, pair in enumerate(zip(first, OTHERS, strict=True)):
        shutil.copy(folder / f"{i}.png", path / f"{i}.png")
        images.append({"filename": f"{i}.png", "split": "test", "sentences": [{"raw": text} for text in pair]})
    for i in (0, 1):
        shutil.copy(folder / f"{i}.png", path / f"t{i}.png")
        images.append({"filename": f"t{i}.png", "split": "train", "sentences": [{"raw": OTHERS[i]}]})
    (path / "captions.json").write_text(json.dumps({"images": images}))
    return path / "captions.json"


def run(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


# evaluate


def test_evaluate_gives_the_scores_and_their_controls(saved, folder, tmp_path, capsys):
    data, results = karpathy(tmp_path, folder), tmp_path / "results.json"
    said = run(capsys, "evaluate", saved, "--data", data, "--json", "--beam", 3, "--captions", results)
    found = json.loads(said.out)
    references = {str(i): pair for i, pair in enumerate(zip(CAPTIONS, OTHERS, strict=True))}
    wanted = score({str(i): caption for i, caption in enumerate(CAPTIONS)}, references)
    assert {name: found[name] for name in CAPTION_METRICS} == pytest.approx(wanted)
    for control in ("shuffled", "blank", "fixed", "people"):
        assert set(found[control]) == set(CAPTION_METRICS)
        assert found[control]["cider_d"] < 0.7 * found["cider_d"]
    assert found["fixed_caption"] in OTHERS[:2]  # those that it could have learned
    assert found["interval"]["cider_d"][0] < found["cider_d"] < found["interval"]["cider_d"][1]
    assert (found["different"], found["images"], found["beam"], found["split"]) == (5, 5, 3, "test")
    assert found["captions_per_second"] > 0
    assert "exact" not in found
    told = json.loads(results.read_text())
    assert [each["caption"] for each in told] == list(CAPTIONS)
    assert set(told[0]) == {"image_id", "caption"}


def test_examples_go_from_the_best_to_the_worst(saved, folder, tmp_path, capsys, monkeypatch):
    drawn = []
    real = evaluate.examples_figure
    monkeypatch.setattr(evaluate, "examples_figure", lambda shown: real(drawn.extend(shown) or shown))
    said = run(capsys, "evaluate", saved, "--data", karpathy(tmp_path, folder), "--examples", tmp_path / "e.png").out
    assert f"examples: {tmp_path / 'e.png'}" in said
    assert sorted(example.caption for example in drawn) == sorted(CAPTIONS)
    scores = [example.score for example in drawn]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]
    with Image.open(tmp_path / "e.png") as image:
        assert image.width > 1000


def test_evaluate_for_people(saved, folder, tmp_path, capsys):
    data = karpathy(tmp_path, folder)
    said = run(capsys, "evaluate", saved, "--data", data, "--captions", tmp_path / "results.json").out
    lines = {line[:9].strip(): line.split() for line in said.splitlines()}
    assert lines["model"][1:2] == ["100.0"]
    assert "–" in lines["95 %"][-1]
    for row in ("shuffled", "blank", "fixed", "people"):
        assert len(lines[row]) == 7
        assert float(lines[row][-1]) < float(lines["model"][-1])
    assert "different captions  5 of 5" in said
    assert "warning" not in said


def test_the_official_programs_are_asked_for_by_name(saved, folder, tmp_path, capsys, monkeypatch):
    data = karpathy(tmp_path, folder)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said = run(capsys, "evaluate", saved, "--data", data, "--spice", code=2)
    assert "SPICE is a Java program and there is no java" in said.err
    monkeypatch.setattr(evaluate.jars, "find_jar", lambda name: tmp_path)
    monkeypatch.setattr(evaluate.jars, "_meteor", lambda jar, said, meant: len(said) / 10)
    found = json.loads(run(capsys, "evaluate", saved, "--data", data, "--meteor", "--json").out)
    assert found["meteor"] == 0.5
    assert "spice" not in found
    assert "METEOR              50.0" in run(capsys, "evaluate", saved, "--data", data, "--meteor").out

    def fails(jar, said, meant):
        raise ValueError("SPICE's program failed: Error: no memory")

    monkeypatch.setattr(evaluate.jars, "_spice", fails)
    said = run(capsys, "evaluate", saved, "--data", data, "--meteor", "--spice", "--json", code=2)
    assert "SPICE's program failed: Error: no memory" in said.err
    told = json.loads(said.out)
    assert told == found | {"captions_per_second": told["captions_per_second"]}  # METEOR among them


def test_a_model_that_does_not_look_is_told_of(folder, tmp_path, capsys):
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    blind = captioner(tokenizer, steps=3)
    with torch.no_grad():
        for block in blind.decoder.blocks:
            block.cross_attention.out.weight.zero_()
    blind.save_pretrained(tmp_path / "blind")
    tokenizer.save(tmp_path / "blind" / "tokenizer.json")
    data = karpathy(tmp_path, folder)
    found = json.loads(run(capsys, "evaluate", tmp_path / "blind", "--data", data, "--json").out)
    assert found["different"] == 1
    assert "says the same of all 5 images" in found["warning"]
    assert found["shuffled"] == found["blank"] == {name: found[name] for name in CAPTION_METRICS}
    assert "warning: the model says the same" in run(capsys, "evaluate", tmp_path / "blind", "--data", data).out


def test_scenes_are_judged_by_the_truth(tmp_path, capsys, monkeypatch):
    config = SceneConfig(train=30, validation=8, test=24)
    splits = make_scenes(config, (32, 32))
    captions = [text for part in (splits.train, splits.test) for (text,) in part.captions]
    tokenizer = CaptionTokenizer.train(captions, min_count=1)
    encoder = ViTConfig(
        image=(32, 32), patch=(8, 8), width=16, depth=1, heads=2, pooling="none", mean=NORMALISE.mean, std=NORMALISE.std
    )
    model = Captioner(CaptionerConfig(vocabulary=len(tokenizer), encoder=encoder, layers=2, heads=2, max_length=16))
    model.eval().save_pretrained(tmp_path / "scenes")
    tokenizer.save(tmp_path / "scenes" / "tokenizer.json")
    asked = []
    monkeypatch.setattr(ready_captioner, "load_captions", lambda data, trains: asked.append(data) or splits)
    found = json.loads(run(capsys, "evaluate", tmp_path / "scenes", "--data", "scenes", "--json").out)
    assert (asked[0].name, asked[0].size) == ("scenes", (32, 32))
    assert found["exact"] == found["exact_unseen"] == 0.0
    assert set(found["exact_by_kind"]) == set(splits.test.kinds)
    assert found["people"] is None  # one caption is all there is to say
    texts = [text for (text,) in splits.test.captions]
    truth = pointing_at(model, tokenizer, splits.test.images, texts, splits.test.boxes)
    called = {name_map(which): which for which in truth.hits}
    assert len(called) == 1 + 2 + 2 * 2
    assert found["pointing"] == truth.share(called[found["pointing_map"]])
    assert found["pointing_chance"] == truth.chance
    assert 0.05 < truth.chance < 0.6
    said = run(capsys, "evaluate", tmp_path / "scenes", "--data", "scenes").out
    assert "pointing" in said
    assert "by chance" in said
    validation = run(capsys, "evaluate", tmp_path / "scenes", "--data", "scenes", "--split", "validation", "--json").out
    assert json.loads(validation)["exact_unseen"] is None  # no such scene, and no NaN
    assert json.loads(validation)["pointing_map"]
    monkeypatch.setattr(ready_captioner, "load_captions", lambda data, trains: CaptionSplits(splits.test, None, None))
    train = run(capsys, "evaluate", tmp_path / "scenes", "--data", "scenes", "--split", "train", "--json").out
    assert json.loads(train)["pointing_map"] == "mean over layers and heads"  # there is nothing to choose by
    assert json.loads(train)["pointing"] == truth.share((None, None))
    monkeypatch.setattr(ready_captioner, "load_captions", lambda data, trains: splits)
    # And whoever says the truth is right, of the kinds and pairs that are there.
    monkeypatch.setattr(captioning, "caption_all", lambda *_, **__: [*texts[:-1], "a dog"])
    found = json.loads(run(capsys, "evaluate", tmp_path / "scenes", "--data", "scenes", "--json").out)
    assert found["exact"] == pytest.approx(23 / 24)
    kinds = [kind for kind in splits.test.kinds if kind != splits.test.kinds[-1]]
    assert all(found["exact_by_kind"][kind] == 1.0 for kind in kinds)
    assert found["exact_by_kind"][splits.test.kinds[-1]] < 1.0
    unseen = splits.test.unseen
    assert found["exact_unseen"] == pytest.approx(1 - int(unseen[-1]) / int(unseen.sum()))
    assert found["exact_seen"] == pytest.approx(1 - int(~unseen[-1]) / int((~unseen).sum()))


def test_a_run_is_judged_on_the_scenes_it_was_made_for(saved, tmp_path):
    kept = CaptionData("scenes", size=(64, 64), scenes=SceneConfig(train=7, seed=3))
    model, tokenizer = Captioner.from_pretrained(saved), CaptionTokenizer.load(saved / "tokenizer.json")
    ready = ReadyCaptioner(model, tokenizer, run=CaptionerRun(recipe="x", data=kept))
    data = ready.data("scenes")
    assert (data.scenes, data.size) == (kept.scenes, (8, 12))
    assert load_captioner(saved).data("scenes").scenes == SceneConfig()
    other = ready.data("captions.json", path="images.tar")
    assert (other.name, other.images) == ("captions.json", "images.tar")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--beam", 0), "--beam is 0; expected one or more"),
        (("--confusion", "x.png"), "--confusion is for classifiers"),
        (("--captions", "nowhere/x.json"), "the folder 'nowhere' doesn't exist"),
        (("--batch", 0), "--batch is 0"),
        (("--split", "validation"), "has no validation images; it has train, test"),
    ],
)
def test_what_can_not_be_evaluated_is_one_sentence(words, sentence, saved, folder, tmp_path, capsys):
    said = run(capsys, "evaluate", saved, "--data", karpathy(tmp_path, folder), *words, code=2)
    assert sentence in said.err
    assert said.out == ""
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "option", [("--beam", 0), ("--captions", "x.json"), ("--examples", "x.png"), ("--meteor",), ("--spice",)]
)
def test_what_is_for_captioners_is_refused_for_a_classifier(option, tmp_path, capsys):
    ViT(ViTConfig(image=(8, 8), width=16, depth=1, heads=2, mean=(0.5,) * 3, std=(0.2,) * 3)).save_pretrained(tmp_path)
    said = run(capsys, "evaluate", tmp_path, "--data", "digits", *option, code=2)
    assert f"{option[0]} is for captioners; this model is a classifier" in said.err


# caption


def test_caption_says_what_is_seen(saved, folder, capsys):
    paths = [folder / f"{i}.png" for i in range(5)]
    said = run(capsys, "caption", saved, *paths).out.splitlines()
    assert said == [f"{path}  {caption}" for path, caption in zip(paths, CAPTIONS, strict=True)]
    assert run(capsys, "caption", saved, folder).out.splitlines() == said  # a folder, by name
    assert run(capsys, "caption", saved, folder / "[0-4].p*g").out.splitlines() == said  # a pattern
    assert run(capsys, "caption", saved, *paths * 7).out.splitlines() == said * 7  # more than are captioned at once


def test_caption_gives_several_with_their_probabilities(saved, folder, capsys):
    (found,) = json.loads(run(capsys, "caption", saved, folder / "0.png", "--n-best", 3, "--json").out)
    assert found["image"] == str(folder / "0.png")
    captions = found["captions"]
    assert captions[0]["caption"] == CAPTIONS[0]
    assert [each["word"] for each in captions[0]["words"]] == CAPTIONS[0].split()
    assert len(captions) == 3
    assert captions[0]["score"] > captions[1]["score"] > captions[2]["score"]
    for each in captions:
        product = math.prod(word["probability"] for word in each["words"])
        assert 0 < math.exp(each["log_prob"]) <= product * (1 + 1e-6)  # the end has to be said, too
    said = run(capsys, "caption", saved, folder / "0.png", "--n-best", 3).out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in said[1:]] == [each["caption"] for each in captions]


def test_a_picture_that_can_not_be_read_does_not_stop_the_others(saved, folder, tmp_path, capsys):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    said = run(
        capsys,
        "caption",
        saved,
        folder / "0.png",
        tmp_path / "broken.png",
        tmp_path / "gone.png",
        folder / "4.png",
        code=2,
    )
    assert [line.split("  ")[1] for line in said.out.splitlines()] == [CAPTIONS[0], CAPTIONS[4]]
    broken, gone, last = said.err.splitlines()
    assert "broken.png can't be read" in broken
    assert "gone.png can't be read" in gone
    assert "2 of 4 pictures could not be read" in last
    one = run(capsys, "caption", saved, tmp_path / "broken.png", code=2)
    assert one.err.count("\n") == 1
    assert one.out == ""


def test_pictures_of_every_kind(saved, folder, tmp_path, capsys):
    """What is the same picture, however it is kept, gets the same caption."""
    whole = Image.open(folder / "1.png")
    whole.resize((120, 80), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    whole.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.open(folder / "0.png")], duration=100)
    whole.resize((240, 160), Image.Resampling.NEAREST).convert("CMYK").save(tmp_path / "print.tiff")
    grey = np.asarray(whole.convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(tmp_path / "deep.png")
    Image.fromarray((grey >> 8).astype(np.uint8)).save(tmp_path / "flat.png")
    said = dict(line.split("  ") for line in run(capsys, "caption", saved, tmp_path).out.splitlines())
    assert {name: said[str(tmp_path / name)] for name in ("large.png", "moving.gif", "print.tiff")} == dict.fromkeys(
        ("large.png", "moving.gif", "print.tiff"), CAPTIONS[1]
    )
    assert said[str(tmp_path / "deep.png")] == said[str(tmp_path / "flat.png")]


def test_a_figure_for_each_picture(saved, folder, tmp_path, capsys):
    out = tmp_path / "looking.png"
    said = run(capsys, "caption", saved, folder / "0.png", "--figure", out, "--layer", 0, "--head", 3).out
    assert f"figure: {out}" in said
    with Image.open(out) as image:
        assert image.width > 800
    one = out.read_bytes()
    run(capsys, "caption", saved, folder / "0.png", "--figure", out, "--layer", "None")
    assert out.read_bytes() != one  # the mean of all
    run(capsys, "caption", saved, folder / "0.png", folder / "2.png", "--figure", out, "--json")
    with Image.open(tmp_path / "looking-1.png") as first, Image.open(tmp_path / "looking-2.png") as second:
        assert first.size != second.size  # four words, and two


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("0.png", "--beam", 0), "--beam is 0"),
        (("0.png", "--n-best", 6), "--n-best is 6; expected 1…5"),
        (("0.png", "--n-best", 0), "--n-best is 0; expected 1…5"),
        (("0.png", "--figure", "looking.jpg"), "a picture is .png, .svg, .pdf"),
        (("0.png", "--layer", 2), "--layer is 2; expected 0…1"),
        (("0.png", "--head", 4), "--head is 4; expected 0…3"),
        (("0.png", "--layer", "None", "--head", 1), "--head 1 is one of a layer; expected a --layer beside it"),
        (("*.jpg",), "no file fits the pattern"),
        ((), "no pictures are given"),
    ],
)
def test_what_can_not_be_captioned_is_one_sentence(words, sentence, saved, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    said = run(capsys, "caption", saved, *words, code=2)
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_classifier_does_not_caption(folder, tmp_path, capsys):
    ViT(ViTConfig(image=(8, 8), width=16, depth=1, heads=2)).save_pretrained(tmp_path)
    said = run(capsys, "caption", tmp_path, folder / "0.png", code=2).err
    assert "is a classifier; expected a captioner" in said
    assert said.count("\n") == 1


def test_a_folder_of_folders_is_all_pictures_in_them(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / ".trash").mkdir()
    pictures = [tmp_path / "a.png", tmp_path / "b" / "c" / "d.JPG", tmp_path / "b" / "e.png"]
    for path in (*pictures, tmp_path / ".trash" / "f.png", tmp_path / "b" / "._e.png"):
        path.touch()
    assert find_pictures((str(tmp_path),)) == pictures


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    (tmp_path / "a[1].png").touch()
    (tmp_path / "a1.png").touch()
    (tmp_path / "notes.txt").touch()
    assert find_pictures((str(tmp_path / "a[1].png"),)) == [tmp_path / "a[1].png"]
    assert find_pictures((str(tmp_path / "a[0-9].png"),)) == [tmp_path / "a1.png"]
    assert find_pictures((str(tmp_path),)) == [tmp_path / "a1.png", tmp_path / "a[1].png"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "._photo.png").touch()
    with pytest.raises(ValueError, match="holds no pictures"):
        find_pictures((str(tmp_path / "empty"),))
