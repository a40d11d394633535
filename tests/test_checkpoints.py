"""Checkpoints that were damaged: it is noticed, said, and the run goes on from the one before."""

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from trainings import TINY, WILD, Started, assert_same_run, log, trained, words_for

from pellucid.cli import main
from pellucid.models import ViT, ViTConfig
from pellucid.processes import Processes
from pellucid.ready import load
from pellucid.runs import ClassifierRun, RunFolder
from pellucid.runs.checkpoints import Checkpoints, Facts, check_checkpoint, read_facts, read_state_facts
from pellucid.runs.checksum import EMPTY, Damaged, check_whole, sum_file, write_checksum
from pellucid.serve.app import create_app
from pellucid.serve.limits import Limits
from pellucid.training.checkpoint import save_checkpoint, save_parts

LOOKS = ViTConfig(classes=2, image=(8, 8), width=8, depth=1, heads=1, mean=(0.5,) * 3, std=(0.3,) * 3)
FACTS = {"step": 5, "seconds": 1.5, "best": 0.25, "figures": {"top1": 0.25}}
STEPS = [*TINY, *WILD, "--duration", "12 steps", "--checkpoint-every", "4 steps"]


@pytest.fixture
def state(tmp_path):
    path = tmp_path / "last.safetensors"
    tensors = {"model.weight": torch.randn(3, 5), "model.count": torch.arange(4), "average.weight": torch.randn(3, 5)}
    save_checkpoint(path, tensors, FACTS)
    return path


@pytest.fixture
def parts(tmp_path):
    path = tmp_path / "last-5"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        save_parts(path, {"model.weight": torch.randn(3, 5)}, Facts(**FACTS), Processes())
    return path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


# A flipped bit


def test_a_flipped_bit_anywhere_is_noticed(state):
    """In the size of the header, the header, the facts, the checksum and the tensors: every bit of the file."""
    content = state.read_bytes()
    check_checkpoint(state)
    for bit in range(8 * len(content)):
        state.write_bytes(content)
        flip(state, bit)
        with pytest.raises(Damaged, match=r"last.safetensors is damaged or no checkpoint \("):
            check_checkpoint(state), read_state_facts(state)
    state.write_bytes(content)
    check_checkpoint(state)


def test_bytes_that_are_missing_or_too_many_are_noticed(state):
    content = state.read_bytes()
    for other in (content[:-1], content + b"\0", content[: len(content) // 2], b"", content[:7], bytes(len(content))):
        state.write_bytes(other)
        with pytest.raises(Damaged):
            check_checkpoint(state), read_state_facts(state)


def test_a_flipped_bit_in_any_part_is_noticed(parts):
    check_checkpoint(parts)
    assert [path.suffix for path in sorted(parts.iterdir())] == [".json", ".safetensors"]
    for path in parts.iterdir():
        content = path.read_bytes()
        for bit in range(8 * len(content)):
            flip(path, bit)
            with pytest.raises(Damaged, match="last-5"):
                check_checkpoint(parts), read_state_facts(parts)
            path.write_bytes(content)
    check_checkpoint(parts)
    for path in parts.iterdir():
        moved = path.rename(path.with_suffix(".gone"))
        with pytest.raises((Damaged, FileNotFoundError)):
            check_checkpoint(parts)
        moved.rename(path)


@pytest.mark.parametrize("elsewhere", ["../facts.json", "/dev/zero", "..", "a/b"])
def test_parts_are_files_of_their_folder(elsewhere, parts):
    facts = read_facts(parts)
    for name in ("files", "checksums"):
        (parts / "facts.json").write_text(json.dumps(facts | {name: {elsewhere: 5}}))
        with pytest.raises(Damaged, match="it names a file elsewhere"):
            read_facts(parts)


def test_the_checksum_is_that_of_the_file_with_zeros_in_its_place(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({"text": '"checksum": "00000000"', "checksum": EMPTY}))
    empty = sum_file(path)
    write_checksum(path)
    assert json.loads(path.read_text()) == {"text": '"checksum": "00000000"', "checksum": empty}
    check_whole(path)


def test_others_read_the_file_as_any_other(state):
    assert set(load_file(state)) == {"model.weight", "model.count", "average.weight"}
    with safe_open(state, framework="pt") as file:
        assert json.loads(file.metadata()["facts"]) == FACTS


def test_checkpoints_without_a_checksum_are_believed(state, parts):
    """Those of 0.1; the tests of old runs open some."""
    save_file(load_file(state), state, metadata={"facts": json.dumps(FACTS)})
    facts = read_facts(parts)
    del facts["checksums"], facts["stale"]
    (parts / "facts.json").write_text(json.dumps(facts))
    for path in (state, parts):
        check_checkpoint(path)
        assert read_state_facts(path).step == 5


# Facts that make no sense

STRANGE = {
    "a text": '"five"',
    "a list": "[5]",
    "nothing": "null",
    "no JSON": "{step: 5}",
    "no step": '{"seconds": 1.0}',
    "a step in words": '{"step": "5", "seconds": 1.0}',
    "a step before the first": '{"step": -5, "seconds": 1.0}',
    "a step beyond every float": '{"step": 1' + "0" * 200 + ', "seconds": 1.0}',
    "digits without end": '{"step": 1' + "0" * 5000 + ', "seconds": 1.0}',
    "seconds that are no number": '{"step": 5, "seconds": NaN}',
    "figures in a list": '{"step": 5, "seconds": 1.0, "figures": [1]}',
    "figures in words": '{"step": 5, "seconds": 1.0, "figures": {"top1": "much"}}',
    "files in a text": '{"step": 5, "seconds": 1.0, "files": "x"}',
    "something unknown": '{"step": 5, "seconds": 1.0, "colour": "red"}',
    "depth": "[" * 100_000,
    "twenty megabytes": '{"step": 5, "seconds": 1.0, "figures": {"x": "' + "y" * 20_000_000 + '"}}',
    "two steps": '{"step": 5, "step": 6, "seconds": 1.0}',
}


@pytest.fixture
def run(tmp_path):
    """A run that was stopped after five steps."""
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.create(ClassifierRun(recipe="vit_digits", model=LOOKS))
    folder.log_file.write_text('{"step": 5, "epoch": 0.5, "loss": 1.0}\n')
    weights = {f"model.{name}": tensor for name, tensor in ViT(LOOKS).state_dict().items()}
    save_checkpoint(folder.checkpoints.last, weights, FACTS)
    return folder


@pytest.fixture
def client(run):
    app = create_app({}, run.path.parent, limits=Limits())
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("name", STRANGE)
def test_facts_that_make_no_sense_get_a_sentence(name, run, client):
    """Of a file and of a folder of parts: to go on from, in the listing, and on the served page."""
    last = run.checkpoints.last
    tensors = load_file(last)
    for as_parts in (False, True):
        if as_parts:
            last.unlink()
            folder = run.checkpoints.last_in_parts(5)
            folder.mkdir()
            save_file(tensors, folder / "shard-00001-model-00001-of-00001.safetensors")
            (folder / "facts.json").write_text(STRANGE[name])
        else:
            save_file(tensors, last, metadata={"facts": STRANGE[name]})
        with pytest.raises(ValueError, match=r"is damaged or no checkpoint \(") as error:
            run.checkpoints.newest_whole()
        state = "last-5" if as_parts else "last.safetensors"
        advice = f"there is no whole state to go on from; to begin from the start, remove {state} and resume again"
        assert str(error.value).endswith(f"; {advice}")
        assert len(str(error.value)) < 1500
        with pytest.raises(ValueError, match="is damaged or no checkpoint"):
            read_state_facts(run.checkpoints.weights())
        assert all(each.step in (5, 6) for each in run.checkpoints.listing())
        for path in ("/api/runs", "/api/runs/run"):
            assert client.get(path).status_code == 200
        assert client.get("/api/runs/run/confusion.png").status_code == 404


def test_facts_that_make_sense_are_read(run, client):
    assert run.checkpoints.newest_whole() == (run.checkpoints.last, [])
    assert [each["step"] for each in client.get("/api/runs/run").json()["checkpoints"]] == [5]


# Weights that are loaded


def test_damaged_weights_say_what_is_used_without_them(run, capsys):
    best, last = run.checkpoints.best, run.checkpoints.last
    shutil.copyfile(last, best)
    flip(best, 8 * (best.stat().st_size - 9))
    sentence = (
        f"{best} is damaged or no checkpoint (its checksum is not that of what it holds); "
        "move it away, and last.safetensors, after step 5, is used instead"
    )
    with pytest.raises(ValueError, match="is damaged") as error:
        load(run.path)
    assert str(error.value) == sentence
    assert main(["evaluate", str(run.path), "--data", "digits"]) == 2
    assert capsys.readouterr().err == f"pellucid: {sentence}\n"
    best.unlink()
    load(run.path)
    os.truncate(last, 100)
    with pytest.raises(ValueError, match=rf"there are no others in {run.checkpoints.folder}$"):
        load(run.path)


# A run that goes on


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of twelve steps, and the same when it had taken eight of them."""
    folder = tmp_path_factory.mktemp("short")
    trained(folder / "whole", *STEPS)
    code, said = Started(folder / "run", *words_for(folder / "run", *STEPS), hook="end after saving", hooked=8).ended()
    assert code == 0, said
    return folder


def copied(short: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(short / "run", tmp_path / "run")
    return RunFolder(tmp_path / "run")


DAMAGES = {
    "a flipped bit": lambda path: flip(path, random.Random(0).randrange(8 * path.stat().st_size)),
    "cut": lambda path: os.truncate(path, 1000),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "facts": lambda path: save_file(load_file(path), path, metadata={"facts": '"strange"'}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_goes_on_from_the_state_before_and_ends_the_same(damage, short, tmp_path):
    folder = copied(short, tmp_path)
    last, previous = folder.checkpoints.last, folder.checkpoints.previous
    assert [read_facts(path)["step"] for path in (last, previous)] == [8, 4]
    DAMAGES[damage](last)
    said = trained(folder.path)
    assert f"pellucid: {last} is damaged or no checkpoint (" in said
    assert "); going on from previous.safetensors, after step 4\n" in said
    assert_same_run(folder.path, short / "whole")
    assert [line["step"] for line in log(folder.path) if "loss" in line] == list(range(1, 13))
    assert [read_facts(path)["step"] for path in (last, previous)] == [12, 8]
    for path in (last, previous):
        check_checkpoint(path)


def test_a_damaged_state_never_takes_the_place_of_a_whole_one(short, tmp_path):
    """Stopped by a kill after its next save, the run still has two whole states."""
    folder = copied(short, tmp_path)
    flip(folder.checkpoints.last, 8000)
    words = words_for(folder.path)
    code, said = Started(folder.path, *words, hook="end after saving", hooked=8).ended()
    assert code == 0, said
    assert [read_facts(path)["step"] for path in folder.checkpoints.states()] == [8, 4]
    for path in folder.checkpoints.states():
        check_checkpoint(path)


def test_the_state_before_may_be_damaged_too_but_it_is_told(short, tmp_path):
    folder = copied(short, tmp_path)
    flip(folder.checkpoints.previous, 8000)
    said = trained(folder.path)
    assert f"{folder.checkpoints.previous} is damaged" in said
    assert "going on from last.safetensors, after step 8" in said
    assert_same_run(folder.path, short / "whole")


def test_without_a_whole_state_it_says_how_to_begin_again(short, tmp_path, capsys):
    folder = copied(short, tmp_path)
    last, previous = folder.checkpoints.last, folder.checkpoints.previous
    for path in (last, previous):
        flip(path, 8000)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert main(["train", "vit_digits", "--resume", str(folder.path)]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"pellucid: {last} is damaged or no checkpoint (its checksum is not that of what it holds); "
        f"{previous} is damaged or no checkpoint (its checksum is not that of what it holds); there is no whole state "
        "to go on from; best.safetensors, after step 8, can be asked but not trained on; to begin from the start, "
        "remove last.safetensors and previous.safetensors and resume again\n"
    )
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    for path in (last, previous):
        path.unlink()
    trained(folder.path)
    assert_same_run(folder.path, short / "whole")


def test_a_kill_between_the_two_renames_loses_one_interval(short, tmp_path):
    folder = copied(short, tmp_path)
    os.replace(folder.checkpoints.last, folder.checkpoints.previous)
    assert folder.checkpoints.newest() == folder.checkpoints.previous
    trained(folder.path)
    assert_same_run(folder.path, short / "whole")
    assert [read_facts(path)["step"] for path in Checkpoints(folder.checkpoints.folder).states()] == [12, 8]
