"""What a mutation run found untested in training."""

import platform
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from test_caption_training import made, tiny
from test_train import CPU, Heard, Lines, Splits, plain, random_splits
from test_train import tiny as small
from torch.testing import assert_close

from pellucid.data.augment import normalised
from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import PAD, UNKNOWN, CaptionTokenizer
from pellucid.evaluation.captions import cider_d
from pellucid.recipes import recipe
from pellucid.runs import environment, folder
from pellucid.runs.config import Duration, Words
from pellucid.training import Engine
from pellucid.training.classify import Classification, resolve
from pellucid.training.distributed import Processes
from pellucid.training.optim import set_rate
from pellucid.training.reward import Reward


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
    assert torch.stack(shares).mean(0).tolist() == pytest.approx([figures["top1"], figures["loss"]], rel=1e-6)
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
    plain_one, captured = (torch.optim.SGD([{"params": [parameter], "lr": lr, "peak": 0.5}]) for lr in (0.5, rate))
    set_rate([plain_one, captured], 0.25)
    assert plain_one.param_groups[0]["lr"] == 0.125
    assert captured.param_groups[0]["lr"] is rate
    assert rate.item() == 0.125
