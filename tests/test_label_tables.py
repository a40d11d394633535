"""Labels from tables: one class a picture or several, and the figures of several against scikit-learn's."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pellucid
from pellucid.cli import main
from pellucid.data import DataConfig, load_images
from pellucid.data.label_tables import list_labels
from pellucid.data.lazy import LazyImageSet
from pellucid.data.sources import load_split
from pellucid.evaluation.multilabel import MultiLabelReport, average_precision, binary_entropy

NAMES = ("red", "green", "blue")
SMALL = {"model": {"width": 16, "depth": 1, "heads": 2, "patch": [4, 4]}, "batch": 16, "device": "cpu"}


@pytest.fixture
def painted(tmp_path):
    """Sixty pictures, bright in some of three colours; which ones, in three tables."""
    noise = np.random.default_rng(0)
    true = noise.random((60, 3)) < 0.4
    (tmp_path / "photos").mkdir()
    for i, which in enumerate(true):
        pixels = noise.integers(0, 90, (8, 8, 3)) + 150 * which
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / f"{i:02}.png")
    one = [NAMES[int(which.argmax())] for which in true]
    splits = ["test" if i % 6 == 0 else "valid" if i % 6 == 1 else "train" for i in range(60)]
    tables = {
        "one.csv": ["file_name,label", *(f"photos/{i:02}.png,{name}" for i, name in enumerate(one))],
        "one.tsv": [
            "split\tspecies\timage",
            *(f"{s}\t{n}\t{i:02}.png" for i, (s, n) in enumerate(zip(splits, one, strict=True))),
        ],
        "many.csv": [
            "image,tags",
            *(
                f"photos/{i:02}.png,{'|'.join(n for n, yes in zip(NAMES, which, strict=True) if yes)}"
                for i, which in enumerate(true)
            ),
        ],
        "columns.csv": [
            f"id,{','.join(NAMES)}",
            *(f"photos/{i:02}.png,{','.join(str(int(yes)) for yes in which)}" for i, which in enumerate(true)),
        ],
    }
    for name, lines in tables.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    with contextlib.chdir(tmp_path):
        yield torch.from_numpy(true), one


def test_one_class_a_picture(painted):
    _, one = painted
    images = load_split(DataConfig("csv:one.csv"), "all")
    assert images.classes == ("blue", "green", "red")
    assert len(images) == 60
    splits = load_images(DataConfig("csv:one.tsv", path="photos"))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [40, 10, 10]
    assert [splits.test.classes[label] for label in splits.test.labels.tolist()] == one[::6]


@pytest.mark.parametrize("changes", [{"name": "csv:many.csv", "several": True}, {"name": "csv:columns.csv"}])
@pytest.mark.parametrize("lazy", [False, True])
def test_several_classes_a_picture(painted, changes, lazy):
    true, _ = painted
    listing = list_labels(Path(changes["name"][4:]), several=True)
    images = load_split(DataConfig(**changes, zoom_into="original" if lazy else "image"), "all")
    assert isinstance(images, LazyImageSet) == lazy
    order = [int(item.name[-6:-4]) for item, _ in listing.splits["train"]]  # a division sorts them by split
    found = {images.read(torch.tensor([i])).numpy().tobytes(): images.labels[i].tolist() for i in range(60)}
    places = [NAMES.index(name) for name in images.classes]
    for i in order:
        pixels = np.asarray(Image.open(f"photos/{i:02}.png")).transpose(2, 0, 1)
        assert found[np.ascontiguousarray(pixels).tobytes()] == true[i][places].tolist()


def test_what_is_wrong_with_a_table_is_one_sentence(painted):
    wrong = {
        "a,b\n1,2\n": "none names files",
        "file,label,class\nx.png,a,b\n": "several columns that could be the label",
        "file,x,y\nx.png,a,b\n": "none is known to hold labels",
        "file,label\nx.png\n": "row 2 of bad.csv has 1 fields",
        "file,label\nx.png,\n": "no label for 'x.png'",
        "file,label\n": "holds no labels",
        "file,label,split\nx.png,a,test\n": "no training images",
    }
    for text, said in wrong.items():
        Path("bad.csv").write_text(text)
        with pytest.raises(ValueError, match=said):
            list_labels(Path("bad.csv"))
    with pytest.raises(ValueError, match="doesn't exist"):
        load_images(DataConfig("csv:nothing.csv"))
    with pytest.raises(ValueError, match="several is for tables"):
        load_images(DataConfig("folder:photos", several=True))


def test_several_are_learned_told_and_evaluated(painted, capsys):
    true, _ = painted
    how = SMALL | {"duration": "60 steps", "augment": {"mixup": 0.2}, "data.name": "csv:columns.csv", "progress": False}
    result = pellucid.train("vit_digits", out="run", **how | {"data.held_out": 0})
    assert result.score == "map"
    assert result.kept["map"] > 0.85  # by chance, as many as there are: 0.4
    model = pellucid.load("run")
    assert model.looks.multi_label
    said = model.probabilities(model.read([f"photos/{i:02}.png" for i in range(60)]))
    places = [NAMES.index(name) for name in model.labels]
    assert ((said > 0.5) == true[:, places]).double().mean() > 0.8
    assert (said.sum(1) - 1).abs().max() > 0.3  # each for itself
    assert main(["evaluate", "run", "--data", "csv:columns.csv", "--split", "validation", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["map"] == pytest.approx(result.kept["map"], abs=1e-6)
    assert main(["evaluate", "run", "--data", "csv:many.csv", "--split", "all"]) == 0
    assert "mAP" in capsys.readouterr().out
    capsys.readouterr()
    with pytest.raises(ValueError, match="trained to say several classes"):
        model.evaluate(load_split(DataConfig("csv:one.csv", size=(8, 8)), "all"))
    assert main(["evaluate", "run", "--data", "csv:many.csv", "--confusion", "c.png"]) == 2
    assert main(["data", "inspect", "csv:columns.csv"]) == 0
    assert "table of labels, several for a picture" in capsys.readouterr().out
    with pytest.raises(ValueError, match="balance is for images of one class"):
        pellucid.train("vit_digits", **how | {"balance": "weights"})


def test_average_precision_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    said = torch.rand(200, 5, generator=generator, dtype=torch.float64)
    said[:, 3] = (said[:, 3] * 8).round() / 8  # with ties
    true = torch.rand(200, 5, generator=generator) < torch.tensor([0.5, 0.1, 0.9, 0.3, 0.0])
    report = MultiLabelReport(said, true, 0.0, 1.0)
    for i in range(4):
        expected = metrics.average_precision_score(true[:, i].numpy(), said[:, i].numpy())
        assert report.per_class[i] == pytest.approx(expected, abs=1e-12)
    assert report.per_class[4] != report.per_class[4]
    assert report.map == pytest.approx(sum(report.per_class[:4]) / 4)
    assert report.f1 == pytest.approx(metrics.f1_score(true.flatten().numpy(), (said >= 0.5).flatten().numpy()))
    assert average_precision(-said[:, 0], true[:, 0]) != pytest.approx(report.per_class[0], abs=1e-3)


def test_cross_entropy_of_several_is_its_formula():
    logits = torch.randn(4, 3, dtype=torch.float64)
    true = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.bool)
    target = true.double() * 0.9 + 0.05
    p = logits.sigmoid()
    expected = -(target * p.log() + (1 - target) * (1 - p).log()).mean(1)
    torch.testing.assert_close(binary_entropy(logits, true, 0.1), expected, atol=1e-12, rtol=0)
