"""The verbs that look at data, models and runs, as a person runs them."""

import csv
import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from pellucid.cli import main
from pellucid.config import to_json
from pellucid.data import DataConfig, ImageSet, decode, load_images
from pellucid.data.augment import normalised
from pellucid.data.reader import PictureReader
from pellucid.evaluation.accuracy import ClassificationReport
from pellucid.evaluation.labels import relabel
from pellucid.models import ViT, ViTConfig
from pellucid.runs import ClassifierRun
from pellucid.views.curves import choose_runs, read_history

CONFIG = ViTConfig(
    classes=3,
    image=(8, 8),
    width=16,
    depth=1,
    heads=2,
    labels=("zebra", "ant", "mole"),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.25, 0.3),
)


@pytest.fixture(scope="module")
def colours():
    """A model and sixty plain pictures, with what it says of them: each of its classes is said at least five times."""
    torch.manual_seed(0)
    model = ViT(CONFIG).eval()
    pictures = torch.randint(256, (60, 3, 1, 1), dtype=torch.uint8).expand(-1, -1, 8, 8).contiguous()
    with torch.no_grad():
        pixels = PictureReader.of(CONFIG).prepare(pictures, model)
        model.head.weight *= 20
        model.head.bias -= model(pixels).mean(0)
        said = model(pixels).argmax(1)
    assert said.bincount(minlength=3).min() >= 5
    return model, pictures, said


@pytest.fixture(scope="module")
def saved(colours, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "colours"
    colours[0].save_pretrained(path)
    return path


def write(picture, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
    return path


def image_folder(path, colours, names=CONFIG.labels, wrong=5):
    """The pictures under what the model says of them, but for the first `wrong` ones: under the class after it."""
    _, pictures, said = colours
    for i, picture in enumerate(pictures):
        label = (int(said[i]) + (i < wrong)) % 3
        for split in ("train", "test"):
            write(picture, path / split / names[label] / f"{i}.png")
    return path


def run(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


# evaluate


def test_evaluate_goes_by_the_names_of_the_classes(colours, saved, tmp_path, capsys):
    folder = image_folder(tmp_path / "pictures", colours)
    found = json.loads(run(capsys, "evaluate", saved, "--data", f"folder:{folder}", "--json").out)
    assert found["top1"] == pytest.approx(55 / 60)
    assert found["top5"] == 1.0
    assert (found["images"], found["split"], found["data"]) == (60, "test", f"folder:{folder}")
    assert list(found["per_class"]) == ["zebra", "ant", "mole"]
    assert found["images_per_second"] > 0
    assert 0 <= found["ece"] <= 1
    model = ViT(replace(CONFIG, labels=("ant", "mole", "zebra")))  # the folders' order, which is not the model's
    model.load_state_dict(colours[0].state_dict())
    model.save_pretrained(tmp_path / "misnamed")
    wrong = json.loads(run(capsys, "evaluate", tmp_path / "misnamed", "--data", f"folder:{folder}", "--json").out)
    assert wrong["top1"] < 0.2


def test_evaluate_for_people_with_a_picture(colours, saved, tmp_path, capsys):
    folder = image_folder(tmp_path / "pictures", colours, wrong=6)
    picture = tmp_path / "confusion.png"
    said = run(capsys, "evaluate", saved, "--data", f"folder:{folder}", "--confusion", picture, "--batch", 7)
    assert "90.00%" in said.out
    assert said.err == ""
    for name in ("top-1", "top-5", "ECE", "images/s", "zebra", "ant", "mole"):
        assert sum(line.startswith(f"{name} ") for line in said.out.splitlines()) == 1
    with Image.open(picture) as image:
        assert image.width > 500


def test_evaluate_on_some_of_the_classes_has_null_for_the_others(colours, saved, tmp_path, capsys):
    image_folder(tmp_path / "pictures", colours, wrong=0)
    for split in ("train", "test"):
        (tmp_path / "pictures" / split / "ant").rename(tmp_path / f"{split}-ants")
    said = run(capsys, "evaluate", saved, "--data", f"folder:{tmp_path / 'pictures'}", "--json").out
    assert "NaN" not in said
    assert json.loads(said)["per_class"] == {"zebra": 1.0, "ant": None, "mole": 1.0}
    assert json.loads(said)["top1"] == 1.0
    assert "–" in run(capsys, "evaluate", saved, "--data", f"folder:{tmp_path / 'pictures'}").out


def test_numbers_for_names_are_taken_in_their_order_with_a_warning(colours, saved, tmp_path, capsys):
    folder = image_folder(tmp_path / "pictures", colours, names=("0", "1", "2"))
    said = run(capsys, "evaluate", saved, "--data", f"folder:{folder}", "--json")
    assert json.loads(said.out)["top1"] == pytest.approx(55 / 60)
    assert "taken in their order" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("names", [("zebra", "ant", "unicorn"), ("ant", "unicorn"), ("a", "b", "c", "d")])
def test_classes_that_the_model_does_not_know(names, colours):
    images = ImageSet(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), names)
    with pytest.raises(
        ValueError, match=rf"the model doesn't know .* of the data's {len(names)} classes; it knows 'zebra'"
    ):
        relabel(images, CONFIG.labels, 3)


def test_names_that_stand_for_two_classes():
    names = ("crane", "dog", "crane")
    pixels, labels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2])
    assert relabel(ImageSet(pixels, labels, ("crane", "dog", "crane")), names, 3).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="several of the model's classes are called 'crane'"):
        relabel(ImageSet(pixels, labels % 2, ("crane", "dog")), names, 3)
    assert relabel(ImageSet(pixels, labels * 0, ("dog",)), names, 3).tolist() == [1, 1, 1]


def test_no_figure_of_the_json_is_nan():
    broken = ClassificationReport(torch.full((2, 3), math.nan), torch.tensor([0, 1]), math.nan, 1.0, ("a", "b", "c"))
    found = broken.figures
    assert found["ece"] is None
    assert found["per_class"]["c"] is None
    json.dumps(found, allow_nan=False)


def test_evaluate_says_what_is_wrong(saved, colours, tmp_path, capsys):
    assert (
        "the images have 1 channels and the model was trained on 3"
        in run(capsys, "evaluate", saved, "--data", "digits", code=2).err
    )
    folder = image_folder(tmp_path / "pictures", colours)
    said = run(capsys, "evaluate", saved, "--data", f"folder:{folder}", "--split", "validation", code=2).err
    assert "has no validation images; it has train, test" in said
    assert "no model 'nothing'" in run(capsys, "evaluate", "nothing", "--data", "digits", code=2).err
    assert "--batch is 0" in run(capsys, "evaluate", saved, "--data", "digits", "--batch", 0, code=2).err
    assert "a picture is" in run(capsys, "evaluate", saved, "--data", "digits", "--confusion", "a.gif", code=2).err


def test_a_runs_validation_images_are_those_it_held_out(tmp_path, capsys):
    from safetensors.torch import save_file

    labels = tuple("0123456789")
    config = replace(CONFIG, classes=10, labels=labels, channels=1, mean=(0.3,), std=(0.4,))
    model, folder = ViT(config), tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    data = DataConfig("digits", held_out=100)
    (folder / "config.json").write_text(
        json.dumps(to_json(ClassifierRun(recipe="vit_digits", model=config, data=data)))
    )
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "checkpoints" / "best.safetensors")
    counts = {
        split: json.loads(run(capsys, "evaluate", folder, "--data", "digits", "--split", split, "--json").out)["images"]
        for split in ("train", "validation", "test")
    }
    splits = load_images(data)
    assert splits.validation is not None
    assert counts == {"train": 1337, "validation": 100, "test": 360}


# predict


def test_predict_names_the_likeliest_classes(colours, saved, tmp_path, capsys):
    model, pictures, said = colours
    paths = [write(pictures[i], tmp_path / f"{i}.png") for i in range(3)]
    found = json.loads(run(capsys, "predict", saved, *paths, "--top", 2, "--json").out)
    assert [entry["image"] for entry in found] == [str(path) for path in paths]
    for i, entry in enumerate(found):
        with torch.no_grad():
            truth = model(normalised(decode(paths[i])[None], PictureReader.of(CONFIG).normalise))[0].softmax(-1)
        first, second = entry["predictions"]
        assert first["label"] == CONFIG.labels[said[i]]
        assert first["probability"] == pytest.approx(truth.max().item())
        assert first["probability"] >= second["probability"]
    text = run(capsys, "predict", saved, paths[0]).out
    assert text.startswith(f"{paths[0]}  {CONFIG.labels[said[0]]} ")
    assert text.count(" %") == 3  # five are asked for, the model has three
    assert text.count("\n") == 1


def test_predict_takes_any_size_and_a_grey_picture(saved, tmp_path, capsys):
    Image.fromarray(np.full((40, 70), 90, dtype=np.uint8)).save(tmp_path / "grey.png")
    found = json.loads(run(capsys, "predict", saved, tmp_path / "grey.png", "--json").out)
    assert sum(entry["probability"] for entry in found[0]["predictions"]) == pytest.approx(1.0)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_broken_picture_leaves_the_others(form, colours, saved, tmp_path, capsys):
    good = [write(colours[1][i], tmp_path / f"{i}.png") for i in range(2)]
    broken = tmp_path / "broken.png"
    broken.write_bytes(good[0].read_bytes()[:40])
    paths = [good[0], broken, tmp_path / "missing.png", good[1]]
    said = run(capsys, "predict", saved, *paths, *form, code=2)
    assert [str(path) in said.out for path in paths] == [True, False, False, True]
    errors = said.err.splitlines()
    assert len(errors) == 3
    assert "broken.png can't be read" in errors[0]
    assert "missing.png can't be read: No such file" in errors[1]
    assert errors[2] == "pellucid: 2 of 4 pictures could not be read"
    assert "Traceback" not in said.err
    if form:
        assert len(json.loads(said.out)) == 2


def test_predict_says_what_is_wrong(colours, saved, tmp_path, capsys):
    path = write(colours[1][0], tmp_path / "a.png")
    assert "--top is 0" in run(capsys, "predict", saved, path, "--top", 0, code=2).err
    model = ViT(CONFIG)
    torch.nn.init.constant_(model.head.bias, math.nan)
    model.save_pretrained(tmp_path / "broken")
    assert "its weights are damaged" in run(capsys, "predict", tmp_path / "broken", path, code=2).err


def answers_of(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [(row["image"], row["label"], float(row["probability"])) for row in csv.DictReader(file)]
    entries = map(json.loads, path.read_text().splitlines())
    return [(entry["image"], *entry["predictions"][0].values()) for entry in entries]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_predict_answers_folders_and_patterns_into_a_file(suffix, colours, saved, tmp_path, capsys):
    _, pictures, said = colours
    (tmp_path / "some").mkdir()
    inside = [write(pictures[i], tmp_path / "some" / f"{i}, b.png") for i in range(5)]
    more = [write(pictures[i], tmp_path / f"more{i}.png") for i in range(5, 7)]
    out = tmp_path / f"answers{suffix}"
    where = (tmp_path / "some", tmp_path / "more*.png", inside[0])
    told = run(capsys, "predict", saved, *where, "--out", out, "--batch", 2, "--top", 2)
    assert told.out == f"wrote 7 answers: {out}\n"
    found = answers_of(out)
    assert [image for image, _, _ in found] == [str(path) for path in [*inside, *more]]
    assert [label for _, label, _ in found] == [CONFIG.labels[said[i]] for i in range(7)]
    printed = json.loads(run(capsys, "predict", saved, *where[:2], "--json").out)
    assert [share for *_, share in found] == pytest.approx(
        [entry["predictions"][0]["probability"] for entry in printed], abs=1e-6
    )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_predict_goes_on_with_a_file_where_it_was_interrupted(suffix, colours, saved, tmp_path, capsys):
    for i in range(5):
        write(colours[1][i], tmp_path / f"{i}.png")
    out = tmp_path / f"answers{suffix}"
    run(capsys, "predict", saved, tmp_path / "*.png", "--out", out)
    before = answers_of(out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:-2]) + lines[-2][: len(lines[-2]) // 2])
    told = run(capsys, "predict", saved, tmp_path / "*.png", "--out", out).out
    assert f"{out} has 3 of the 5 pictures already; 2 are left" in told
    after = answers_of(out)
    assert [each[:2] for each in after] == [each[:2] for each in before]
    assert [share for *_, share in after] == pytest.approx([share for *_, share in before], rel=1e-4, abs=1e-6)
    whole = out.read_bytes()
    assert whole.startswith(b"".join(lines[:-2]))
    assert "0 are left" in run(capsys, "predict", saved, tmp_path / "*.png", "--out", out).out
    assert out.read_bytes() == whole
    told = run(capsys, "predict", saved, tmp_path / "*.png", "--out", out, "--top", 1, code=2).err
    assert "is there already" in told
    assert out.read_bytes() == whole


def test_unreadable_pictures_are_named_after_the_answers(colours, saved, tmp_path, capsys):
    good = [write(colours[1][i], tmp_path / f"{i}.png") for i in range(2)]
    broken = tmp_path / "broken.png"
    broken.write_bytes(good[0].read_bytes()[:40])
    out = tmp_path / "answers.csv"
    told = run(capsys, "predict", saved, good[0], broken, good[1], "--out", out, code=2)
    assert [image for image, _, _ in answers_of(out)] == [str(path) for path in good]
    assert told.err.splitlines()[0].startswith(f"pellucid: {broken} can't be read")
    assert told.err.splitlines()[1:] == ["pellucid: 1 of 3 pictures could not be read"]
    assert run(capsys, "predict", saved, broken, "--out", tmp_path / "none.csv", code=2).out.startswith("wrote 0")


def test_a_file_of_answers_that_can_not_be_written_is_refused_before_the_work(colours, saved, tmp_path, capsys):
    path = write(colours[1][0], tmp_path / "a.png")
    for out, sentence in {
        "answers.txt": "expected a file that ends in .csv or .jsonl",
        "nowhere/a.csv": "nowhere' doesn't exist; make it first",
        "other.csv": "is there already, with other columns than image,label,probability",
        "other.jsonl": "is there already, and holds no such answers",
    }.items():
        if out.startswith("other"):
            (tmp_path / out).write_text("a,b\n1,2\n")
        said = run(capsys, "predict", saved, path, "--out", tmp_path / out, code=2)
        assert sentence in said.err
        assert not out.startswith("other") or (tmp_path / out).read_text() == "a,b\n1,2\n"
    assert (
        "give one of the two" in run(capsys, "predict", saved, path, "--json", "--out", tmp_path / "a.csv", code=2).err
    )


# curves


def log_lines(epochs, per_epoch=4):
    found = []
    for step in range(1, epochs * per_epoch + 1):
        epoch = step / per_epoch
        found.append({"step": step, "epoch": epoch, "loss": 2 / step, "accuracy": 0.1, "lr": 1e-3})
        if step % per_epoch == 0:
            figures = {"top1": epoch / 100, "loss": 3 / step}
            found.append({"step": step, "epoch": epoch, "evaluation": figures, "seconds": 1.0})
    return found


def logged(path, lines, end="", duration=None):
    path.mkdir(parents=True)
    (path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
    if duration is not None:
        (path / "config.json").write_text(json.dumps(to_json(ClassifierRun(recipe="vit_digits", duration=duration))))
    return path


def test_a_log_in_any_order_is_told_in_the_order_of_time(tmp_path):
    lines = log_lines(6)
    forwards = read_history(logged(tmp_path / "a", lines), "run")
    backwards = read_history(logged(tmp_path / "b", lines[::-1]), "run")
    shuffled = read_history(logged(tmp_path / "c", random.Random(0).sample(lines, len(lines))), "run")
    assert forwards == backwards == shuffled
    epochs = [point.epoch for point in backwards.steps]
    assert all(a < b for a, b in pairwise(epochs))
    losses = [point.loss for point in backwards.steps]
    assert losses == sorted(losses, reverse=True)
    assert [point.accuracy for point in backwards.held_out] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]


def test_an_unfinished_line_and_a_step_told_twice(tmp_path):
    lines = log_lines(3)
    again = lines[-2] | {"loss": 9.0}
    run = read_history(logged(tmp_path / "run", [*lines, again], end='{"step": 13, "epo'), "run")
    assert len(run.steps) == 12
    assert run.steps[-1].loss == 9.0
    assert run.steps[-2].loss == 2 / 11


def test_a_panel_shows_the_run_of_its_length_else_a_cut_one_and_says_so(tmp_path):
    long, short = (read_history(logged(tmp_path / str(n), log_lines(n)), str(n)) for n in (20, 5))
    assert choose_runs([long, short], 5) == ("5 epochs, trained to the end", [short])
    title, runs = choose_runs([long, short], 10)
    assert title == "first 10 of 20 epochs"
    assert runs == [long.first(10)]
    assert choose_runs([long], 5)[0] == "first 5 of 20 epochs"
    with pytest.raises(ValueError, match="--epochs has 30, but the longest run has 20; expected no more"):
        choose_runs([long, short], 30)


def test_a_run_that_was_stopped_is_not_told_to_be_whole(tmp_path):
    stopped = read_history(logged(tmp_path / "stopped", log_lines(5), duration="50 epochs"), "stopped")
    assert choose_runs([stopped], 5)[0] == "first 5 of 50 epochs"
    whole = read_history(logged(tmp_path / "whole", log_lines(5), duration="20 steps"), "whole")
    assert choose_runs([whole], 5)[0] == "5 epochs, trained to the end"


def test_curves_draws_runs(tmp_path, capsys):
    runs = [logged(tmp_path / name, log_lines(n)) for name, n in (("a", 6), ("b", 3))]
    picture = tmp_path / "curves.png"
    said = run(capsys, "curves", *runs, "--out", picture).out
    assert "a: 6 of 6 epochs, 6.00% right on held-out images" in said
    with Image.open(picture) as image:
        narrow = image.width
    run(capsys, "curves", *runs, "--epochs", 2, 3, 6, "--out", tmp_path / "panels.png")
    with Image.open(tmp_path / "panels.png") as image:
        assert image.width > narrow


def test_curves_says_what_is_wrong(tmp_path, capsys):
    good = logged(tmp_path / "good", log_lines(2))
    empty = logged(tmp_path / "empty", [], end='{"st')
    picture = tmp_path / "curves.png"
    wrong = {
        (tmp_path / "nowhere",): "has no steps in log.jsonl",
        (empty,): "has no steps in log.jsonl",
        (good, good): "the same run is given twice",
        (good, "--epochs", "0"): "--epochs is 0; expected one or more",
        (good, "--epochs", "3"): "--epochs has 3, but the longest run has 2",
    }
    for words, message in wrong.items():
        assert message in run(capsys, "curves", *words, "--out", picture, code=2).err
    assert not picture.exists()
    assert "a picture is" in run(capsys, "curves", good, "--out", tmp_path / "curves.gif", code=2).err


# data


def test_data_look_draws_originals_above_what_training_sees(tmp_path, capsys):
    picture = tmp_path / "grid.png"
    said = run(capsys, "data", "look", "digits", "--count", 2, "--seed", 1, "--out", picture)
    assert "2 of 1,437 training images of digits, each augmented 3 times" in said.out
    again, other = tmp_path / "again.png", tmp_path / "other.png"
    run(capsys, "data", "look", "digits", "--count", 2, "--seed", 1, "--out", again)
    run(capsys, "data", "look", "digits", "--count", 2, "--seed", 2, "--out", other)
    pixels = []
    for path in (picture, again, other):
        with Image.open(path) as image:
            pixels.append(np.array(image))
    np.testing.assert_array_equal(pixels[0], pixels[1])
    assert pixels[0].shape == pixels[2].shape
    assert not np.array_equal(pixels[0], pixels[2])


def test_data_look_through_a_recipe_that_mixes(tmp_path, capsys):
    picture = tmp_path / "grid.png"
    said = run(capsys, "data", "look", "digits", "--recipe", "vit_cifar10_fast", "--count", 3, "--out", picture)
    assert "as vit_cifar10_fast does" in said.out
    assert picture.stat().st_size > 1000


def test_data_says_what_is_wrong(tmp_path, capsys):
    picture = tmp_path / "grid.png"
    wrong = {
        ("look", "digits", "--count", "0", "--out", picture): "--count is 0; expected 1…64",
        ("look", "digits", "--recipe", "vit_nothing", "--out", picture): "there is no recipe 'vit_nothing'",
        ("look", "digit", "--out", picture): "did you mean 'digits'?",
        ("look", "digits", "--out", tmp_path / "nowhere" / "a.png"): "doesn't exist; make it first",
        ("fetch", "folder:here"): "'folder:here' can't be fetched; expected one of digits, cifar10",
        ("inspect", tmp_path / "nowhere"): "doesn't exist; give a folder",
    }
    for words, message in wrong.items():
        assert message in run(capsys, "data", *words, code=2).err
    assert not picture.exists()


def test_data_fetch_tells_where_and_how_many(capsys):
    said = run(capsys, "data", "fetch", "digits").out
    assert "comes with pellucid" in said
    assert "train: 1,437 images of 1×8×8, SHA-256 " in said
    assert "test: 360 images" in said


def test_data_inspect_by_name_and_by_path(colours, tmp_path, capsys):
    assert "train: 1,437 images" in run(capsys, "data", "inspect", "digits").out
    folder = image_folder(tmp_path / "pictures", colours)
    found = json.loads(run(capsys, "data", "inspect", folder, "--json").out)
    assert found["classes"] == ["ant", "mole", "zebra"]
    assert sum(found["counts"]["test"].values()) == 60
    assert found["sizes"] == [{"height": 8, "width": 8, "images": 120}]
    assert any("also in train" in problem for problem in found["problems"])
    assert json.loads(run(capsys, "data", "inspect", f"folder:{folder}", "--json").out)["counts"] == found["counts"]
