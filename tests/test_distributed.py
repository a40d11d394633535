"""Two processes train as one does: with copies of the model (DDP), with a model spread over both (FSDP2)."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shims import compile_shim
from trainings import TINY, log, losses, steps_logged, tensors, together, trained, wait_for_steps

from pellucid.ready import load
from pellucid.runs.checkpoints import read_facts
from pellucid.runs.parts import read_tensors
from pellucid.training.classify import choose_batch

# Crops, cutmix, Muon, clipping, accumulation and the average; no dropout, which each process draws for itself.
EXTRA = "--augment.cutmix 1.0 --optim.ema 0.9 --optim.clip 1.0 --accumulate 2 --duration '20 steps'"
OPTIONS = [*TINY, *shlex.split(EXTRA), "--checkpoint-every", "10 steps"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    trained(folder, *OPTIONS)
    assert len(losses(folder)) == 20
    return folder


def ended(processes) -> list[str]:
    """What the processes said, the first one's first."""
    found = [process.ended() for process in processes]
    assert [code for code, _ in found] == [0, 0], found
    return [said for _, said in found]


def assert_alike(one, two) -> None:
    """The same losses, accuracies and evaluations, as far as sums in another order are the same."""
    a, b = log(one), log(two)
    assert [line["step"] for line in a] == [line["step"] for line in b]
    assert losses(one) == pytest.approx(losses(two), abs=1e-5)
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys()
        if "evaluation" in left:
            assert left["evaluation"] == pytest.approx(right["evaluation"], abs=1e-5)
        else:
            assert left["accuracy"] == pytest.approx(right["accuracy"])


def test_torchrun(alone, tmp_path):
    """The real thing, once."""
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pellucid"]
    words = ["train", "vit_digits", "--out", str(tmp_path / "run"), *OPTIONS]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*starter, *words], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("step 8,") == result.stdout.count("20 steps in") == 1  # only the first one speaks
    assert_alike(tmp_path / "run", alone)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_are_one(parallel, alone, tmp_path):
    """Saved by two after ten steps, the run goes on in two processes and in one, as if it had always been so."""
    folder, options = tmp_path / "run", [*OPTIONS, "--parallel", parallel]
    ended(together(folder, *options, hook="end after saving", hooked=10))
    saved = {path.name for path in (folder / "checkpoints").iterdir()}
    assert saved == {"best.safetensors", "last.safetensors" if parallel == "ddp" else "last-10"}  # no other before it
    shutil.copytree(folder, tmp_path / "in_one")
    first, second = ended(together(folder))
    assert second == ""
    assert "20 steps in" in first
    trained(tmp_path / "in_one")
    for path in (folder, tmp_path / "in_one"):
        assert_alike(path, alone)
        assert len(list((path / "checkpoints").iterdir())) == 3  # the best, the last, and the one before
        best = tensors(path, "best")
        for name, value in tensors(alone, "best").items():
            torch.testing.assert_close(best[name], value, atol=1e-4, rtol=0)


def test_alone_first_then_spread(alone, tmp_path):
    """The other way round: one file, read into a model that is spread over two."""
    folder = tmp_path / "run"
    code, said = together(folder, *OPTIONS, "--parallel", "fsdp", count=1, hook="end after saving", hooked=10)[
        0
    ].ended()
    assert code == 0, said
    assert (folder / "checkpoints" / "last.safetensors").exists()
    ended(together(folder))
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.safetensors", "last-20", "last.safetensors"]
    assert_alike(folder, alone)


def test_a_spread_checkpoint_that_is_damaged_gets_a_sentence(tmp_path):
    folder = tmp_path / "run"
    ended(together(folder, *OPTIONS, "--parallel", "fsdp", hook="end after saving", hooked=10))
    parts = sorted((folder / "checkpoints" / "last-10").glob("*.safetensors"))
    assert len(parts) == 2
    for damage, sentence in (
        (lambda: parts[0].write_bytes(b"?" * parts[0].stat().st_size), "last-10 is damaged or no checkpoint"),
        (lambda: parts[0].unlink(), f"last-10 is damaged or no checkpoint ({parts[0].name} is missing or was cut)"),
    ):
        damage()
        for count in (1, 2):
            for process in together(folder, count=count):
                code, said = process.ended()
                assert code == 2, said
                assert sentence in said


def test_a_model_is_loaded_from_its_parts(tmp_path):
    """Of a run that was stopped before its first evaluation, so that its best weights are nowhere whole."""
    spread, alone = tmp_path / "spread", tmp_path / "alone"
    options = [*OPTIONS, "--parallel", "fsdp", "--evaluate-every", "0 steps"]
    ended(together(spread, *options, hook="end after saving", hooked=10))
    (one,) = together(alone, *options, count=1, hook="end after saving", hooked=10)
    assert one.ended()[0] == 0
    assert [path.name for path in (spread / "checkpoints").iterdir()] == ["last-10"]
    assert [path.name for path in (alone / "checkpoints").iterdir()] == ["last.safetensors"]
    expected = load(alone).model.state_dict()
    found = load(spread).model.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-4, rtol=0)
    average = {name.removeprefix("average."): value for name, value in tensors(alone).items() if "average." in name}
    assert average
    assert all(torch.equal(expected[name], value) for name, value in average.items())
    assert read_tensors(spread / "checkpoints" / "last-10", "nothing.") == {}  # as of a run that keeps no average
    parts = sorted((spread / "checkpoints" / "last-10").glob("*.safetensors"))
    parts[1].unlink()
    with pytest.raises(ValueError, match=rf"last-10 is damaged or no checkpoint \({parts[1].name} is missing"):
        load(spread)
    parts[0].write_bytes(b"?" * parts[0].stat().st_size)
    (spread / "checkpoints" / "last-10" / "facts.json").write_text('{"files": {}}')
    with pytest.raises(ValueError, match="last-10 is damaged or no checkpoint"):
        load(spread)


def test_a_signal_to_one_stops_both(alone, tmp_path):
    folder = tmp_path / "run"
    options = [word.replace("20 steps", "500 steps") for word in OPTIONS]
    processes = together(folder, *options)
    wait_for_steps(folder, 5)
    processes[1].send(signal.SIGTERM)
    (first, said), (second, silence) = [process.ended() for process in processes]
    assert (first, second) == (143, 143)
    step = read_facts(folder / "checkpoints" / "last.safetensors")["step"]
    assert steps_logged(folder) == step < 500
    again = f"go on with: torchrun --nproc-per-node=2 -m pellucid train vit_digits --resume {folder}"
    assert said.endswith(f"pellucid: stopped after step {step}; {again}\n")
    assert silence == ""


def test_it_ends_though_threads_of_gloo_are_slow(tmp_path):
    """PyTorch dissolves the group holding Python's lock, and those threads need the lock to let go of their tensors.

    Without waiting for them it hangs, every time; on a busy machine it did so without a shim, once in 200 ends of a run
    that a signal had stopped.
    """
    shim = compile_shim("slow_gloo", tmp_path)
    command = [sys.executable, str(Path(__file__).parent / "stop_two.py"), str(tmp_path / "run"), *OPTIONS]
    result = subprocess.run(
        command, env=os.environ | {"LD_PRELOAD": str(shim)}, capture_output=True, text=True, timeout=150, check=False
    )
    assert result.stdout == "143 143\n", result.stderr


def test_without_out_both_find_the_same_folder(tmp_path, monkeypatch):
    """Each could find another one free, once the first has made its own."""
    words = [*TINY, "--duration", "2 steps"]
    from trainings import Started, free_port

    for name in ("vit_digits", "vit_digits-2"):
        port = free_port()
        ended([Started(tmp_path / "run", *words, ranks=(rank, 2, port), inside=tmp_path) for rank in range(2)])
        assert len(losses(tmp_path / "runs" / name)) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_batch_that_cannot_be_shared(tmp_path):
    for process in together(tmp_path / "run", *TINY, "--batch", "15"):
        code, said = process.ended()
        if "batch" in said:
            assert code == 2
            assert "batch is 15; expected a multiple of 2 (2 processes × 1 accumulated parts)" in said


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize("images", [7, 8, 999, 1000, 1001, 2001, 3001, 10_000])
def test_every_process_evaluates_choose_batch(images, processes):
    batch = choose_batch(images, processes)
    shares = [len(range(rank, images, processes)) for rank in range(processes)]
    assert len({-(-share // batch) for share in shares}) == 1
    assert 1 <= batch <= 1000
