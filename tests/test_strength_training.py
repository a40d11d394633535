"""What a mutation run found untested in training."""

import io
import itertools
import json
import math
import platform
import random
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors import safe_open
from test_caption_training import made, padded, random_rows, tiny
from test_train import CPU, Heard, Lines, Splits, by_hand, plain, random_splits, step_line
from test_train import tiny as small
from torch import nn
from torch.testing import assert_close

from pellucid.data import draws
from pellucid.data.augment import Augment, augment, normalised
from pellucid.data.captions import CaptionSet
from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import END, MASK, PAD, START, UNKNOWN, CaptionTokenizer
from pellucid.evaluation.captions import References, cider_d, score
from pellucid.processes import Processes, joined
from pellucid.recipes import recipe
from pellucid.runs import Optim, Run, RunFolder, environment, folder
from pellucid.runs.checkpoints import Facts
from pellucid.runs.config import Critical, Duration, Words
from pellucid.training import Engine, caption, classify, distributed, engine, memory, progress, reverse
from pellucid.training.caption import Captioning, KnownCaptions, SelfCritical, backwards
from pellucid.training.checkpoint import CheckpointWriter, State, restore, save_checkpoint
from pellucid.training.classify import Classification, choose_batch, resolve
from pellucid.training.muon import Muon, orthogonalised
from pellucid.training.optim import make_optimizers, schedule, set_rate
from pellucid.training.reward import Reward

trained = sys.modules["pellucid.training.train"]  # the room has a function of that name


def test_the_bag_is_asked_for_where_unknown_is_read_and_nothing_before_it():
    task = made(tiny(bag=0.5, model=replace(tiny().model, zero_branches=False)))
    (part,) = next(iter(task.batches(0, 1)))
    with_bag, _ = task.loss(task.model, *part)
    task.run = replace(task.run, bag=0.0)
    without, _ = task.loss(task.model, *part)
    share = task.loader.share(0)
    images, flipped = task.augmented(share, task.loader.pixels(share), task.run.augment)
    row = torch.full((len(images), 4), PAD)
    row[:, 0] = UNKNOWN
    log_probs = task.model(images, row)[:, 0].log_softmax(-1)
    bags = task.bags(share, flipped)
    assert_close(with_bag - without, -0.5 * (bags * log_probs).sum(-1).mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_half_precision_is_what_a_run_asks_for(precision):
    task = made(tiny(precision=precision))
    with task.precision():
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.skipif(shutil.which("git") is None, reason="the commit is git's")
def test_the_commit_is_that_of_the_tree_the_package_runs_from(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "pellucid" / "runs" / "environment.py"))
    assert environment.find_commit() is None
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(tmp_path), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout
    commit = environment.find_commit()
    assert len(commit) >= 7
    assert head.startswith(commit)


def test_the_figures_of_two_uneven_shares_are_those_of_the_whole(monkeypatch):
    """Seven pictures are four and three: the mean over the processes weighs each by its pictures."""
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(small(recipe("vit_digits")))
    test = ImageSet(splits.test.images[:7], splits.test.labels[:7], splits.test.classes)
    shares = []

    class Apart(Processes):
        def mean(self, x):
            shares.append(x)
            return x

    for processes in (Apart(0, 2), Apart(1, 2), Processes()):
        task = Classification(run, Splits(splits.train, None, test), CPU, processes)
        figures = task.evaluate(task.model)
    *sums, count = torch.stack(shares[:2]).sum(0).tolist()
    assert count == 7
    assert [each / count for each in sums] == pytest.approx([figures["top1"], figures["loss"]], rel=1e-6)
    assert shares[0].tolist() != pytest.approx(shares[1].tolist())


@pytest.mark.parametrize(("mine", "others", "agreed"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)])
def test_one_process_that_says_so_is_enough(mine, others, agreed, monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: x.add_(others))
    assert Processes(0, 2).agree(bool(mine), CPU) is agreed


def test_losses_are_told_twice_a_second(monkeypatch):
    """By a clock that moves a fifth of a second with each step."""
    now, told = [0.0], []

    class Slow(Lines):
        def loss(self, *batch):
            now[0] += 0.2
            return super().loss(*batch)

    class Counting(Heard):
        def logged(self, lines):
            told.append([line["step"] for line in lines])

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = plain(duration="10 steps", checkpoint_every="0 steps")
    result = Engine(Slow(run), run, CPU, observer=Counting()).fit()
    assert told == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10], [10]]  # the last is the evaluation
    assert result.seconds == pytest.approx(2.0)


def test_minutes_are_no_steps_without_a_pace():
    assert Duration.parse("2 minutes").steps(steps_per_epoch=1, seconds_per_step=0.5) == 240
    with pytest.raises(ZeroDivisionError):
        Duration.parse("2 minutes").steps(steps_per_epoch=1)


def test_what_a_captioner_reads_is_judged_by_each_next_word():
    task = made(tiny())
    figures = task.evaluate(task.model)
    tokens = task.tokenizer.batch([captions[0] for captions in task.held_out.captions], task.run.model.max_length)
    losses, right = [], []
    with torch.no_grad():
        for i, row in enumerate(tokens.tolist()):
            said = [token for token in row if token != PAD]
            image = normalised(task.held_out.images.read(torch.tensor([i])), task.normalise)
            log_probs = task.model(image, torch.tensor([said[:-1]]))[0].log_softmax(-1)
            losses += [-log_probs[place, token].item() for place, token in enumerate(said[1:])]
            right += [log_probs[place].argmax().item() == token for place, token in enumerate(said[1:])]
    assert figures["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert figures["accuracy"] == pytest.approx(sum(right) / len(right))


def test_a_folder_is_trained_by_one_at_a_time(tmp_path):
    mine, other = folder.RunFolder(tmp_path), folder.RunFolder(tmp_path)
    with mine.alone(), pytest.raises(ValueError, match="is being trained by another process"), other.alone():
        pass
    with other.alone():  # and by another afterwards
        pass


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries can't be told")
def test_the_c_library_says_that_it_was_told():
    code = "from pellucid.training.memory import keep_freed_memory; print(keep_freed_memory())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


def test_a_word_of_five_captions_is_known_unless_asked_otherwise():
    words = Words()
    captions = ["dog"] * 5 + ["cat"] * 4
    tokenizer = CaptionTokenizer.train(captions, kind=words.kind, min_count=words.min_count, size=words.size)
    assert tokenizer.encode("dog") != [UNKNOWN]
    assert tokenizer.encode("cat") == [UNKNOWN]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_captions_of_hardly_any_words_are_rewarded_as_they_are_scored(length):
    """References and captions just as long as the longest n-gram, and shorter."""
    generator = torch.Generator().manual_seed(length)
    references, captions = (torch.randint(3, 7, (6, 2, length), generator=generator) for _ in range(2))
    captions[0] = references[0]
    rewards = Reward(references, vocabulary=7, pad=PAD)(torch.arange(6), captions)
    spelled = [[[str(word) for word in row] for row in rows] for rows in references.tolist()]
    for which in range(2):
        said = [[str(word) for word in rows[which]] for rows in captions.tolist()]
        assert rewards[:, which].double().mean().item() == pytest.approx(cider_d(said, spelled), abs=1e-5)
    assert rewards[0].min() > rewards[1:].min()


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"duration": "two steps"}, {"parallel": "both"}])
def test_a_captioner_is_refused_what_any_run_is_refused(wrong):
    run = tiny()
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is "):
        replace(run, **wrong)


@pytest.mark.parametrize(("every", "kept"), [("0 steps", []), ("2 steps", [2, 4])])
def test_weights_are_kept_for_good_when_it_is_time_and_only_then(every, kept, tmp_path):
    run = plain(duration="5 steps", keep_every=every)
    where = folder.RunFolder(tmp_path / "run")
    where.checkpoints.folder.mkdir(parents=True)
    Engine(Lines(run), run, CPU, folder=where).fit()
    names = {path.name for path in where.checkpoints.folder.iterdir()}
    assert names == {"last.safetensors", "best.safetensors", *(f"step-{step}.safetensors" for step in kept)}


def test_many_processes_tell_their_losses_after_the_same_steps(monkeypatch):
    """Every fifth, whatever each one's clock says: what they tell is the mean of all."""
    told = []

    class Two(Processes):
        def mean(self, x):
            return x

        def agree(self, flag, device):
            return flag

        def wait(self):
            pass

    class Counting(Heard):
        def logged(self, lines):
            told.append([line["step"] for line in lines])

    monkeypatch.setattr("pellucid.training.engine.parallel", lambda model, *_: model)
    run = plain(duration="12 steps", checkpoint_every="0 steps")
    Engine(Lines(run), run, CPU, observer=Counting(), processes=Two(0, 2)).fit()
    assert told == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12], [12]]  # the last is the evaluation


def test_a_rate_that_is_a_tensor_is_set_where_it_is():
    parameter, rate = torch.nn.Parameter(torch.zeros(2)), torch.tensor(0.5)
    plain_one, captured = (
        torch.optim.SGD([{"params": [parameter], "lr": lr, "peak": 0.5, "begins": 0.0}]) for lr in (0.5, rate)
    )
    set_rate([plain_one, captured], 0.25)
    assert plain_one.param_groups[0]["lr"] == 0.125
    assert captured.param_groups[0]["lr"] is rate
    assert rate.item() == 0.125


# The engine


def test_a_steps_random_numbers_are_its_seeds_its_own_and_its_processs():
    """What a checkpoint of today goes on with tomorrow."""
    assert engine._mixed(0, 0, 0) == 0
    assert engine._mixed(3, 5, 2) == 3 * 1_000_003 + 5 * 10_007 + 2
    assert 0 <= engine._mixed(2**62, 7, 1) < 2**63
    drawn = []

    class Drawing(Lines):
        def loss(self, *batch):
            drawn.append(torch.initial_seed())
            return super().loss(*batch)

    for rank in (0, 1):
        run = plain(duration="3 steps", seed=4)
        one = Engine(Drawing(run), run, CPU)
        one.processes = Processes(rank, 1)
        one.fit()
    assert drawn == [engine._mixed(4, step, rank) for rank in (0, 1) for step in range(3)]


@pytest.mark.parametrize(
    ("done", "every", "due"), [(4, 2, True), (3, 2, False), (4, 0, False), (1, 1, True), (2, 4, False)]
)
def test_what_is_due_when(done, every, due):
    assert engine._is_due(done, every) is due


def test_what_a_run_comes_to_and_what_its_log_says(tmp_path, monkeypatch):
    now = [0.0]

    class Slow(Lines):
        def loss(self, *batch):
            now[0] += 0.25
            return super().loss(*batch)

        def evaluate(self, model):
            now[0] += 100.0  # evaluations don't count
            return super().evaluate(model)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = plain(duration="7 steps", evaluate_every="3 steps", checkpoint_every="2 steps")
    where = RunFolder(tmp_path / "run")
    where.create(run)
    heard = Heard()
    result = Engine(Slow(run), run, CPU, folder=where, observer=heard).fit()
    assert heard.beginning == (0, 7)
    assert (result.steps, result.images, result.seconds, result.warm_up) == (7, 56, 1.75, 0.0)
    assert (result.model, result.folder) == (None, None)
    steps = [line for line in heard.lines if "evaluation" not in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["epoch"] for line in steps] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]  # 8 of 40 a step
    assert {line["points_per_second"] for line in steps} == {32.0}
    assert [line["loss"] for line in steps] == pytest.approx(by_hand(7)[0])
    evaluations = [line for line in heard.lines if "evaluation" in line]
    assert [(line["step"], line["epoch"], line["seconds"]) for line in evaluations] == [
        (3, 0.6, 0.75), (6, 1.2, 1.5), (7, 1.4, 1.75)
    ]  # fmt: skip
    assert [json.loads(line) for line in where.log_file.read_text().splitlines()] == heard.lines
    again = Engine(Lines(run), run, CPU, folder=where, observer=(later := Heard())).fit()  # it has ended
    assert (again.seconds, again.best, again.figures) == (1.75, result.best, result.figures)
    assert (later.beginning, later.lines) == ((7, 7), [])


def test_a_run_goes_on_from_its_checkpoint_with_all_it_had(tmp_path):
    """Stopped by a signal after the third step: weights, average, memory, best and the log are as if it never was."""
    optim = Optim(lr=0.05, ema=0.9, clip=0.5, warmup=0.5)
    run = plain(duration="8 steps", optim=optim, evaluate_every="2 steps", checkpoint_every="0 steps")
    whole = RunFolder(tmp_path / "whole")
    whole.create(run)
    expected = Engine(Lines(run), run, CPU, folder=whole).fit()

    class Stopping(Lines):
        count = 0

        def loss(self, *batch):
            self.count += 1
            if self.count == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().loss(*batch)

    where = RunFolder(tmp_path / "run")
    where.create(run)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(engine.Stopped, match="stopped after step 3") as stopped:
        Engine(Stopping(run), run, CPU, folder=where).fit()
    assert (stopped.value.step, stopped.value.signal) == (3, signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    heard = Heard()
    result = Engine(Lines(run), run, CPU, folder=where, observer=heard).fit()
    assert heard.beginning == (3, 8)
    assert [line["step"] for line in heard.lines if "evaluation" not in line] == [4, 5, 6, 7, 8]
    assert (result.best, result.figures) == (expected.best, expected.figures)
    from safetensors.torch import load_file

    for name in ("last", "best"):
        ours, theirs = (load_file(each.checkpoints.folder / f"{name}.safetensors") for each in (where, whole))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    facts = [RunFolder(each.path).log_file.read_text().count("evaluation") for each in (where, whole)]
    assert facts[0] == facts[1] == 4


@pytest.fixture
def interruptible():
    """Ctrl-C as Python has it, also where whoever started the tests ignores it, as a shell's background jobs do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_is_heard_in_the_main_thread_once_and_then_is_the_systems():
    heard = []
    with engine._signals() as signals:
        assert signals == []
        signal.raise_signal(signal.SIGINT)
        assert signals == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with engine._signals() as signals:
            signal.raise_signal(signal.SIGINT)
        assert signals == []
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    def aside():
        with engine._signals() as signals:
            heard.append((signals, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join()
    assert heard == [([], before)]


def test_the_pace_is_of_ten_steps_after_three_and_leaves_no_trace(monkeypatch):
    now, count = [0.0], [0]

    class Slow(Lines):
        def loss(self, *batch):
            count[0] += 1
            now[0] += 5.0 if count[0] <= 3 else 0.5
            return super().loss(*batch)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = plain(duration="1 minutes", optim=Optim(ema=0.9, clip=1.0), evaluate_every="0.1 minutes")
    task = Slow(run)
    one = Engine(task, run, CPU)
    before = {name: tensor.clone() for name, tensor in one.state.tensors().items()}
    assert one.pace == pytest.approx(0.5)
    assert count == [13]
    after = one.state.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (one._length("1 minutes"), one._length("3 steps"), one._length("2 epochs")) == (120, 3, 10)
    assert one._length("0 minutes") == 0
    assert count == [13]  # it is measured once
    plan = one._plan()
    assert (plan.steps, plan.evaluate_every, plan.checkpoint_every, plan.epoch_size, plan.keep_every) == (
        120,
        12,
        5,
        40,
        0,
    )


def test_a_plan_is_kept_and_is_of_the_data_it_began_with(tmp_path):
    run = plain(duration="4 steps", keep_every="3 steps")
    where = RunFolder(tmp_path / "run")
    where.create(run)
    plan = Engine(Lines(run), run, CPU, folder=where)._plan()
    assert where.plan() == plan
    longer = replace(run, duration="9 steps")
    assert Engine(Lines(longer), longer, CPU, folder=where)._plan() == plan
    other = Lines(run)
    other.epoch_size = 41
    with pytest.raises(ValueError, match="the run began with 40 points to train on, and now there are 41"):
        Engine(other, run, CPU, folder=where)._plan()
    second = RunFolder(tmp_path / "second")
    second.create(run)
    rank = Engine(Lines(run), run, CPU, folder=second)
    rank.processes = SimpleNamespace(first=False, wait=lambda: None, world=1)
    rank._plan()
    assert second.plan() is None  # one process writes


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_ends_the_run_and_is_not_logged(bad):
    class Failing(Lines):
        count = 0

        def loss(self, *batch):
            self.count += 1
            loss, metrics = super().loss(*batch)
            return (loss * bad if self.count == 3 else loss), metrics

    run, heard = plain(checkpoint_every="0 steps"), Heard()
    with pytest.raises(ValueError, match=rf"the loss is {bad} at step 3; begin again with a lower --optim.lr"):
        Engine(Failing(run), run, CPU, observer=heard).fit()
    assert [line["step"] for line in heard.lines] == [1, 2]
    task = Lines(run)
    one = Engine(task, run, CPU)
    with torch.no_grad():
        task.model.bias[1] = bad
    for act in (one._save, one._evaluate, one._keep):
        with pytest.raises(ValueError, match="the weights are no longer finite after step 7"):
            act(7)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_gradients_are_exchanged_in_the_last_part_alone(parts, monkeypatch):
    wanted = []
    monkeypatch.setattr(engine, "exchange_gradients", lambda network, now: wanted.append(now))
    run = plain(duration="2 steps", accumulate=parts)
    Engine(Lines(run), run, CPU).fit()
    assert wanted == ([False] * (parts - 1) + [True]) * 2
    network = nn.Linear(1, 1)
    distributed.exchange_gradients(network, True)  # alone there is nothing to exchange
    network.set_requires_gradient_sync = wanted.append
    monkeypatch.undo()
    for now in (True, False):
        distributed.exchange_gradients(network, now)
        assert wanted[-1] is now


def test_averages_forget_the_first_steps_faster():
    run = plain(duration="40 steps", optim=replace(plain().optim, ema=0.75))
    task = Lines(run)
    one = Engine(task, run, CPU)
    start = task.model.weight.detach().clone()
    one.fit()
    expected = start
    for step, weight in enumerate(by_hand(40)[1]):
        keep = min(0.75, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * weight
    assert_close(one.average["weight"], expected, rtol=0, atol=1e-6)
    trained_weights = task.model.weight.detach().clone()
    with one._averaged():
        assert_close(task.model.weight.detach(), expected, rtol=0, atol=1e-6)
    assert torch.equal(task.model.weight, trained_weights)
    with pytest.raises(RuntimeError), one._averaged():
        raise RuntimeError
    assert torch.equal(task.model.weight, trained_weights)
    one.keep_average()
    assert_close(task.model.weight.detach(), expected, rtol=0, atol=1e-6)
    bare = Engine(Lines(plain()), plain(), CPU)
    before = bare.task.model.weight.detach().clone()
    bare.keep_average()
    assert torch.equal(bare.task.model.weight, before)


def test_only_a_better_score_is_the_best(tmp_path):
    class Scored(Lines):
        scores = iter([0.5, 0.5, 0.75, None, 0.25])

        def evaluate(self, model):
            value = next(self.scores)
            return {} if value is None else {"right": value}

    run = plain(duration="5 steps", evaluate_every="1 steps")
    where = RunFolder(tmp_path / "run")
    where.create(run)
    result = Engine(Scored(run), run, CPU, folder=where).fit()
    assert result.best == 0.75
    with safe_open(where.checkpoints.best, "pt") as file:
        assert json.loads(file.metadata()["facts"]) == {"step": 3, "right": 0.75}


# Checkpoints


def state(**changes):
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    optimizers = make_optimizers(model, Optim(**changes))
    return State(model, {"weight": torch.rand(3, 2)}, optimizers)


def test_a_state_is_every_tensor_that_training_changes():
    assert state().tensors().keys() == {
        "model.weight", "model.bias", "average.weight",
        *(f"optimizer.{name}.{key}" for name in ("weight", "bias") for key in ("exp_avg", "exp_avg_sq", "step")),
    }  # fmt: skip
    momentum = state(name="sgd", momentum=0.5).tensors().keys()
    assert {"optimizer.weight.momentum_buffer", "optimizer.bias.momentum_buffer"} <= momentum
    assert len(momentum) == 5
    assert len(state(name="sgd", momentum=0.0).tensors()) == 3
    one = state()
    one.tensors()["model.weight"].zero_()
    assert not one.model.weight.any()  # no copies
    with one.untouched():
        for tensor in one.tensors().values():
            tensor.add_(1)
    assert not one.model.weight.any()


def test_what_does_not_fit_a_state_is_said_in_one_sentence(tmp_path):
    one = state()
    shapes = {name: tensor.shape for name, tensor in one.tensors().items()}
    one.check(shapes, Path("x"))
    wrong = dict(shapes) | {"model.bias": torch.Size([4]), "model.tail": torch.Size([1])}
    del wrong["average.weight"]
    sentence = "it lacks average.weight; it has unknown model.tail; it has the wrong shape for model.bias"
    with pytest.raises(ValueError, match=f"^x doesn't fit this run: {sentence}$"):
        one.check(wrong, Path("x"))
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, one.tensors(), {"step": 5, "seconds": 1.5, "best": 0.5, "figures": {"a": 1.0}})
    other = state()
    for tensor in other.tensors().values():
        tensor.add_(1)
    facts = restore(path, other)
    assert (facts.step, facts.seconds, facts.best, facts.figures) == (5, 1.5, 0.5, {"a": 1.0})
    for name, tensor in other.tensors().items():
        assert torch.equal(tensor, one.tensors()[name])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        restore(path, other)


def test_the_newest_checkpoint_takes_the_place_of_the_others_and_one_process_writes(tmp_path):
    waits = []
    where = RunFolder(tmp_path)
    where.checkpoints.folder.mkdir()
    one = state()
    for name in ("last-3", "last-5"):
        (where.checkpoints.folder / name).mkdir()
    (where.checkpoints.folder / ".tmp1").touch()
    (where.checkpoints.folder / "a.part").touch()
    (where.checkpoints.folder / "step-1.safetensors").touch()
    second = SimpleNamespace(first=False, world=2, wait=lambda: waits.append("second"), share=lambda text: text)
    writer = CheckpointWriter(where.checkpoints, second)
    assert writer.restore_last(one) is None
    writer.save_last(one.tensors(), Facts(7, 1.0))
    writer.save_best({}, {"step": 7})
    writer.save_kept({}, {"step": 7})
    assert {path.name for path in where.checkpoints.folder.iterdir()} == {
        "last-3",
        "last-5",
        ".tmp1",
        "a.part",
        "step-1.safetensors",
    }
    first = SimpleNamespace(first=True, world=2, wait=lambda: waits.append("first"), share=lambda text: text)
    writer = CheckpointWriter(where.checkpoints, first)
    writer.save_last(one.tensors(), Facts(7, 1.0))
    assert waits == ["second", "first"]
    assert {path.name for path in where.checkpoints.folder.iterdir()} == {"last.safetensors", "step-1.safetensors"}
    writer.save_kept({"model.weight": torch.ones(2)}, {"step": 7})
    writer.save_best({"model.weight": torch.ones(2)}, {"step": 7})
    assert {path.name for path in where.checkpoints.folder.iterdir()} == {
        "last.safetensors", "step-1.safetensors", "step-7.safetensors", "best.safetensors"
    }  # fmt: skip
    facts = writer.restore_last(one)
    assert (facts.step, facts.seconds, facts.best) == (7, 1.0, None)


# Many processes, played by one


def test_what_processes_say_to_each_other(monkeypatch):
    def all_reduce(x):
        x.mul_(3)  # as if three said the same

    said = []
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: said.append("wait"))
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda texts: texts.__setitem__(0, "first's"))
    three, alone = Processes(1, 3), Processes()
    x = torch.tensor([1.0, 2.0])
    assert three.mean(x).tolist() == alone.mean(x).tolist() == x.tolist() == [1.0, 2.0]
    assert alone.mean(x) is x
    assert (three.share("mine"), alone.share("mine")) == ("first's", "mine")
    assert (three.agree(True, CPU), three.agree(False, CPU)) == (True, False)
    assert (alone.agree(True, CPU), alone.agree(False, CPU)) == (True, False)
    three.wait()
    alone.wait()
    assert said == ["wait"]
    assert (alone.first, three.first, Processes(0, 3).first) == (True, False, True)


@pytest.mark.parametrize("world", [None, "1", "2"])
def test_processes_are_joined_if_there_are_several(world, monkeypatch):
    calls = []
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda kind: calls.append(kind))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append("left"))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with joined(CPU) as processes:
        assert (processes.rank, processes.world) == ((1, 2) if world == "2" else (0, 1))
    assert calls == (["gloo", "left"] if world == "2" else [])
    calls.clear()
    with pytest.raises(RuntimeError), joined(CPU):
        raise RuntimeError
    assert calls == (["gloo", "left"] if world == "2" else [])
    model = nn.Linear(1, 1)
    assert distributed.parallel(model, Processes(), "ddp", CPU) is model
    assert distributed.parallel(model, Processes(), "fsdp", CPU) is model


@pytest.mark.parametrize("images", [3, 7, 100, 2001, 10_000])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("most", [None, 10])
def test_every_process_calls_the_model_equally_often_in_batches_as_large_as_can_be(images, processes, most):
    batch = choose_batch(images, processes) if most is None else choose_batch(images, processes, most)
    shares = [len(range(rank, images, processes)) for rank in range(processes)]
    even = [size for size in range(1, (most or 1000) + 1) if len({-(-share // size) for share in shares}) == 1]
    assert batch == max(even)


def test_images_too_few_for_the_processes_are_refused(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(small(recipe("vit_digits")))
    some = ImageSet(splits.test.images[:2], splits.test.labels[:2], splits.test.classes)
    Classification(run, Splits(splits.train, None, some), CPU, Processes(0, 2))
    with pytest.raises(ValueError, match="2 images to evaluate on are too few for 4 processes; use fewer"):
        Classification(run, Splits(splits.train, None, some), CPU, Processes(0, 4))
    for how in ({"mixup": 0.5}, {"cutmix": 0.5}):
        mixing = replace(run, augment=Augment(**how))
        task = Classification(mixing, splits, CPU, Processes(0, 2))
        assert task.mixes
        for wrong in ({"batch": 6}, {"accumulate": 4}):
            with pytest.raises(ValueError, match="mixing needs pairs"):
                Classification(replace(mixing, **wrong), splits, CPU, Processes(0, 2))
    odd = replace(run, augment=Augment(), batch=6)
    assert not Classification(odd, splits, CPU, Processes(0, 2)).mixes


def test_a_classifiers_loss_is_that_of_the_augmented_images(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(small(recipe("vit_digits"), augment=Augment(), label_smoothing=0.1, batch=6))
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    task = Classification(run, splits, CPU, Processes(), own)
    assert task.model is own
    assert (task.batch, task.epoch_size, task.unit, task.score) == (6, 24, "images", "top1")
    (part,) = next(iter(task.batches(2, 3)))
    loss, metrics = task.loss(own, *part)
    share = task.loader.share(2)
    logits = own(normalised(splits.train.images[share.image], task.normalise))
    labels = splits.train.labels[share.image]
    assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1), rtol=1e-5, atol=1e-6)
    assert metrics["accuracy"] == (logits.argmax(1) == labels).float().mean()
    assert task.ready("x").name == "x"


# Optimizers


def test_a_matrix_is_made_orthogonal_whatever_its_size_and_sense():
    torch.manual_seed(0)
    matrices = torch.randn(2, 6, 10)
    found = orthogonalised(matrices)
    for scale in (1e-3, 1e3):
        assert_close(orthogonalised(scale * matrices), found, rtol=0, atol=2e-3)
    assert_close(orthogonalised(matrices.mT), found.mT)
    assert_close(orthogonalised(-matrices), -found)
    assert_close(orthogonalised(matrices, steps=5), found)
    assert not torch.allclose(orthogonalised(matrices, steps=6), found, atol=1e-3)
    x = matrices[0].double() / matrices[0].double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert_close(found[0].double(), x, rtol=0, atol=1e-4)
    assert orthogonalised(torch.zeros(1, 2, 3)).isfinite().all()


def test_what_muon_does_unless_told_otherwise():
    p = nn.Parameter(torch.randn(4, 4))
    (group,) = Muon([p]).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.02, 0.95, 0.0)
    before = p.detach().clone()
    p.grad = torch.randn(4, 4)
    expected = before - 0.02 * orthogonalised(p.grad[None])[0]  # the first step's direction is the gradient's
    Muon([p]).step()
    assert_close(p.detach(), expected, rtol=0, atol=1e-5)


def test_memory_is_there_before_the_first_step():
    model = nn.Sequential(nn.Linear(2, 2))
    for name, memories in (("adamw", {"exp_avg", "exp_avg_sq", "step"}), ("sgd", {"momentum_buffer"})):
        (optimizer,) = make_optimizers(model, Optim(name=name))
        assert {frozenset(memory) for memory in optimizer.state.values()} == {frozenset(memories)}
        assert all(not value.any() for memory in optimizer.state.values() for value in memory.values())
    (bare,) = make_optimizers(model, Optim(name="sgd", momentum=0.0))
    assert all(memory == {} for memory in bare.state.values())
    assert not bare.defaults["nesterov"]
    blocks = nn.ModuleDict({"blocks": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    adamw, muon = make_optimizers(blocks, Optim(name="muon", momentum=0.5, betas=(0.5, 0.75)))
    assert muon.param_groups[0]["momentum"] == 0.5
    assert adamw.param_groups[0]["betas"] == (0.5, 0.75)
    assert [p is blocks["blocks"].weight for p in muon.param_groups[0]["params"]] == [True]
    assert len(make_optimizers(nn.Linear(2, 2), Optim(name="muon"))) == 1  # no blocks, no Muon


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_rates_by_their_formula_for_warm_ups_of_any_length(kind):
    for steps, warmup, final in itertools.product((1, 5, 12), (0.0, 0.25, 0.33, 1.0), (0.0, 0.25)):
        config = Optim(schedule=kind, warmup=warmup, final=final)
        warm = warmup * steps
        for step in range(steps):
            if step + 1 <= warm:
                expected = (step + 1) / warm
            elif kind == "constant":
                expected = 1.0
            else:
                past = max(0.0, (step - warm) / max(1.0, steps - warm))
                falling = 1 - past if kind == "linear" else (1 + math.cos(math.pi * past)) / 2
                expected = final + (1 - final) * falling
            assert schedule(config, step, steps) == pytest.approx(expected, rel=1e-12)


# Rewards


@pytest.mark.parametrize("seed", range(3))
def test_each_captions_reward_is_its_own_cider_d(seed):
    """Not only on the whole: of every image and caption, with repeated words and references of other lengths."""
    dice = random.Random(seed)
    references = [random_rows(dice, dice.randint(1, 3), words=4) for _ in range(7)]
    most = max(map(len, references))
    missing = torch.full((1, 9), PAD)
    tokens = torch.stack([torch.cat([padded(rows), missing.expand(most - len(rows), -1)]) for rows in references])
    reward = Reward(tokens, vocabulary=15, pad=PAD)
    candidates = [[*random_rows(dice, 3, words=5), [6] * 8, references[i][0]] for i in range(7)]
    found = reward(torch.arange(7), torch.stack([padded(rows) for rows in candidates]))
    known = References([[[str(w) for w in [*row, END]] for row in rows] for rows in references])
    for which in range(5):
        expected = known.cider_d([[str(w) for w in [*rows[which], END]] for rows in candidates])
        assert found[:, which].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    shuffled = torch.tensor([4, 0, 4])
    again = reward(shuffled, torch.stack([padded(candidates[i]) for i in shuffled.tolist()]))
    assert_close(again, found[shuffled])


def test_n_grams_are_told_apart():
    reward = Reward(torch.tensor([[[1, 2, 3, 4, 0, 0]]]), vocabulary=5, pad=0)
    tokens = torch.tensor([[1, 2, 3, 4, 0, 0]])
    assert reward._keys(tokens, 1).tolist() == [[1, 2, 3, 4, -1, -1]]
    assert reward._keys(tokens, 2).tolist() == [[7, 13, 19, -1, -1]]
    assert reward._keys(tokens, 4).tolist() == [[((1 * 5 + 2) * 5 + 3) * 5 + 4, -1, -1]]
    assert reward._keys(tokens[:, :3], 4).tolist() == [[-1]]
    largest = 55_108
    Reward(torch.ones(1, 1, 4, dtype=torch.long), vocabulary=largest, pad=0)
    with pytest.raises(ValueError, match="55,109 tokens; expected fewer than 55,108"):
        Reward(torch.ones(1, 1, 4, dtype=torch.long), vocabulary=largest + 1, pad=0)


# Captions


def test_captions_as_numbers():
    tokenizer = CaptionTokenizer.train(["a dog runs", "a cat"], min_count=1)
    data = SimpleNamespace(captions=[("a dog runs", "a cat"), ("dog",), ("a", "a", "cat runs")])
    known = KnownCaptions.of(data, tokenizer, 9, CPU)
    assert known.counts.tolist() == [2, 1, 3]
    assert known.tokens.shape == (3, 3, 5)  # the longest has a start, three words and an end
    for several, rows in zip(data.captions, known.tokens, strict=True):
        spelled = [[START, *tokenizer.encode(each), END] for each in several]
        for row, wanted in itertools.zip_longest(rows.tolist(), spelled, fillvalue=[]):
            assert row == wanted + [PAD] * (5 - len(wanted))
    assert known.mean_length == pytest.approx((4 + 3 + 2 + 2 + 2 + 3) / 6)


def test_rows_that_the_decoder_is_asked():
    """Captions to read, to read backwards, to guess, and one place for all words."""
    task = made(tiny(backward=True, in_parallel=0.5, bag=0.5))
    tokens = task.known.tokens[:2].repeat(1, 2, 1)
    b, k, t = tokens.shape
    rows = task.rows(tokens)
    assert (rows.read, rows.guessed) == (2 * k, k)
    read = torch.cat([tokens, backwards(tokens)], 1)
    assert torch.equal(rows.inputs[:, : 2 * k], read[..., :-1])
    assert torch.equal(rows.targets[:, : 2 * k], read[..., 1:])
    assert (rows.inputs[:, 2 * k : 3 * k] == MASK).all()
    assert torch.equal(rows.targets[:, 2 * k : 3 * k], tokens[..., 1:])
    assert rows.inputs[:, -1].tolist() == [[UNKNOWN] + [PAD] * (t - 2)] * b
    assert (rows.targets[:, -1] == PAD).all()
    assert rows.mask.shape == (b * (3 * k + 1), 1, t - 1, t - 1)
    past = torch.ones(t - 1, t - 1).tril().bool()
    for i, mask in enumerate(rows.mask[:, 0]):
        place = i % (3 * k + 1)
        assert torch.equal(mask, torch.ones_like(past) if 2 * k <= place < 3 * k else past)
    alone = made(tiny()).rows(tokens)
    assert (alone.read, alone.guessed, alone.mask) == (k, 0, None)
    assert alone.inputs.shape == (b, k, t - 1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_a_caption_is_each_next_words(smoothing):
    task = made(tiny(label_smoothing=smoothing, model=replace(tiny().model, zero_branches=False, dropout=0.0)))
    share = task.loader.share(0)
    pixels = task.loader.pixels(share)
    loss, metrics = task.share_loss(task.model.eval(), share, pixels)
    images, flipped = task.augmented(share, pixels, task.run.augment)
    tokens = task.mirrored_where(flipped, task.chosen(share))
    total, right, words = 0.0, 0, 0
    for image, several in zip(images, tokens, strict=True):
        for row in several.tolist():
            said = [token for token in row if token != PAD]
            logits = task.model(image[None], torch.tensor([said[:-1]]))[0]
            target = F.one_hot(torch.tensor(said[1:]), logits.shape[-1]).float()
            target = (1 - smoothing) * target + smoothing / logits.shape[-1]
            total -= (target * logits.log_softmax(-1)).sum()
            right += (logits.argmax(-1) == torch.tensor(said[1:])).sum().item()
            words += len(said) - 1
    assert_close(loss, total / (len(images) * tokens.shape[1] * task.known.mean_length), rtol=1e-4, atol=1e-5)
    assert metrics["accuracy"].item() == pytest.approx(right / words)


@pytest.mark.parametrize("only_better", [False, True])
@pytest.mark.parametrize("teacher", [0.0, 0.25])
def test_the_self_critical_loss_is_its_formula(only_better, teacher, monkeypatch):
    critical = Critical(duration="1 steps", batch=8, samples=3, teacher=teacher, only_better=only_better)
    run = tiny(critical=critical, model=replace(tiny().model, zero_branches=False, dropout=0.0))
    task = made(run.second_stage, SelfCritical)
    share = task.loader.share(0)
    pixels = task.loader.pixels(share)
    images, flipped = task.augmented(share, pixels, task.run.augment)
    said = task._sample(images, 3)
    assert (said[..., 0] != PAD).all()
    monkeypatch.setattr(task, "_sample", lambda images, count: said)
    loss, metrics = task.share_loss(task.model, share, pixels)
    rewards = task.reward(share.image, task.mirrored_where(flipped, said))
    assert_close(metrics["reward"], rewards.mean())
    total = 0.0
    for i, (image, rows) in enumerate(zip(images, said, strict=True)):
        for j, row in enumerate(rows.tolist()):
            words = [token for token in row if token != PAD]
            others = [rewards[i, other].item() for other in range(3) if other != j]
            gain = rewards[i, j].item() - sum(others) / 2
            gain = max(0.0, gain) if only_better else gain
            log_probs = task.model(image[None], torch.tensor([[START, *words[:-1]]]))[0].log_softmax(-1)
            total -= gain * log_probs[torch.arange(len(words)), words].sum()
    expected = total / (len(images) * 3) / task.known.mean_length
    if teacher:
        read = Captioning.share_loss(task, task.model, share, pixels)[0]
        expected = (1 - teacher) * expected + teacher * read
    assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_a_captioner_is_evaluated_by_what_it_says(monkeypatch):
    task = made(tiny(beam=3))
    calls = []
    truths = [several[0] for several in task.held_out.captions]
    said = [truths[0], truths[1], *(["a cube"] * (len(truths) - 2))]
    monkeypatch.setattr(caption, "caption_all", lambda *a, **k: calls.append(k) or said)
    figures = task.evaluate(task.model.train())
    assert not task.model.training
    assert calls == [{"beam": 3, "batch": 250}]
    scores = score(dict(enumerate(said)), dict(enumerate(task.held_out.captions)))
    assert figures["exact"] == pytest.approx(sum(a == b for a, b in zip(said, truths, strict=True)) / len(truths))
    assert (figures["cider_d"], figures["bleu4"]) == (scores["cider_d"], scores["bleu4"])
    assert figures.keys() == {"exact", "cider_d", "bleu4", "loss", "accuracy"}
    assert (task.exact, task.score) == (True, "exact")
    task.held_out = None
    assert task.evaluate(task.model) == {}
    found, splits, tokenizer = caption.resolve(tiny())
    several = CaptionSet(
        splits.validation.images, tuple((*each, "a cube") for each in splits.validation.captions), splits.validation.ids
    )
    other = Captioning(found, replace(splits, validation=several), tokenizer, CPU, Processes())
    assert (other.exact, other.score) == (False, "cider_d")


def test_what_a_captioner_draws_ends_and_says_nothing_it_never_may(monkeypatch):
    task = made(tiny(critical=Critical(duration="1 steps", batch=8, samples=2)).second_stage, SelfCritical)
    calls, draw = [], caption.sample
    monkeypatch.setattr(caption, "sample", lambda *a, **k: calls.append(k) or draw(*a, **k))
    share = task.loader.share(0)
    images, _ = task.augmented(share, task.loader.pixels(share), Augment())
    said = task._sample(images, 4)
    assert (calls[0]["count"], calls[0]["length"]) == (4, task.run.model.max_length - 1)
    assert said.shape[:2] == (8, 4)
    for row in said.flatten(0, 1).tolist():
        words = [token for token in row if token != PAD]
        assert row == words + [PAD] * (len(row) - len(words))
        assert END not in words[:-1]
        assert words[-1] == END or len(words) == task.run.model.max_length - 1
        assert not {START, MASK, UNKNOWN} & set(words)
    stacked = caption._stacked(torch.ones(2, 1, 3).long(), torch.ones(2, 2, 5).long())
    assert stacked.tolist() == [[[1, 1, 1, PAD, PAD], [1] * 5, [1] * 5]] * 2
    assert caption._stacked(torch.ones(1, 1, 4).long(), torch.ones(1, 1, 2).long())[0].tolist() == [
        [1] * 4,
        [1, 1, PAD, PAD],
    ]


def test_a_reader_that_knows_every_word_is_right_each_time():
    """And one that knows what is surely not meant never is."""
    task = made(tiny())
    first = [several[0] for several in task.held_out.captions]
    targets = task.tokenizer.batch(first, task.run.model.max_length)[:, 1:]
    there = (targets != PAD).sum().item()
    words = len(task.tokenizer)
    for sure in (5.0, -5.0):
        asked = []
        task.model = lambda images, rows, sure=sure, asked=asked: (
            asked.append((images, rows)) or sure * F.one_hot(targets, words).float()
        )
        figures = task._read()
        (images, rows) = asked[0]
        assert torch.equal(rows, task.tokenizer.batch(first, task.run.model.max_length)[:, :-1])
        pixels = task.held_out.images.read(torch.arange(len(first)))
        assert_close(images, normalised(pixels, task.normalise))
        assert figures["accuracy"] == (1.0 if sure > 0 else 0.0)
        assert figures["loss"] == pytest.approx(math.log(math.exp(sure) + words - 1) - sure, rel=1e-5)
    assert there < targets.numel()


def test_a_bag_of_one_word_is_that_word_and_one_of_none_is_empty():
    task = made(tiny(bag=1.0))
    share = task.loader.share(0)
    word = len(task.tokenizer) - 1
    task.known.tokens[share.image[0]] = PAD
    task.known.tokens[share.image[1]] = PAD
    task.known.tokens[share.image[1], 0, :3] = torch.tensor([START, word, END])
    bags = task.bags(share, torch.zeros(8, dtype=torch.bool))
    assert not bags[0].any()
    assert bags[1].tolist() == F.one_hot(torch.tensor(word), word + 1).float().tolist()
    assert bags[2:].sum(1).tolist() == pytest.approx([1.0] * 6)


# Reversing digits


def test_the_demo_trains_what_its_evidence_was_measured_with(monkeypatch):
    runs = []

    class Fake:
        def __init__(self, task, run, device, *, observer):
            runs.append((task, run, device, observer))

        def fit(self):
            return SimpleNamespace(figures={"exact": 0.5}, seconds=1.25)

    monkeypatch.setattr(reverse, "Engine", Fake)
    state = torch.get_rng_state()
    found = reverse.reverse()
    assert torch.equal(torch.get_rng_state(), state)
    task, run, device, observer = runs[0]
    optim = Optim(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01, schedule="cosine", warmup=0.1)
    assert run == Run(
        recipe="reverse", optim=optim, duration="600 steps", batch=128, evaluate_every="0 steps", seed=0, device="cpu"
    )
    assert (found.exact, found.tested, found.seconds) == (0.5, 2000, 1.25)
    assert not found.model.training
    config = task.model.config
    assert (config.vocabulary, config.width, config.hidden, config.heads) == (11, 64, 256, 8)
    assert (config.encoder_layers, config.decoder_layers, config.norm, config.dropout) == (1, 1, "pre", 0.0)
    assert sum(p.numel() for p in task.model.parameters()) == 117_696
    assert (task.batch, task.epoch_size, task.test_sequences, observer, device) == (128, 128, 2000, None, CPU)
    reverse.reverse(steps=3, batch=4, learning_rate=0.5, test_sequences=6, seed=9, observer="me")
    _, run, _, observer = runs[1]
    assert (run.duration, run.batch, run.optim.lr, run.seed, observer) == ("3 steps", 4, 0.5, 9, "me")


def test_sequences_that_are_kept_out_add_up_to_a_multiple_of_ten():
    for held_out in (True, False):
        for n in (1, 50):
            drawn = reverse.sequences(n, torch.Generator().manual_seed(0), held_out=held_out)
            assert drawn.shape == (n, 10)
            assert ((drawn.sum(1) % 10 == 0) == held_out).all()
    assert set(drawn.flatten().tolist()) == set(range(10))
    assert reverse.shifted(torch.tensor([[1, 2, 3]])).tolist() == [[10, 1, 2]]
    task = reverse.Reversing(Run(batch=4, seed=3), 5)
    assert task._generator(7).initial_seed() == 3 * 1_000_003 + 7
    assert task._generator(-1).initial_seed() == 3 * 1_000_003 - 1
    batches = [part[0][0] for part in task.batches(2, 5)]
    assert len(batches) == 3
    for step, batch in enumerate(batches, 2):
        assert torch.equal(batch, reverse.sequences(4, task._generator(step), held_out=False))


def test_a_reversal_is_right_to_the_last_digit_and_is_looked_at_where_it_was_read(monkeypatch):
    task = reverse.Reversing(Run(batch=4, seed=0), 6)
    source = reverse.sequences(6, task._generator(-1), held_out=True)
    answers = source.flip(1).clone()
    answers[0, 9] = (answers[0, 9] + 1) % 10
    answers[1, 0] = (answers[1, 0] + 1) % 10
    with monkeypatch.context() as patch:
        patch.setattr(reverse, "reversed_by", lambda model, x: answers if torch.equal(x, source) else None)
        assert task.evaluate(task.model.train())["exact"] == pytest.approx(4 / 6)
    assert not task.model.training
    loss, metrics = task.loss(task.model, source)
    logits = task.model(source, torch.cat([torch.full((6, 1), 10), source.flip(1)[:, :-1]], 1))
    assert_close(loss, F.cross_entropy(logits.flatten(0, 1), source.flip(1).flatten()))
    assert metrics == {}
    said = reverse.reversed_by(task.model, source)
    assert said.shape == (6, 10)
    assert (said < 10).all()
    with torch.no_grad():
        steps = task.model(source, reverse.shifted(said))
    steps[..., 10] = -torch.inf
    assert torch.equal(steps.argmax(-1), said)
    record = reverse.looking_back(task.model, source[:1])
    assert record.name == "decoder.blocks.0.cross_attention"
    assert (record.q.shape[2], record.k.shape[2]) == (10, 10)


# What people see


def test_a_line_every_ten_seconds_of_what_was_last(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    with progress.RunDisplay("x") as shown:
        shown.began(4, 24)
        for step, at in ((5, 105.0), (6, 110.0), (7, 119.0), (8, 120.0), (9, 131.0)):
            now[0] = at
            line = step_line(step, loss=step / 10)
            del line["accuracy"]
            shown.logged([step_line(1), line])
        del line["images_per_second"]
        now[0] = 150.0
        shown.logged([line | {"step": 14}])
        shown.logged([])
    assert capsys.readouterr().out.splitlines() == [
        "step 6 of 24: loss 0.6000, 1,234 images/s, 0:01:30 left",
        "step 8 of 24: loss 0.8000, 1,234 images/s, 0:01:20 left",
        "step 9 of 24: loss 0.9000, 1,234 images/s, 0:01:33 left",
        "step 14 of 24: loss 0.9000, , 0:00:50 left",
    ]


def test_a_board_is_told_all_but_the_clock(tmp_path, monkeypatch):
    told, made_with = [], []

    class Writer:
        def add_scalar(self, *scalar):
            told.append(scalar)

        def close(self):
            told.append("closed")

    def writer(*a, **k):
        made_with.append((a, k))
        return Writer()

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", writer)
    with progress.RunDisplay("x", tensorboard=RunFolder(tmp_path)) as shown:
        shown.began(5, 9)
        shown.logged([step_line(6), {"step": 6, "epoch": 1.0, "evaluation": {"top1": 0.5}, "seconds": 3.0}])
    assert made_with == [((str(tmp_path / "tensorboard"),), {"purge_step": 6})]
    assert told == [
        ("train/loss", 1.25, 6),
        ("train/accuracy", 0.5, 6),
        ("train/lr", 0.1, 6),
        ("train/images_per_second", 1234.5, 6),
        ("evaluation/top1", 0.5, 6),
        "closed",
    ]
    with progress.RunDisplay("x", tensorboard=RunFolder(tmp_path)):  # nothing was trained
        pass


def test_the_c_library_is_told_three_things(monkeypatch):
    told = []

    def answering(answer):
        return SimpleNamespace(mallopt=lambda *words: told.append(words) or answer)

    for answer, fine in ((1, True), (0, False)):
        told.clear()
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda name, answer=answer: answering(answer))
        monkeypatch.setattr(memory.sys, "platform", "linux")
        assert memory.keep_freed_memory() is fine
        assert told == [(-4, 0), (-1, -1), (-2, 64 << 20)]
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False


def test_freed_memory_is_kept_before_the_first_step_on_a_cpu(monkeypatch):
    told = []
    monkeypatch.setattr(engine, "keep_freed_memory", lambda: told.append("kept"))
    one = Engine(Lines(plain()), plain(), CPU)
    assert one._warm_up(0) == 0.0
    assert told == ["kept"]
    one.device = torch.device("meta")
    assert one._warm_up(0) == 0.0
    assert told == ["kept"]


def test_what_is_compiled_is_warmed_up_with_the_batch_it_begins_with_and_undone(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    now, asked = [9.0], []

    class Slow(Lines):
        def batches(self, start, end):
            asked.append((start, end))
            return super().batches(start, end)

        def loss(self, *batch):
            now[0] += 2.0
            return super().loss(*batch)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = plain(compile=True, optim=Optim(ema=0.5))
    one = Engine(Slow(run), run, CPU)
    before = {name: tensor.clone() for name, tensor in one.state.tensors().items()}
    assert one._warm_up(3) == 2.0
    assert asked == [(3, 4)]
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state.tensors().items())
    assert one.fit().warm_up == 2.0


def test_what_is_told_is_told_at_once(monkeypatch):
    """However the output is read: through a pipe lines would wait for each other."""
    now, told = [0.0], []
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(progress, "print", lambda text, flush=False: told.append((text[:5], flush)), raising=False)
    with progress.RunDisplay("x") as shown:
        shown.began(0, 9)
        now[0] = 60.0
        shown.logged([step_line(1)])
        shown.logged([{"step": 1, "epoch": 1.0, "evaluation": {"top1": 0.5}, "seconds": 3.0}])
    assert told == [("step ", True), ("epoch", True)]


# From a recipe to a model


TINY = {"model": {"width": 16, "depth": 1, "heads": 2}, "batch": 16, "duration": "3 steps", "device": "cpu"}


def test_a_run_is_trained_kept_and_gone_on_with(tmp_path):
    out = tmp_path / "run"
    first = trained.train("vit_digits", out, progress=False, **TINY)
    assert (first.steps, first.images, first.folder) == (3, 48, out)
    assert first.model.labels[:2] == ("0", "1")
    with pytest.raises(ValueError, match="already holds a run"):
        trained.train("vit_digits", out, progress=False, **TINY)
    again = trained.train("vit_digits", out, resume=True, progress=False, **TINY)
    by_folder = trained.train(out, progress=False)
    assert again.steps == by_folder.steps == 3
    assert again.figures == by_folder.figures == first.figures
    for wrong in ({"out": tmp_path / "other"}, {"batch": 8}):
        with pytest.raises(ValueError, match="is a run, which goes on as it is; leave out the other options"):
            trained.train(out, progress=False, **wrong)
    for source, wrong in (("vit_digits", {"batch": 8}), ("vit_64x5", {})):
        with pytest.raises(ValueError, match="was begun otherwise"):
            trained.train(source, out, resume=True, progress=False, **wrong)
    fresh = tmp_path / "fresh"
    begun = trained.train("vit_digits", fresh, resume=True, progress=False, **TINY)  # there was nothing to go on with
    assert begun.figures == first.figures
    bare = trained.train("vit_digits", progress=False, **TINY)
    assert (bare.folder, bare.figures) == (None, first.figures)
    bare = trained.train("vit_digits", resume=True, progress=False, **TINY)
    assert (bare.folder, bare.figures) == (None, first.figures)


def test_what_was_trained_without_a_folder_is_the_average_and_with_one_the_best():
    run = {**TINY, "optim": {"ema": 0.9}}
    result = trained.train("vit_digits", progress=False, **run)
    assert result.model.name == "vit_digits"
    assert result.model.evaluate("digits").top1 >= 0


def test_progress_is_shown_unless_it_is_not_wanted(capsys):
    trained.train("vit_digits", **TINY)
    assert "epoch" in capsys.readouterr().out
    trained.train("vit_digits", progress=False, **TINY)
    assert capsys.readouterr().out == ""


def test_modules_and_datasets_of_ones_own_have_to_be_given_again(tmp_path):
    class Own(nn.Sequential):
        pass

    def own():
        return Own(nn.Flatten(), nn.Linear(8 * 8, 10))

    out = tmp_path / "run"
    result = trained.train("vit_digits", out, module=own(), progress=False, **TINY)
    assert isinstance(result.model.model, Own)
    assert RunFolder(out).run().module.endswith("Own")
    with pytest.raises(ValueError, match=r"trains a module of one's own, a .*Own; give one"):
        trained.train(out, progress=False)
    assert trained.train(out, module=own(), progress=False).figures == result.figures
    with pytest.raises(ValueError, match="a captioner is made by its recipe"):
        trained.train("captioner_scenes", module=own(), progress=False)
    data = [(torch.randint(256, (1, 8, 8), dtype=torch.uint8), i % 2) for i in range(20)]
    given = tmp_path / "given"
    first = trained.train("vit_digits", given, dataset=data, progress=False, data={"held_out": 0}, **TINY)
    assert RunFolder(given).run().data.name == "own"
    with pytest.raises(ValueError, match="was given in Python; give it again"):
        trained.train(given, progress=False)
    assert trained.train(given, dataset=data, progress=False).figures == first.figures
    with pytest.raises(ValueError, match="own is not what the run began with"):
        trained.train(
            given, dataset=[(image, label % 2 + i % 3) for i, (image, label) in enumerate(data)], progress=False
        )


def test_too_little_memory_is_said_with_what_to_do(monkeypatch):
    run = replace(recipe("vit_digits"), batch=16, accumulate=3)
    for error, memory_ in (
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("can't allocate memory: y"), True),
        (RuntimeError("z"), False),
    ):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(trained.Trainer, "train_classifier", fail)
        if memory_:
            with pytest.raises(ValueError, match="memory for a batch of 16; use a smaller --batch, or --accumulate 6"):
                trained.train_run(run, None, CPU)
        else:
            with pytest.raises(RuntimeError, match="z"):
                trained.train_run(run, None, CPU)


def test_a_path_that_is_free(tmp_path):
    assert trained.free_path(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    assert trained.free_path(tmp_path / "run") == tmp_path / "run-2"
    (tmp_path / "run-2").touch()
    (tmp_path / "run-4").touch()
    assert trained.free_path(tmp_path / "run") == tmp_path / "run-3"


def test_two_stages_are_summed_up_and_the_second_begins_where_the_first_was_best(tmp_path, monkeypatch):
    run = tiny(duration="2 steps", critical=Critical(duration="3 steps", batch=4, samples=2))
    begun = []
    fit = Engine.fit

    def noted(self):
        begun.append((self.task, {name: p.detach().clone() for name, p in self.task.model.named_parameters()}))
        result = fit(self)
        begun[-1] += ({name: p.detach().clone() for name, p in self.task.model.named_parameters()}, result)
        return result

    monkeypatch.setattr(Engine, "fit", noted)
    for where in (None, tmp_path / "run"):
        begun.clear()
        result = trained.train(run, where, progress=False)
        (_, _, after, first), (task, before, _, second) = begun
        assert isinstance(task, SelfCritical)
        assert result.steps == 5
        assert result.images == 2 * 8 + 3 * 4
        assert result.seconds == first.seconds + second.seconds
        if where is None:
            averaged = bool(run.optim.ema)
            assert averaged or all(torch.equal(before[name], after[name]) for name in before)
        assert result.figures == second.figures
        assert len(result.model.tokenizer) == len(task.tokenizer)
    assert (tmp_path / "run" / "critical" / "config.json").is_file()
    assert (tmp_path / "run" / "tokenizer.json").is_file()


# Wherever there are many processes, played by one that notes what it waits for


class Waiting(Processes):
    """The first of two; each time it waits, it looks at what is there."""

    def __init__(self, look):
        super().__init__(0, 2)
        object.__setattr__(self, "look", look)

    def wait(self):
        self.look()

    def mean(self, x):
        return x

    def agree(self, flag, device):
        return flag

    def share(self, text):
        return text

    def gather(self, value):
        return [value, value]


def test_all_processes_have_looked_before_the_first_one_writes(tmp_path, monkeypatch):
    """For a plan; and all have written before one reads: a folder is there when the others open it."""
    monkeypatch.setattr(engine, "parallel", lambda model, *_: model)
    run = plain(duration="2 steps")
    where = RunFolder(tmp_path / "run")
    where.create(run)
    plans = []
    one = Engine(Lines(run), run, CPU, folder=where, processes=Waiting(lambda: plans.append(where.plan())))
    one._plan()
    assert plans == [None]
    one._plan()
    assert plans[1] == where.plan() is not None
    seen = []
    there = RunFolder(tmp_path / "other")
    trainer = trained.Trainer(
        there, CPU, Waiting(lambda: seen.append((there.config_file.exists(), there.log_file.exists()))),
        resume=False, progress=False, tensorboard=False,
    )  # fmt: skip
    trainer._fit(Lines(run), run, there, begins=True)
    assert seen[0] == (True, False)  # it is made, and not yet written to
    seen.clear()
    monkeypatch.setattr(trained, "load", lambda path, **how: (path, how["module"], how["device"]))
    result = trainer._make_ready(engine.Result(1, 1, 1.0, 0.0, {}, None), None, module="mine")
    assert len(seen) == 1
    assert (result.model, result.folder) == ((there.path, "mine", CPU), there.path)
    alone = trained.Trainer(None, CPU, Waiting(lambda: None), False, False, False)
    assert alone._make_ready(result, None).model is None  # a spread model is no one process's


def test_what_is_trained_in_two_stages_is_waited_for_between_them(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(Processes, "wait", lambda self: waits.append((tmp_path / "run" / "critical").exists()))
    run = tiny(duration="1 steps", critical=Critical(duration="1 steps", batch=4, samples=2))
    trained.train_run(run, RunFolder(tmp_path / "run"), CPU, progress=False)
    assert not waits[0]
    assert waits.count(False) > 2  # in the first stage, and once more before the second begins
    assert waits[-1]


def test_a_run_on_its_own_shows_its_progress_keeps_no_board_and_does_not_go_on(tmp_path, capsys, monkeypatch):
    run = small(recipe("vit_digits"), duration="1 steps")
    where = RunFolder(tmp_path / "run")
    result = trained.train_run(run, where, CPU)
    assert "epoch" in capsys.readouterr().out
    assert not (where.path / "tensorboard").exists()
    assert result.folder == where.path
    with pytest.raises(ValueError, match="already holds a run"):
        trained.train_run(run, where, CPU)
    boards = []

    class Display(progress.RunDisplay):
        def __init__(self, title, *, tensorboard=None):
            boards.append((title, tensorboard))
            super().__init__(title)

    monkeypatch.setattr(trained, "RunDisplay", Display)
    for tensorboard in (True, False):
        out = RunFolder(tmp_path / f"board {tensorboard}")
        trained.train_run(run, out, CPU, tensorboard=tensorboard)
        assert boards.pop() == ("vit_digits", out if tensorboard else None)
    trained.train("vit_digits", tmp_path / "by name", **TINY)
    assert boards.pop()[1] is None


# The engine's figures, and what it compiles


def test_figures_of_the_log_are_rounded_to_what_is_read(tmp_path, monkeypatch):
    """Rates to a tenth, seconds to a thousandth, epochs to a ten-thousandth."""
    now = [0.0]

    class Slow(Lines):
        epoch_size = 30

        def loss(self, *batch):
            now[0] += 0.1234567
            return super().loss(*batch)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run, heard = plain(duration="1 steps"), Heard()
    Engine(Slow(run), run, CPU, observer=heard).fit()
    step, evaluation = heard.lines
    assert (step["points_per_second"], step["epoch"]) == (64.8, 0.2667)
    assert (evaluation["seconds"], evaluation["epoch"]) == (0.123, 0.2667)


def test_graphs_are_for_cuda_and_are_left_out_on_a_cpu():
    run = plain(graphs=True)
    one = Engine(Lines(run), run, CPU)
    assert one.fit().warm_up == 0.0
    assert one.graphs == {}


def test_losses_are_told_once_half_a_second_is_over(monkeypatch):
    """Not when it is just full: by a clock that moves a quarter of a second with each step."""
    now, told = [7.0], []

    class Slow(Lines):
        def loss(self, *batch):
            now[0] += 0.25
            return super().loss(*batch)

    class Counting(Heard):
        def logged(self, lines):
            told.append([line["step"] for line in lines])

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = plain(duration="7 steps", checkpoint_every="0 steps")
    Engine(Slow(run), run, CPU, observer=Counting()).fit()
    assert told == [[1, 2, 3], [4, 5, 6], [7], [7]]  # the last is the evaluation


def test_the_first_of_two_as_good_is_the_best(tmp_path):
    class Scored(Lines):
        scores = iter([0.5, 0.5, 0.25])

        def evaluate(self, model):
            return {"right": next(self.scores)}

    run = plain(duration="3 steps", evaluate_every="1 steps")
    where = RunFolder(tmp_path / "run")
    where.create(run)
    Engine(Scored(run), run, CPU, folder=where).fit()
    with safe_open(where.checkpoints.best, "pt") as file:
        assert json.loads(file.metadata()["facts"]) == {"step": 1, "right": 0.5}


def test_as_many_weights_are_copied_as_there_are():
    with pytest.raises(ValueError, match="zip"):
        engine._copy([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)])


def test_one_number_that_is_none_among_many_is_enough():
    run = plain()
    task = Lines(run)
    one = Engine(task, run, CPU)
    one._check_weights(1)
    with torch.no_grad():
        task.model.weight[0, 1] = math.nan  # of four numbers, of two parameters
    with pytest.raises(ValueError, match="no longer finite after step 2"):
        one._check_weights(2)


# What moves parameters


def test_one_kernel_moves_what_adamw_moves_and_nesterov_looks_ahead():
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    model["head"].bias.requires_grad_(False)
    (adamw,) = make_optimizers(model, Optim(lr=0.5, encoder=0.1, weight_decay=0.25))
    assert adamw.defaults["fused"]
    assert not adamw.defaults["capturable"]
    groups = {(group["peak"], group["weight_decay"]): len(group["params"]) for group in adamw.param_groups}
    assert groups == {(0.05, 0.25): 1, (0.05, 0.0): 1, (0.5, 0.25): 1}  # what is frozen is nobody's
    (sgd,) = make_optimizers(nn.Linear(2, 2), Optim(name="sgd", momentum=0.5))
    assert sgd.defaults["nesterov"]
    assert sgd.defaults["momentum"] == 0.5
    p = nn.Parameter(torch.ones(2, 2))
    p.grad = torch.eye(2)
    bare = Muon([p], lr=0.5, weight_decay=0.25)
    assert bare.defaults == {"lr": 0.5, "momentum": 0.95, "weight_decay": 0.25}
    bare.step()
    assert_close(p.detach(), torch.full((2, 2), 1 - 0.125) - 0.5 * orthogonalised(torch.eye(2)[None])[0])


# What tasks give


def test_what_is_ready_knows_its_name_and_its_run(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(small(recipe("vit_digits")))
    classifier = Classification(run, splits, CPU, Processes())
    for task in (classifier, made(tiny())):
        ready = task.ready("x")
        assert (ready.name, ready.run, ready.model) == ("x", task.run, task.model)
        assert task.ready().name == ""


def test_words_are_made_as_the_run_says():
    _, splits, tokenizer = caption.resolve(tiny(words=Words(min_count=20)))
    said = [each for several in splits.train.captions for each in several]
    assert tokenizer.to_json() == CaptionTokenizer.train(said, min_count=20).to_json()
    assert len(tokenizer) < len(caption.resolve(tiny(words=Words(min_count=1)))[2])
    pieces = caption.resolve(tiny(words=Words(kind="bpe", size=60)))[2]
    assert len(pieces) == 60
    assert len(pieces.encode("spherecube")) > 1
    given = CaptionTokenizer.train(["a dog"], min_count=1)
    run, _, tokenizer = caption.resolve(tiny(), given)
    assert tokenizer is given
    assert run.model.vocabulary == len(given)


@pytest.mark.parametrize("kind", ["classifier", "captioner"])
@pytest.mark.parametrize("known", [(), ("mean",), ("std",), ("mean", "std")])
def test_what_pictures_are_normalised_by_is_the_models_own_if_it_has_both(kind, known, monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    own = dict.fromkeys(("mean", "std")) | dict.fromkeys(known, (0.25, 0.5, 0.75))
    if kind == "classifier":
        run = small(recipe("vit_digits"))
        encoder = resolve(replace(run, model=replace(run.model, **own)))[0].model
    else:
        run = tiny()
        model = replace(run.model, encoder=replace(run.model.encoder, **own))
        encoder = caption.resolve(replace(run, model=model))[0].model.encoder
    assert (encoder.mean == (0.25, 0.5, 0.75)) == (encoder.std == (0.25, 0.5, 0.75)) == (len(known) == 2)
    assert len(encoder.mean) == len(encoder.std) == 3


def test_the_loss_of_a_mixture_is_smoothed_on_both_sides(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    run, splits = resolve(small(recipe("vit_digits"), augment=Augment(mixup=0.5), label_smoothing=0.2))
    task = Classification(run, splits, CPU, Processes(), nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))
    share = task.loader.share(3)
    loss, _ = task.share_loss(task.model, share, task.loader.pixels(share))
    images, labels, others, weight = augment(
        task.loader.pixels(share), task.loader.labels[share.image], run.augment, task.normalise,
        seed=task.seed, step=share.step, epoch=share.epoch, index=share.image, positions=share.position,
    )  # fmt: skip
    assert not torch.equal(labels, others)
    logits, total = task.model(images), 0.0
    for row, label, other, part in zip(logits, labels, others, weight, strict=True):
        target = part * F.one_hot(label, 10) + (1 - part) * F.one_hot(other, 10)
        total -= ((0.8 * target + 0.02) * row.log_softmax(-1)).sum()
    assert_close(loss, total / len(logits), rtol=1e-5, atol=1e-6)


def test_processes_evaluate_in_batches_that_suit_them_all(monkeypatch):
    monkeypatch.setattr("pellucid.training.classify.load_images", random_splits)
    calls, run_ = [], classify.evaluate_classifier
    monkeypatch.setattr(classify, "evaluate_classifier", lambda *a, **k: calls.append(k) or run_(*a, **k))
    monkeypatch.setattr(classify, "choose_batch", lambda images, processes: 10 * images + processes)
    run, splits = resolve(small(recipe("vit_digits")))
    task = Classification(run, splits, CPU, Processes(), nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    task.evaluate(task.model)
    assert (calls[0]["batch"], calls[0]["share"], calls[0]["device"]) == (101, (0, 1), CPU)
    logits = task.model(normalised(splits.validation.images, task.normalise))
    right = (logits.argmax(1) == splits.validation.labels).sum().item()
    assert task.evaluate(task.model)["top1"] == right / 10  # to the last bit


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_any_channels_are_captioned(channels):
    pixels = torch.randint(256, (6, channels, 8, 12), dtype=torch.uint8)
    images = ImageSet(pixels, torch.zeros(6, dtype=torch.long), ("picture",))
    data = CaptionSet(images, (("a dog",),) * 6, tuple("abcdef"))
    run, splits, _ = caption.resolve(tiny(words=Words(min_count=1)), None, {"train": data, "test": data})
    assert (run.model.encoder.channels, run.model.encoder.image) == (channels, (8, 12))
    assert len(run.model.encoder.mean) == channels
    assert len(splits.train.captions) == 6


def test_captioners_that_have_one_sentence_for_each_picture_are_judged_by_it():
    found, splits, tokenizer = caption.resolve(tiny())
    held = splits.validation
    mixed = tuple((*each, "a cube") if i % 2 else each for i, each in enumerate(held.captions))
    for captions_, score_ in ((held.captions, "exact"), (mixed, "cider_d")):
        some = CaptionSet(held.images, captions_, held.ids)
        task = Captioning(found, replace(splits, validation=some), tokenizer, CPU, Processes())
        assert (task.score, task.exact) == (score_, score_ == "exact")
        with pytest.raises(ValueError, match="zip"):
            evaluate_with(task, ["a cube"])


def evaluate_with(task, said):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caption, "caption_all", lambda *a, **k: said)
        patch.setattr(task, "_read", dict)
        return task.evaluate(task.model)


def test_captions_are_drawn_from_a_stream_of_their_own():
    """What a run reads at a step is what it read yesterday, and no draw of its pictures' is drawn again."""
    task = made(tiny(captions=2))
    task.known = KnownCaptions(torch.arange(32 * 5 * 4).view(32, 5, 4), torch.full((32,), 5), 3.0)
    share = task.loader.share(4)
    first = draws.integers(task.seed, share.step, share.position, 100, torch.full((8,), 5))
    expected = torch.stack([task.known.tokens[share.image, (first + i) % 5] for i in range(2)], 1)
    assert torch.equal(task.chosen(share), expected)
    assert len(set(first.tolist())) > 1


def test_a_caption_that_its_own_picture_has_is_rewarded_as_the_scorer_would(monkeypatch):
    task = made(tiny(critical=Critical(duration="1 steps", batch=8, samples=2)).second_stage, SelfCritical)
    spelled = [
        [[str(word) for word in row if word != PAD][1:] for row in rows if (row != PAD).any()]
        for rows in task.known.tokens.numpy()
    ]
    known = References(spelled)
    truth_ = task.known.tokens[:, :1, 1:]
    expected = known.cider_d([several[0] for several in spelled])
    assert task.reward(torch.arange(32), truth_)[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    share = task.loader.share(0)
    task.model.train()
    task.share_loss(task.model, share, task.loader.pixels(share))
    assert not task.model.training  # what is made likelier is what was drawn from


def test_random_numbers_of_reversals_fit_into_63_bits():
    task = reverse.Reversing(Run(batch=4, seed=2**62), 5)
    assert task._generator(0).initial_seed() == 2**62 * 1_000_003 % 2**63


# What a terminal shows


def test_a_bar_is_drawn_where_there_is_a_terminal_and_beside_what_is_printed(monkeypatch):
    asked = []

    def console(**how):
        asked.append(how)
        return Console(force_terminal=True, force_interactive=True, width=150, file=io.StringIO())

    monkeypatch.setattr(progress, "Console", console)
    with progress.RunDisplay("reversing") as shown:
        shown.began(40, 160)
        assert not shown.bar.disable
        task = shown.bar.tasks[0]
        assert (task.description, task.total, task.completed) == ("reversing", 160, 40)
        shown.bar.refresh()
        shown.logged([step_line(99), step_line(100)])
        assert (task.completed, task.fields["rate"]) == (100, "1,234 images/s")
        assert task.fields["text"] == "loss 1.2500, accuracy 50.0%"
        shown.bar.refresh()
        drawn = shown.bar.console.file.getvalue()
    assert asked == [{"stderr": True}]  # what is printed may go through a pipe
    for words in ("reversing", " 40/160", "100/160", "1,234 images/s", "loss 1.2500, accuracy 50.0%"):
        assert words in drawn
    monkeypatch.setattr(progress, "Console", lambda **how: Console(force_terminal=False, file=io.StringIO()))
    assert progress.RunDisplay("x").bar.disable


@pytest.fixture
def first_of_two():
    """A group of two processes of which this is the first, and the other a fake that says nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield Processes(0, 2)
    torch.distributed.destroy_process_group()


def test_a_spread_model_is_spread_block_by_block_before_and_after_each_pass(first_of_two):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Blocks()
    network = distributed.parallel(model, first_of_two, "fsdp", CPU)
    assert type(model) is Blocks  # its own class
    assert all(hasattr(part, "set_requires_gradient_sync") for part in (network, *model.blocks))
    for _ in range(2):
        assert all(distributed.is_spread(p) for p in model.parameters())
        assert network(torch.randn(3, 4)).shape == (3, 2)
    weight = model.head.weight
    assert distributed.own_part(weight).shape == (1, 4)
    assert distributed.whole(weight).shape == (2, 4)
    given = torch.arange(8.0).view(2, 4)
    mine = distributed.spread_like(given, weight)
    assert distributed.is_spread(mine)
    assert distributed.own_part(mine).tolist() == given[:1].tolist()
    for x in (given, distributed.own_part(weight)):
        assert distributed.whole(x) is distributed.own_part(x) is distributed.spread_like(x, given) is x
    copies = distributed.parallel(nn.Linear(1, 1), first_of_two, "ddp", CPU)
    assert isinstance(copies, nn.parallel.DistributedDataParallel)
    for now in (False, True):
        distributed.exchange_gradients(copies, now)
        assert copies.require_backward_grad_sync is now


def test_two_processes_are_enough_to_wait_for_each_other(monkeypatch):
    calls = []
    for name in ("barrier", "all_reduce", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, name=name: calls.append(name))
    two = Processes(1, 2)
    two.wait()
    two.mean(torch.ones(1))
    two.agree(True, CPU)
    two.share("x")
    assert calls == ["barrier", "all_reduce", "all_reduce", "broadcast_object_list"]
    assert (Processes().rank, Processes().world) == (0, 1)


@pytest.mark.parametrize("share_of_guesses", [0.25, 1.0])
def test_words_that_are_guessed_see_no_others_and_those_that_are_read_see_what_was_before(share_of_guesses):
    """The loss of both, of each caption by itself: a guess is made from a row of masks, wherever its place is."""
    run = tiny(in_parallel=share_of_guesses, model=replace(tiny().model, zero_branches=False, dropout=0.0))
    task = made(run)
    share = task.loader.share(0)
    pixels = task.loader.pixels(share)
    loss, _ = task.share_loss(task.model.eval(), share, pixels)
    images, flipped = task.augmented(share, pixels, run.augment)
    tokens = task.mirrored_where(flipped, task.chosen(share))
    read = guessed = 0.0
    for image, several in zip(images, tokens, strict=True):
        for row in several:
            said, length = [token for token in row.tolist() if token != PAD], len(row) - 1
            targets = torch.tensor(said[1:])
            before = task.model(image[None], torch.tensor([said[:-1]]))[0].log_softmax(-1)
            read -= before[torch.arange(len(targets)), targets].sum()
            blind = task.model(image[None], torch.full((1, length), MASK), causal=False)[0].log_softmax(-1)
            guessed -= blind[torch.arange(len(targets)), targets].sum()
    scale = len(images) * tokens.shape[1] * task.known.mean_length
    expected = ((1 - share_of_guesses) * read + share_of_guesses * guessed) / scale
    assert_close(loss, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("right", ["all", "first", "none"])
def test_accuracy_is_the_share_of_next_words_of_captions_that_are_read(right):
    """Of a model that is sure: of every word, of each caption's first, of none; nobody asks about what isn't there."""
    task = made(tiny(captions=2))
    share = task.loader.share(0)
    pixels = task.loader.pixels(share)
    _, flipped = task.augmented(share, pixels, task.run.augment)
    targets = task.rows(task.mirrored_where(flipped, task.chosen(share))).targets.flatten(0, 1)
    there = targets != PAD
    said = targets.clone()
    if right != "all":
        said[:, 1 if right == "first" else 0 :] = MASK

    def model(images, inputs, *, causal, mask):
        assert (causal, mask) == (True, None)
        return 9.0 * F.one_hot(said, len(task.tokenizer)).float()

    loss, metrics = task.share_loss(model, share, pixels)
    expected = {"all": 1.0, "first": len(targets) / there.sum().item(), "none": 0.0}[right]
    assert metrics["accuracy"].item() == pytest.approx(expected)
    assert (loss < 0.1) == (right == "all")
