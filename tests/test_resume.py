"""A run that is stopped, killed or out of luck goes on as if nothing had happened, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from trainings import (
    OUT_OF_MEMORY,
    TINY,
    WILD,
    Started,
    assert_same_run,
    log,
    losses,
    steps_logged,
    tensors,
    trained,
    wait_for_steps,
    words_for,
)

from pellucid.cli import main
from pellucid.data import DataConfig, load_images
from pellucid.runs.checkpoints import read_facts
from pellucid.runs.config import Plan
from pellucid.runs.folder import RunFolder

STEPS = 60
OPTIONS = [*TINY, *WILD, "--duration", f"{STEPS} steps", "--checkpoint-every", "2 steps"]
SHORT = [*TINY, *WILD, "--duration", "12 steps", "--checkpoint-every", "4 steps"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(folder, *OPTIONS)
    assert len(losses(folder)) == STEPS
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    trained(folder, *SHORT)
    return folder


# Killed


def test_killed_at_ten_random_moments_it_ends_the_same(whole, tmp_path):
    """Two while it starts, eight spread over steps, evaluations and checkpoints; two of them kill the real command."""
    folder = tmp_path / "run"
    seed = random.randrange(1 << 32)
    print(f"the moments' seed is {seed}")
    moments = random.Random(seed)
    stood_at = []
    for kill in range(10):
        if kill in (4, 7):
            words = [sys.executable, "-m", "pellucid", "train", "vit_digits", *words_for(folder, *OPTIONS)]
            alike = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=alike)
        else:
            process = Started(folder, *words_for(folder, *OPTIONS)).process
        if kill >= 2:
            wait_for_steps(folder, 4 * kill)
        time.sleep(moments.uniform(0, 0.5 if kill < 2 else 0.06))
        process.kill()
        if isinstance(process, subprocess.Popen):
            assert process.wait() == -signal.SIGKILL
        else:
            process.join()
            assert process.exitcode == -signal.SIGKILL
        states = RunFolder(folder).checkpoints.states()
        stood_at.append(max((read_facts(state)["step"] for state in states), default=0))
    assert stood_at == sorted(stood_at)
    assert stood_at[-1] >= 34  # 36 steps are logged, and saved are all but the last two of them
    trained(folder, *OPTIONS)
    assert_same_run(folder, whole)
    assert_nothing_else(folder)


def test_killed_in_the_middle_of_writing_it_ends_the_same(whole, tmp_path):
    folder = tmp_path / "run"
    for hook, count in (
        ("after replacing", 1),  # environment.json is there, config.json isn't
        ("before replacing", 4),  # between config.json, plan.json, an empty log and the first checkpoint
        ("half a checkpoint", 3),
        ("before replacing", 4),
        ("after replacing", 5),
        ("half a line", 6),
        ("half a checkpoint", 5),
    ):
        code, said = Started(folder, *words_for(folder, *OPTIONS), hook=hook, hooked=count).ended()
        assert code == -signal.SIGKILL, said
    assert read_facts(folder / "checkpoints" / "last.safetensors")["step"] > 10
    assert len(list((folder / "checkpoints").iterdir())) > 2
    trained(folder, *OPTIONS)
    assert_same_run(folder, whole)
    assert_nothing_else(folder)


def assert_nothing_else(folder: Path) -> None:
    """What killed processes left unfinished is gone, and others may read what is there."""
    files = sorted((folder / "checkpoints").iterdir())
    assert [path.name for path in files] == ["best.safetensors", "last.safetensors", "previous.safetensors"]
    assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o644"] * 3


def test_another_seed_is_another_run(whole, tmp_path):
    """So that the tests above don't compare runs that couldn't differ."""
    trained(tmp_path / "run", *OPTIONS, "--seed", "1")
    assert losses(tmp_path / "run") != losses(whole)
    assert not torch.equal(tensors(tmp_path / "run")["model.head.weight"], tensors(whole)["model.head.weight"])


def test_two_that_train_in_one_folder_are_kept_apart(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    started = Started(folder, *words_for(folder, *OPTIONS))
    wait_for_steps(folder, 4)
    started.send(signal.SIGSTOP)
    code = main(["train", "vit_digits", "--resume", str(folder)])
    started.send(signal.SIGCONT)
    assert code == 2
    assert capsys.readouterr().err == (
        f"pellucid: {folder} is being trained by another process; wait for it, or stop it\n"
    )
    assert started.ended()[0] == 0
    assert_same_run(folder, whole)
    trained(folder)  # nobody is there any more


# Stopped


def test_signals_save_and_say_how_to_go_on(whole, tmp_path):
    folder = tmp_path / "a run"
    options = [*OPTIONS[:-1], "0 steps"]  # nothing is saved but for the signal
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        before = steps_logged(folder)
        started = Started(folder, *words_for(folder, *options))
        wait_for_steps(folder, before + 3)
        started.send(number)
        ended, said = started.ended()
        assert ended == code, said
        step = read_facts(folder / "checkpoints" / "last.safetensors")["step"]
        assert before + 3 <= step < STEPS
        sentence = f"pellucid: stopped after step {step}; go on with: pellucid train vit_digits --resume '{folder}'\n"
        assert said.endswith(sentence)
        assert "Traceback" not in said
    trained(folder)
    assert_same_run(folder, whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_second_signal_ends_it_at_once(number, code, tmp_path):
    started = Started(tmp_path / "run", *words_for(tmp_path / "run", *OPTIONS), hook="hang", hooked=10)
    wait_for_steps(tmp_path / "run", 10)
    time.sleep(0.5)  # by now it hangs
    started.send(number)
    time.sleep(0.3)
    assert started.process.is_alive()  # the first one waits for the end of the step
    started.send(number)
    begun = time.monotonic()
    assert started.ended(10)[0] == code
    assert time.monotonic() - begun < 5


def test_what_was_to_be_ignored_is_ignored(tmp_path):
    """As with nohup: Ctrl-C in the terminal it was started from doesn't reach it."""
    folder = tmp_path / "run"
    started = Started(folder, *words_for(folder, *OPTIONS), hook="ignore Ctrl-C")
    wait_for_steps(folder, 2)
    started.send(signal.SIGINT)
    before = steps_logged(folder)
    wait_for_steps(folder, before + 3)
    started.send(signal.SIGTERM)
    assert started.ended()[0] == 143


# Out of luck


def goes_wrong(folder: Path, hook: str, count: int) -> str:
    """The one sentence of a run that something happens to."""
    code, said = Started(folder, *words_for(folder, *SHORT), hook=hook, hooked=count).ended()
    assert code == 2, said
    sentence = said.splitlines()[-1]
    assert sentence.startswith("pellucid: ")
    assert "Traceback" not in said
    return sentence.removeprefix("pellucid: ")


def goes_on(folder: Path, short: Path) -> None:
    trained(folder)
    assert_same_run(folder, short)


@pytest.mark.parametrize(("what", "count"), [("replace", 6), ("save", 3), ("log", 4)])
def test_a_full_disk(what, count, short, tmp_path):
    folder = tmp_path / "run"
    said = goes_wrong(folder, f"no space to {what}", count)
    assert "No space left on device" in said
    assert f"what was saved before is whole, go on with: pellucid train vit_digits --resume {folder}" in said
    assert not list((folder / "checkpoints").glob("*.part"))
    goes_on(folder, short)


def test_a_disk_that_is_full_from_the_start(tmp_path):
    assert goes_wrong(tmp_path / "run", "no space to replace", 1) == "No space left on device"


def test_a_loss_that_is_no_number(short, tmp_path):
    said = goes_wrong(tmp_path / "run", "nan", 6)
    assert said == "the loss is nan at step 7; begin again with a lower --optim.lr, or with --optim.clip 1"
    assert losses(tmp_path / "run") == losses(short)[:6]
    assert read_facts(tmp_path / "run" / "checkpoints" / "last.safetensors")["step"] == 4
    goes_on(tmp_path / "run", short)


def test_weights_that_are_no_numbers_are_not_saved(short, tmp_path):
    """The step before a checkpoint breaks the weights: the loss of that step is still fine."""
    assert "the weights are no longer finite after step 8" in goes_wrong(tmp_path / "run", "broken weights", 7)
    assert read_facts(tmp_path / "run" / "checkpoints" / "last.safetensors")["step"] == 4
    goes_on(tmp_path / "run", short)


@pytest.mark.parametrize("hook", OUT_OF_MEMORY)
def test_out_of_memory(hook, short, tmp_path):
    said = goes_wrong(tmp_path / "run", hook, 6)
    assert said == "there is not enough memory for a batch of 16; use a smaller --batch, or --accumulate 2"
    goes_on(tmp_path / "run", short)


def test_other_mistakes_keep_their_trace(tmp_path):
    code, said = Started(tmp_path / "run", *words_for(tmp_path / "run", *SHORT), hook="a mistake of ours").ended()
    assert code == 1
    assert "Traceback" in said
    assert said.rstrip().endswith("RuntimeError: a mistake of ours")


# Damaged


@pytest.fixture
def stopped(short, tmp_path):
    """A run with nine steps of twelve to go: the short one, as it stood after step 4, but for its weights."""
    folder = tmp_path / "stopped"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "plan.json"):
        (folder / name).write_bytes((short / name).read_bytes())
    rewrite(short, folder, facts={"step": 4, "seconds": 1.0})
    return folder


def rewrite(
    source: Path, target: Path, leave_out: str = "", add: dict | None = None, facts: dict | None = None
) -> None:
    kept = {name: tensor for name, tensor in tensors(source).items() if name != leave_out}
    with safe_open(source / "checkpoints" / "last.safetensors", framework="pt") as file:
        text = file.metadata()["facts"] if facts is None else json.dumps(facts)
    save_file(kept | (add or {}), target / "checkpoints" / "last.safetensors", metadata={"facts": text})


DAMAGES = {
    "lacks": (
        lambda folder: rewrite(folder, folder, leave_out="optimizer.head.bias.step"),
        "last.safetensors doesn't fit this run: it lacks optimizer.head.bias.step",
    ),
    "unknown": (
        lambda folder: rewrite(folder, folder, add={"model.tail": torch.ones(1)}),
        "doesn't fit this run: it has unknown model.tail",
    ),
    "shape": (
        lambda folder: rewrite(folder, folder, add={"model.head.bias": torch.ones(3)}),
        "doesn't fit this run: it has the wrong shape for model.head.bias",
    ),
    "cut": (
        lambda folder: os.truncate(folder / "checkpoints" / "last.safetensors", 5000),
        "last.safetensors is damaged or no checkpoint",
    ),
    "empty": (
        lambda folder: os.truncate(folder / "checkpoints" / "last.safetensors", 0),
        "last.safetensors is damaged or no checkpoint",
    ),
    "garbage": (
        lambda folder: (folder / "checkpoints" / "last.safetensors").write_bytes(bytes(range(256)) * 20),
        "last.safetensors is damaged or no checkpoint",
    ),
    "facts": (
        lambda folder: rewrite(folder, folder, facts={"seconds": 1.0}),
        "last.safetensors is damaged or no checkpoint (the config lacks step)",
    ),
    "field": (
        lambda folder: change(folder / "config.json", colour="red"),
        "config.json: unknown field in the config: colour; ClassifierRun has",
    ),
    "value": (
        lambda folder: change(folder / "config.json", batch="many"),
        "config.json: config batch is 'many'; expected int",
    ),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
    "plan": (
        lambda folder: (folder / "plan.json").write_text("[]"),
        "plan.json: config file is []; expected an object",
    ),
    "data": (
        lambda folder: change(folder / "plan.json", epoch_size=99),
        "the run began with 99 images to train on, and now there are 1437; bring back the data it began with",
    ),
    "classes": (
        lambda folder: change_model(folder / "config.json", classes=9, labels=list("012345678")),
        "digits is not what the run began with: its images or classes have changed",
    ),
    "another recipe": (
        lambda folder: change(folder / "config.json", recipe="vit_64x5"),
        "is a run of vit_64x5, not of vit_digits",
    ),
    "nothing": (lambda folder: (folder / "config.json").unlink(), "holds no run: there is no config.json in it"),
}


def refused(capsys, *words: object) -> str:
    """The one sentence of a command that can't be done."""
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pellucid: ")
    assert said.count("\n") == 1
    return said


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_model(path: Path, **values) -> None:
    change(path, model=json.loads(path.read_text())["model"] | values)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_gets_a_sentence(damage, stopped, capsys):
    damaging, sentence = DAMAGES[damage]
    damaging(stopped)
    assert sentence in refused(capsys, "train", "vit_digits", "--resume", stopped)


def test_what_is_not_damaged_goes_on(stopped):
    trained(stopped)
    assert [line["step"] for line in log(stopped) if "loss" in line] == list(range(5, 13))


@pytest.mark.parametrize("option", [["--batch", "32"], ["--out", "elsewhere"]])
def test_resume_takes_no_other_options(option, stopped, capsys):
    said = refused(capsys, "train", "vit_digits", "--resume", stopped, *option)
    assert said == "pellucid: --resume goes on with a run as it is; leave out the other options but --duration\n"


def test_a_folder_that_holds_a_run_is_left_alone(short, capsys):
    before = {path: path.read_bytes() for path in short.rglob("*") if path.is_file()}
    said = refused(capsys, "train", "vit_digits", "--out", short, *SHORT)
    assert f"{short} already holds a run; go on with it by --resume {short}, or choose another --out" in said
    assert before == {path: path.read_bytes() for path in short.rglob("*") if path.is_file()}


def test_a_run_that_has_ended_stays_as_it_is(short):
    before = (short / "log.jsonl").read_bytes(), tensors(short)
    assert "12 steps in" in trained(short)
    assert (short / "log.jsonl").read_bytes() == before[0]
    assert all(torch.equal(value, tensors(short)[name]) for name, value in before[1].items())


# Durations


@pytest.mark.parametrize(
    ("duration", "steps"), [("3 steps", 3), ("0.1 epochs", 9), ("2.6 steps", 3), ("0.001 epoch", 1)]
)
def test_durations(duration, steps, tmp_path):
    folder = tmp_path / "run"
    trained(folder, *TINY, "--duration", duration)
    assert len(losses(folder)) == steps
    assert len(load_images(DataConfig("digits")).train) == 1437  # 0.1 epochs are 143.7 images, 8.98 batches


def test_minutes_are_converted_once(tmp_path):
    """Killed before its first checkpoint and between two, it keeps the steps that it counted at first."""
    folder = tmp_path / "run"
    options = [*TINY, *WILD, "--duration", "0.01 minutes", "--checkpoint-every", "0.004 minutes"]
    code, _ = Started(folder, *words_for(folder, *options), hook="half a line", hooked=1).ended()
    assert code == -signal.SIGKILL
    plan = RunFolder(folder).plan()
    assert plan is not None
    assert 5 <= plan.steps <= 600  # 0.6 s
    assert plan.checkpoint_every == pytest.approx(0.4 * plan.steps, abs=1)
    assert not (folder / "checkpoints" / "last.safetensors").exists()
    code, _ = Started(folder, *words_for(folder), hook="end after saving", hooked=plan.checkpoint_every).ended()
    assert code == 0
    trained(folder)
    assert RunFolder(folder).plan() == plan
    assert len(losses(folder)) == plan.steps
    same = [*options[:-3], f"{plan.steps} steps", "--checkpoint-every", f"{plan.checkpoint_every} steps"]
    trained(tmp_path / "same", *same)
    assert_same_run(folder, tmp_path / "same")


def test_a_plan_is_what_the_folder_keeps(short):
    assert RunFolder(short).plan() == Plan(steps=12, evaluate_every=8, checkpoint_every=4, epoch_size=1437, batch=16)
