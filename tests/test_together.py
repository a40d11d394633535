"""Predicting, captioning and evaluating in two processes: one result, the same as one process's."""

import contextlib
import csv
import io
import json
import os
import signal
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from trainings import SERVER, _run, free_port

import pellucid
from pellucid.cli import main
from pellucid.processes import Processes


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Thirty pictures in two classes, one of them damaged, and a run on the others."""
    place = tmp_path_factory.mktemp("together")
    noise = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (place / "ext" / name).mkdir(parents=True)
        for i in range(15):
            Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
                place / "ext" / name / f"{i:02}.png"
            )
    small = {"model": {"width": 16, "depth": 1, "heads": 2, "patch": [4, 4]}, "batch": 16, "device": "cpu"}
    how = small | {"data.name": f"folder:{place / 'ext'}", "data.held_out": 11, "duration": "6 steps"}
    pellucid.train("vit_digits", out=place / "run", progress=False, **how)
    (place / "many").mkdir()
    for path in sorted((place / "ext").rglob("*.png")):
        os.link(path, place / "many" / f"{path.parent.name}-{path.name}")
    (place / "many" / "broken.png").write_bytes(b"nothing")
    return place


def run_together(place, *words, count: int = 2, hook: str = "", hooked: int = 0) -> list[tuple[int, str]]:
    """Exit codes and words of the same command in several processes, as torchrun starts them."""
    port, started = free_port(), []
    for rank in range(count):
        said = place / f"said-{port}-{rank}.txt"
        ranks = (rank, count, port) if count > 1 else None
        process = SERVER.Process(target=_run, args=([*map(str, words)], str(said), hook, hooked, ranks, place))
        process.start()
        started.append((process, said))
    for process, _ in started:
        process.join(120)
        assert not process.is_alive()
    return [(process.exitcode, said.read_text()) for process, said in started]


def alone(place, capsys, *words, code: int = 0) -> str:
    with contextlib.chdir(place):
        assert main([*map(str, words)]) == code
    return capsys.readouterr().out


def test_predictions_of_two_processes_are_one_file_the_same_as_ones(place, capsys):
    words = ("predict", "run", "many", "--batch", 4)
    alone(place, capsys, *words, "--out", "one.csv", code=2)
    (code, first), (_, second) = run_together(place, *words, "--out", "two.csv")
    assert code == 2
    assert "wrote 30 answers: two.csv" in first
    assert "broken.png" in first
    assert "wrote" not in second
    assert (place / "two.csv").read_bytes() == (place / "one.csv").read_bytes()
    lines = (place / "one.csv").read_bytes().splitlines(keepends=True)
    (place / "two.csv").write_bytes(b"".join(lines[:14])[:-5])  # killed in the middle of a line
    (_, first), _ = run_together(place, *words, "--out", "two.csv")
    assert "two.csv has 12 of the 31 pictures already" in first
    assert sorted((place / "two.csv").read_bytes().splitlines()) == sorted(line.strip() for line in lines)


def test_what_is_printed_is_printed_once(place, capsys):
    words = ("predict", "run", "ext/ant", "--batch", 4, "--json")
    expected = json.loads(alone(place, capsys, *words))
    (code, first), (other, second) = run_together(place, *words)
    assert (code, other, second) == (0, 0, "")
    assert json.loads(first) == expected


def test_an_evaluation_of_two_processes_is_that_of_one(place, capsys):
    words = ("evaluate", "run", "--data", "folder:ext", "--split", "all", "--batch", 4, "--json")
    expected = json.loads(alone(place, capsys, *words))
    (code, first), (_, second) = run_together(place, *words, "--report", "report.html")
    assert code == 0
    figures = json.loads(first.splitlines()[-1])
    assert {**figures, "images_per_second": 0} == {**expected, "images_per_second": 0}
    assert "{" not in second
    alone(place, capsys, *words, "--report", "again.html")
    assert (place / "report.html").read_text() == (place / "again.html").read_text()


def test_captions_of_two_processes_are_those_of_one(place, capsys):
    words = ("caption", "captioner-scenes", *sorted(str(p.relative_to(place)) for p in (place / "ext").rglob("*.png")))
    expected = json.loads(alone(place, capsys, *words, "--beam", 1, "--json"))
    assert len(expected) == 30  # two batches
    (code, first), (_, second) = run_together(place, *words, "--beam", 1, "--json")
    assert (code, second) == (0, "")
    assert json.loads(first) == expected


def test_work_is_shared_in_order():
    class Third(Processes):
        """The last of three, whose neighbours answer as it would."""

        def gather(self, value):
            return [self.told.pop(0) if self.told else None, self.told.pop(0) if self.told else None, value]

    third = Third(2, 3)
    object.__setattr__(third, "told", [10, 11, 13, 14])
    asked = []
    found = list(third.share_work([0, 1, 2, 3, 4], lambda part: asked.append(part) or part + 10))
    assert (found, asked) == ([10, 11, 12, 13, 14], [2])
    assert list(Processes().share_work([], lambda part: part)) == []
    assert torch.arange(3).tolist() == list(Processes().share_work(range(3), lambda part: part))


def test_answers_about_shards_as_parquet(place, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    with tarfile.open(place / "shard.tar", "w") as tar:
        for i, path in enumerate(sorted((place / "ext").rglob("*.png"))):
            tar.add(path, f"{i:03}.png")
            label = tarfile.TarInfo(f"{i:03}.cls")
            label.size = 1
            tar.addfile(label, io.BytesIO(b"1"))
    words = ("predict", "run", "wds:shard.tar", "--top", 2, "--batch", 4)
    alone(place, capsys, *words, "--out", "shard.csv")
    alone(place, capsys, *words, "--out", "shard.parquet")
    rows = list(csv.reader((place / "shard.csv").read_text().splitlines()))
    table = parquet.read_table(place / "shard.parquet")
    assert table.column_names == rows[0] == ["image", "label", "probability", "label_2", "probability_2"]
    assert table.num_rows == len(rows) - 1 == 30
    assert [[row["image"], row["label"], f"{row['probability']:.6f}"] for row in table.to_pylist()] == [
        row[:3] for row in rows[1:]
    ]
    assert not list(place.glob("shard.parquet.part*"))
    lines = (place / "shard.csv").read_bytes().splitlines(keepends=True)
    (place / "half.parquet.part.csv").write_bytes(b"".join(lines[:11]))  # what a killed process leaves
    told = alone(place, capsys, *words, "--out", "half.parquet")
    assert "10 of the 30 pictures already" in told
    assert parquet.read_table(place / "half.parquet").to_pylist() == table.to_pylist()
    assert "30 of the 30" in alone(place, capsys, *words, "--out", "half.parquet")
    assert parquet.read_table(place / "half.parquet").to_pylist() == table.to_pylist()
    folder = json.loads(alone(place, capsys, "predict", "run", "ext/ant", "--json"))
    assert [answer["predictions"][0]["label"] for answer in folder] == [row[1] for row in rows[1:16]]


COMMANDS = {
    "predict": ("predict", "run", "many", "--batch", 4, "--top", 2),
    "caption": ("caption", "captioner-scenes", "ext/ant/*.png", "ext/bee/*.png", "--beam", 2, "--n-best", 2),
    "evaluate": ("evaluate", "run", "--data", "folder:ext", "--split", "all", "--batch", 4, "--json"),
    "evaluate captions": (
        *("evaluate", "captioner-scenes", "--data", "said/captions.csv", "--path", "ext"),
        *("--beam", 1, "--batch", 1, "--json"),
    ),
}


@pytest.fixture(scope="module")
def said(place):
    """Captions of thirty pictures, twelve of which test."""
    (place / "said").mkdir()
    paths = sorted((place / "ext").rglob("*.png"))
    rows = [
        f"{path.parent.name}/{path.name},a picture of {path.parent.name} {path.stem},{'train' if i < 18 else 'test'}"
        for i, path in enumerate(paths)
    ]
    (place / "said" / "captions.csv").write_text("\n".join(["file,caption,split", *rows]) + "\n")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_killed_goes_on_to_the_same_result(place, said, capsys, command, suffix):
    """SIGKILL in the middle of a line, then the same command again: the file and figures of one that wasn't killed."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    words = COMMANDS[command]
    whole, half = (f"{command.replace(' ', '-')}-{which}{suffix}" for which in ("whole", "half"))
    code = 2 if command == "predict" else 0  # one picture is broken
    expected = alone(place, capsys, *words, "--out", whole, code=code)
    ((killed, _),) = run_together(place, *words, "--out", half, count=1, hook="half an answer", hooked=2)
    assert killed == -signal.SIGKILL
    there = place / (f"{half}.part.csv" if suffix == ".parquet" else half)
    assert len(there.read_bytes().splitlines()) > 1
    assert not there.read_bytes().endswith(b"\n")
    found = alone(place, capsys, *words, "--out", half, code=code)
    assert (place / half).read_bytes() == (place / whole).read_bytes()
    if command.startswith("evaluate"):
        timed = {"images_per_second": 0, "captions_per_second": 0}
        assert json.loads(found) | timed == json.loads(expected) | timed
    else:
        assert "already" in found
    assert not list(place.glob("*.part.csv"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_model_is_not_gone_on_with(place, said, capsys, command):
    words = COMMANDS[command]
    out = f"other-{command.replace(' ', '-')}.csv"
    alone(place, capsys, *words, "--out", out, code=2 if command == "predict" else 0)
    header, first, *rest = (place / out).read_text().splitlines()
    cells = first.split(",")
    if "caption" in command:
        cells[1] = "a sentence of another"
    else:
        cells[2] = "0.123456"
    (place / out).write_text("\n".join([header, ",".join(cells), *rest[:3]]) + "\n")
    with contextlib.chdir(place):
        assert main([*map(str, words), "--out", out]) == 2
    assert f"{out} was written by another model, or asked otherwise" in capsys.readouterr().err.splitlines()[-1]


def test_an_evaluation_in_two_processes_writes_the_file_that_one_writes(place, capsys):
    words = COMMANDS["evaluate"]
    alone(place, capsys, *words, "--out", "one-all.csv")
    (code, first), (other, second) = run_together(place, *words, "--out", "two-all.csv")
    assert (code, other) == (0, 0)
    assert json.loads(first.splitlines()[-1])["images"] == 30
    assert "{" not in second
    assert (place / "two-all.csv").read_bytes() == (place / "one-all.csv").read_bytes()
    rows = list(csv.reader((place / "one-all.csv").read_text().splitlines()))
    assert rows[0] == ["image", "label", "p(ant)", "p(bee)"]
    assert all(abs(float(row[2]) + float(row[3]) - 1) < 1e-6 for row in rows[1:])


def test_answers_to_other_images_are_refused(place, capsys):
    alone(place, capsys, *COMMANDS["evaluate"], "--out", "images.csv")
    with contextlib.chdir(place):
        lines = (place / "images.csv").read_text().splitlines(keepends=True)
        (place / "images.csv").write_text("".join([lines[0], lines[1].replace("ant/", "cow/")]))
        for words, message in (
            (("--out", "images.csv"), "holds answers to other images, as cow/"),
            (("--out", "images.txt"), "expected a file that ends in .csv or .jsonl"),
            (("--out", "no/images.csv"), "the folder 'no' doesn't exist"),
        ):
            assert main([*map(str, COMMANDS["evaluate"]), *words]) == 2
            assert message in capsys.readouterr().err


def test_captions_that_only_test_can_be_evaluated(place, capsys):
    """Whoever asks about test images needs no others."""
    (place / "only").mkdir()
    rows = [f"{path.parent.name}/{path.name},a picture,test" for path in sorted((place / "ext").rglob("*.png"))[:4]]
    (place / "only" / "captions.csv").write_text("\n".join(["file,caption,split", *rows]) + "\n")
    words = ("evaluate", "captioner-scenes", "--data", "only/captions.csv", "--path", "ext", "--beam", 1)
    assert json.loads(alone(place, capsys, *words, "--json"))["images"] == 4
    with contextlib.chdir(place):
        assert main([*map(str, words), "--split", "train"]) == 2
    assert "has no train images; it has test" in capsys.readouterr().err
