"""Captioners in training: what they read, what they are rewarded for, and that a run in two stages can be killed."""

import random
import shlex
import signal
import time
from dataclasses import replace

import pytest
import torch
from test_train import CPU, Heard
from torch.testing import assert_close
from trainings import Started, assert_same_run, free_port, log, losses, steps_logged, tensors, wait_for_steps, words_for

from pellucid.cli import main
from pellucid.data.augment import Augment
from pellucid.data.caption_sources import CaptionData
from pellucid.data.loader import Share
from pellucid.data.scenes import SceneConfig
from pellucid.data.tokenizer import BACKWARD, END, PAD, START, UNKNOWN, CaptionTokenizer
from pellucid.evaluation.captions import cider_d
from pellucid.models import ViT
from pellucid.processes import Processes
from pellucid.ready import load_captioner
from pellucid.recipes import RECIPES, recipe
from pellucid.runs.config import CaptionerRun, Critical
from pellucid.training import Engine
from pellucid.training.caption import Captioning, SelfCritical, backwards, resolve
from pellucid.training.reward import Reward
from pellucid.training.start import adopt, begin_with

SCENES = SceneConfig(train=32, validation=6, test=6)


def tiny(name: str = "captioner_scenes", **changes) -> CaptionerRun:
    run = recipe(name)
    assert isinstance(run, CaptionerRun)
    encoder = replace(run.model.encoder, width=16, depth=2, heads=2, hidden=None)
    side = 8 * encoder.patch[0]
    small = {
        "model": replace(run.model, encoder=encoder, layers=2, heads=2, hidden=None, max_length=12),
        "data": CaptionData(size=(side, side), scenes=SCENES),
        "words": replace(run.words, min_count=1),
        "batch": 8, "duration": "2 steps", "evaluate_every": "0 steps", "compile": False, "graphs": False,
        "device": "cpu", "start": None, "in_parallel": 0.0,
    }  # fmt: skip
    return replace(run, **small | changes)


def made(run: CaptionerRun, kind: type[Captioning] = Captioning) -> Captioning:
    found, splits, tokenizer = resolve(run)
    return kind(found, splits, tokenizer, CPU, Processes())


# The tokenizer


def test_words_that_are_rare_are_unknown():
    tokenizer = CaptionTokenizer.train(["a dog", "a cat", "A dog!"], min_count=2)
    assert len(tokenizer) == 8
    assert [tokenizer.encode(word) for word in ("cat", "zebra")] == [[UNKNOWN], [UNKNOWN]]
    assert tokenizer.decode(tokenizer.encode("A cat, a dog.")) == "a <unknown> a dog"
    with pytest.raises(ValueError, match="no word occurs 9 times in the captions; use a smaller min_count"):
        CaptionTokenizer.train(["a dog"], min_count=9)


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_captions_come_back(kind, tmp_path):
    captions = ["a red dog runs on grass", "two dogs running left of a cat's house", "naïve café, half-open door"]
    tokenizer = CaptionTokenizer.train(captions, kind=kind, min_count=1, size=60)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = CaptionTokenizer.load(tmp_path / "tokenizer.json")
    for caption in captions:
        plain = caption.replace(",", "")
        assert again.decode(again.encode(caption)) == tokenizer.decode(tokenizer.encode(caption)) == plain
        ids = again.encode(caption)
        words = again.words([*ids, END, ids[0]])
        assert [word for word, _ in words] == plain.split()
        assert [number for _, where in words for number in ids[where]] == ids
    if kind == "bpe":
        assert len(tokenizer.encode("dogrunning")) > 1  # pieces, put together anew


def test_too_long_a_caption_is_cut_and_ends():
    tokenizer = CaptionTokenizer.train(["a b c d e"], min_count=1)
    (row,) = tokenizer.batch(["a b c d e"], 5).tolist()
    assert (row[0], row[-1], len(row)) == (START, END, 5)
    assert tokenizer.batch(["word " * 10_000, ""], 7).tolist() == [
        [START, *[UNKNOWN] * 5, END],
        [START, END, PAD, PAD, PAD, PAD, PAD],
    ]


def test_files_that_are_no_tokenizer_get_a_sentence(tmp_path):
    path = tmp_path / "tokenizer.json"
    for text in (
        "",
        "{",
        "{}",
        '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(path)):
            CaptionTokenizer.load(path)
    with pytest.raises(ValueError, match="a captioner needs its tokenizer beside its weights"):
        CaptionTokenizer.load(tmp_path / "none.json")


# What a step reads


def test_a_flipped_picture_exchanges_left_and_right():
    task = made(tiny(augment=Augment(flip="random"), batch=32))
    (part,) = next(iter(task.batches(0, 1)))
    share = Share(*part)
    _, flipped = task.augmented(share, task.loader.pixels(share), task.run.augment)
    plain = task.chosen(share)
    tokens = task.mirrored_where(flipped, plain)
    exchange = {"left": "right", "right": "left"}
    sided = 0
    for index, turned, before, after in zip(share.image.tolist(), flipped.tolist(), plain, tokens, strict=True):
        told = task.tokenizer.decode(after[0])
        (said,) = resolve(task.run)[1].train.captions[index]
        assert task.tokenizer.decode(before[0]) == said
        assert told == (" ".join(exchange.get(word, word) for word in said.split()) if turned else said)
        sided += turned and told != said
    assert sided >= 2


def test_backwards():
    tokens = torch.tensor([[[START, 10, 11, 12, END, PAD], [START, 10, END, PAD, PAD, PAD]]])
    expected = [[[BACKWARD, 12, 11, 10, END, PAD], [BACKWARD, 10, END, PAD, PAD, PAD]]]
    assert backwards(tokens).tolist() == expected


def test_every_caption_of_a_picture_gets_its_turn(monkeypatch):
    captions = tuple(tuple(f"w{i} c{j}" for j in range(1 + i % 3)) for i in range(32))
    real = resolve

    def several(run):
        _, splits, _ = real(run)
        train = replace_captions(splits.train, captions)
        tokenizer = CaptionTokenizer.train([text for each in captions for text in each], min_count=1)
        model = replace(
            run.model,
            vocabulary=len(tokenizer),
            encoder=replace(run.model.encoder, mean=(0.5,) * 3, std=(0.5,) * 3, image=(48, 48)),
        )
        return replace(run, model=model), replace(splits, train=train), tokenizer

    run, splits, tokenizer = several(tiny(batch=32, captions=2))
    task = Captioning(run, splits, tokenizer, CPU, Processes())
    seen = {i: set() for i in range(32)}
    for step in range(12):
        share = task.loader.share(step)
        for index, rows in zip(share.image.tolist(), task.chosen(share), strict=True):
            said = [tokenizer.decode(row) for row in rows]
            assert set(said) <= set(captions[index])
            assert len(set(said)) == min(2, len(captions[index]))
            seen[index] |= set(said)
    assert all(seen[i] == set(captions[i]) for i in range(32))


def replace_captions(data, captions):
    from pellucid.data.captions import CaptionSet

    return CaptionSet(data.images, captions, data.ids)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("captioner")])
def test_every_recipe_takes_steps_in_both_stages(name):
    """With its own stem, augmentation, optimizer, precision and losses; only small."""
    # Branches that start at zero pass no gradient: the encoder's innermost matrices move in the third step.
    run = tiny(name, duration="4 steps", critical=Critical(duration="4 steps", batch=4, samples=3))
    for kind, each in ((Captioning, run), (SelfCritical, run.second_stage)):
        task = made(each, kind)
        heard = Heard()
        before = {key: p.detach().clone() for key, p in task.model.named_parameters()}
        result = Engine(task, task.run, CPU, observer=heard).fit()
        assert [line["step"] for line in heard.lines] == [1, 2, 3, 4, 4]
        assert {"exact", "cider_d", "bleu4", "loss", "accuracy"} == set(result.figures)
        if kind is Captioning:
            assert [key for key, p in task.model.named_parameters() if torch.equal(p, before[key])] == []
        else:
            assert all("reward" in line for line in heard.lines[:4])


def test_backward_and_parallel_captions_and_bags_are_other_losses():
    hows = ({}, {"backward": True}, {"in_parallel": 0.5}, {"label_smoothing": 0.1}, {"bag": 0.5}, {"in_parallel": 1.0})
    tasks = [made(tiny(**how)) for how in hows]
    (part,) = next(iter(tasks[0].batches(0, 1)))
    plain, backward, both, smooth, bag, parallel = (task.loss(task.model, *part)[0].item() for task in tasks)
    assert len({plain, backward, both, smooth, bag, parallel}) == 6
    assert both == pytest.approx((plain + parallel) / 2, rel=1e-5)
    everything = made(tiny(backward=True, in_parallel=0.5, bag=0.5))
    loss = everything.loss(everything.model, *part)[0].item()
    assert loss == pytest.approx((backward + parallel) / 2 + (bag - plain), rel=1e-5)


def test_a_guess_sees_no_word_and_a_reader_none_that_comes():
    task = made(tiny(in_parallel=0.5, model=replace(tiny().model, zero_branches=False)))
    share = task.loader.share(0)
    tokens = task.chosen(share)
    images, _ = task.augmented(share, task.loader.pixels(share), Augment())
    rows = task.rows(tokens)
    other = tokens.clone()
    other[:, :, 3] = (other[:, :, 3] + 1).clamp(max=20)
    changed = task.rows(other)
    said, then = (
        task.model(images, r.inputs.flatten(0, 1), causal=False, mask=r.mask).unflatten(0, (8, 2))
        for r in (rows, changed)
    )
    assert_close(said[:, 1], then[:, 1])  # the guess
    assert_close(said[:, 0, :3], then[:, 0, :3])
    assert not torch.allclose(said[:, 0, 3], then[:, 0, 3])
    plain = task.model(images, tokens.flatten(0, 1)[:, :-1])
    assert_close(said[:, 0], plain)  # as it reads without guesses beside it


def test_a_bag_holds_the_words_of_all_captions():
    task = made(tiny(bag=1.0, augment=Augment(flip="random")))
    share = task.loader.share(0)
    bags = task.bags(share, torch.zeros(8, dtype=torch.bool))
    for index, bag in zip(share.image.tolist(), bags, strict=True):
        ids = [number for row in task.known.tokens[index].tolist() for number in row if number > 5]
        expected = torch.bincount(torch.tensor(ids), minlength=len(task.tokenizer)) / len(ids)
        assert_close(bag, expected)


def test_two_halves_of_a_batch_have_the_mean_of_the_losses_of_the_whole():
    run = tiny(augment=Augment(flip="random"))
    found, splits, tokenizer = resolve(run)
    whole = made(run)
    loss = whole.loss(whole.model, *next(iter(whole.batches(3, 4)))[0])[0]
    halves = []
    for rank in range(2):
        task = Captioning(found, splits, tokenizer, CPU, Processes(rank=rank, world=2))
        task.model.load_state_dict(whole.model.state_dict())
        halves.append(task.loss(task.model, *next(iter(task.batches(3, 4)))[0])[0])
    assert halves[0] != halves[1]
    assert_close(torch.stack(halves).mean(), loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"captions": 0}, "captions is 0; expected one or more"),
        ({"in_parallel": 1.5}, "in_parallel is 1.5; expected a weight, 0…1"),
        ({"bag": -1.0}, "bag is -1.0; expected a weight, zero or more"),
        ({"augment": Augment(cutmix=1.0)}, "mixup and cutmix make pictures that no caption is true of"),
        ({"critical": {"samples": 1}}, "critical.samples is 1; expected 2 or more, to be compared"),
        ({"critical": {"teacher": 1.5}}, "critical.teacher is 1.5; expected a weight, 0…1"),
        ({"critical": {"evaluate_every": "soon"}}, "critical.evaluate_every is 'soon'; expected a number and a unit"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        CaptionerRun(**{k: Critical(**v) if k == "critical" else v for k, v in wrong.items()})


def test_the_encoder_starts_from_a_trained_vision_transformer(tmp_path):
    config = replace(tiny().model.encoder, pooling="mean", image=(12, 12))
    torch.manual_seed(5)
    vit = ViT(config)
    vit.save_pretrained(tmp_path / "vit")
    run, source = adopt(tiny(start=str(tmp_path / "vit")))
    task = made(run)
    begin_with(task.model, source)
    assert_close(task.model.encoder.blocks[1].attention.q.weight, vit.blocks[1].attention.q.weight)
    other = made(tiny())
    assert not torch.equal(other.model.encoder.blocks[1].attention.q.weight, vit.blocks[1].attention.q.weight)


# The reward


def random_rows(dice: random.Random, count: int, words: int = 9, longest: int = 8) -> list[list[int]]:
    return [[dice.randrange(6, 6 + words) for _ in range(dice.randint(0, longest))] for _ in range(count)]


def padded(rows: list[list[int]], length: int = 9) -> torch.Tensor:
    return torch.tensor([[*row, END, *[PAD] * (length - 1 - len(row))] for row in rows])


@pytest.mark.parametrize("seed", range(5))
def test_the_reward_is_cider_d(seed):
    """Of the official formula on the same words, the end being one of them."""
    dice = random.Random(seed)
    references = [random_rows(dice, dice.randint(1, 4)) for _ in range(10)]
    most = max(map(len, references))
    missing = torch.full((1, 9), PAD)
    tokens = torch.stack([torch.cat([padded(rows), missing.expand(most - len(rows), -1)]) for rows in references])
    reward = Reward(tokens, vocabulary=15, pad=PAD)
    candidates = [random_rows(dice, 3) for _ in range(10)]
    found = reward(torch.arange(10), torch.stack([padded(rows) for rows in candidates]))
    spelled = [[[str(word) for word in [*row, END]] for row in rows] for rows in references]
    for which in range(3):
        said = [[str(word) for word in [*rows[which], END]] for rows in candidates]
        assert found[:, which].double().mean().item() == pytest.approx(cider_d(said, spelled), abs=1e-5)
    one = reward(torch.tensor([4]), padded(references[4][:1])[None])
    assert one.item() > found.mean()


def test_a_flipped_picture_is_rewarded_for_the_mirrored_caption(monkeypatch):
    flip = Critical(duration="1 steps", batch=32, samples=2, augment=Augment(flip="random"))
    task = made(tiny(critical=flip).second_stage, SelfCritical)
    share = task.loader.share(0)
    _, flipped = task.augmented(share, task.loader.pixels(share), task.run.augment)
    true = task.mirrored_where(flipped, task.known.tokens[share.image])[..., 1:].expand(-1, 2, -1)
    monkeypatch.setattr(task, "_sample", lambda images, count: true)
    pixels = task.loader.pixels(share)
    _, figures = task.share_loss(task.model, share, pixels)
    assert figures["reward"] == pytest.approx(task.reward(share.image, task.known.tokens[share.image][..., 1:]).mean())
    monkeypatch.setattr(task, "_sample", lambda images, count: task.mirrored[true])
    assert task.share_loss(task.model, share, pixels)[1]["reward"] < figures["reward"]


def test_the_reward_refuses_a_vocabulary_it_could_not_number():
    with pytest.raises(ValueError, match="expected fewer than 55,108"):
        Reward(torch.zeros(1, 1, 4, dtype=torch.long), vocabulary=60_000, pad=PAD)


def test_self_critical_training_finds_what_is_rewarded():
    """A model that may say anything learns to end at once when only the shortest caption is a reference."""
    task = made(tiny(batch=16, critical=Critical(duration="30 steps", batch=16, samples=5)).second_stage, SelfCritical)
    task.known.tokens[:] = PAD
    task.known.tokens[:, 0, :4] = torch.tensor([START, 7, 7, END])
    # Of one image another caption, or no word would be rarer than another and nothing worth anything.
    task.known.tokens[0, 0, :4] = torch.tensor([START, 8, 9, END])
    task.reward = Reward(task.known.tokens[..., 1:], vocabulary=len(task.tokenizer), pad=PAD)
    run = replace(task.run, optim=replace(task.run.optim, lr=1e-2))
    heard = Heard()
    Engine(task, run, CPU, observer=heard).fit()
    rewards = [line["reward"] for line in heard.lines if "reward" in line]
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])


def test_only_what_is_better_is_moved():
    """Then no caption's probability falls for its own sake: the loss is a sum of terms that are zero or more."""
    losses = {}
    for only in (False, True):
        critical = Critical(duration="1 steps", batch=16, samples=3, only_better=only)
        task = made(tiny(critical=critical).second_stage, SelfCritical)
        share = task.loader.share(0)
        torch.manual_seed(2)
        losses[only] = task.share_loss(task.model, share, task.loader.pixels(share))[0].item()
        torch.manual_seed(2)
        said = task._sample(task.augmented(share, task.loader.pixels(share), task.run.augment)[0], 3)
    rewards = task.reward(share.image, said)
    gain = rewards - (rewards.sum(1, keepdim=True) - rewards) / 2
    assert (gain < 0).any()
    assert losses[True] > 0
    assert losses[True] != pytest.approx(losses[False], rel=1e-3)


def test_the_teacher_is_the_first_stage_without_dropout():
    """All of it is the first stage's loss; a half is halfway between that and the reward's, for the same draws."""
    losses = {}
    for teacher in (0.0, 0.5, 1.0):
        critical = Critical(duration="1 steps", batch=8, samples=2, teacher=teacher)
        run = tiny(critical=critical)
        task = made(replace(run, model=replace(run.model, dropout=0.5)).second_stage, SelfCritical)
        share = task.loader.share(0)
        pixels = task.loader.pixels(share)
        torch.manual_seed(1)
        losses[teacher] = task.share_loss(task.model.train(), share, pixels)[0].item()
        if teacher == 1:
            first = Captioning.share_loss(task, task.model.eval(), share, pixels)[0].item()
            dropped = Captioning.share_loss(task, task.model.train(), share, pixels)[0].item()
    assert losses[1.0] == pytest.approx(first, rel=1e-5)
    assert losses[1.0] != pytest.approx(dropped, rel=1e-3)
    assert losses[0.5] == pytest.approx((losses[0.0] + losses[1.0]) / 2, rel=1e-5)
    assert abs(losses[0.0]) < losses[1.0]


# Runs

OPTIONS = shlex.split(
    "--model.encoder.width 16 --model.encoder.depth 1 --model.encoder.heads 2 --model.layers 1 --model.heads 2 "
    "--model.dropout 0.1 --data.size 36 36 --data.scenes.train 64 --data.scenes.validation 4 --data.scenes.test 4 "
    "--batch 8 --optim.ema 0.9 --duration '24 steps' --evaluate-every '12 steps' --checkpoint-every '2 steps' "
    "--critical.duration '12 steps' --critical.batch 4 --critical.samples 2 --critical.augment.flip random "
    "--critical.teacher 0.2"
)


def captioned(folder, *options, **how) -> str:
    code, said = Started(folder, *words_for(folder, *options), recipe="captioner_scenes", **how).ended()
    assert code == 0, said
    return said


def test_killed_in_either_stage_it_ends_the_same(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert "36 steps in" in captioned(whole, *OPTIONS)  # both stages
    seed = random.randrange(1 << 32)
    print(f"the moments' seed is {seed}")
    moments = random.Random(seed)
    for where, steps in ((folder, 0), (folder, 5), (folder, 17), (folder / "critical", 1), (folder / "critical", 8)):
        started = Started(folder, *words_for(folder, *OPTIONS), recipe="captioner_scenes")
        if steps:
            wait_for_steps(where, steps)
        time.sleep(moments.uniform(0, 0.05))
        started.send(signal.SIGKILL)
        started.process.join()
    assert steps_logged(folder / "critical") < 12
    captioned(folder, *OPTIONS)
    assert_same_run(folder, whole)
    assert_same_run(folder / "critical", whole / "critical")
    first, second = tensors(whole), tensors(whole / "critical")
    assert not torch.equal(first["model.decoder.norm.weight"], second["model.decoder.norm.weight"])
    assert (folder / "tokenizer.json").read_text() == (whole / "tokenizer.json").read_text()
    assert any("reward" in line for line in log(folder / "critical"))
    ready = load_captioner(folder)
    model = ready.model
    assert len(ready.tokenizer) == model.config.vocabulary
    best = tensors(folder / "critical", "best")
    assert torch.equal(model.decoder.norm.weight, best["model.decoder.norm.weight"])
    inner = Started(folder, "--resume", str(folder / "critical"), recipe="captioner_scenes")
    code, said = inner.ended()
    assert code == 2
    assert f"is the second stage of a run; go on with both by --resume {folder}" in said


def test_two_processes_are_one(tmp_path):
    options = shlex.split(
        "--duration '6 steps' --model.dropout 0 --critical.duration '0 steps' --captions 1 --backward"
    )
    captioned(tmp_path / "one", *OPTIONS, *options)
    words = [*words_for(tmp_path / "two", *OPTIONS, *options)]
    port = free_port()
    both = [Started(tmp_path / "two", *words, recipe="captioner_scenes", ranks=(rank, 2, port)) for rank in range(2)]
    for each in both:
        code, said = each.ended()
        assert code == 0, said
    assert_close(torch.tensor(losses(tmp_path / "two")), torch.tensor(losses(tmp_path / "one")), rtol=0, atol=1e-5)
    assert len(set(losses(tmp_path / "one"))) == 6


def test_the_command_draws_curves_and_names_the_run(tmp_path, capsys):
    small = shlex.split("--duration '2 steps' --critical.duration '0 steps'")
    assert main(["train", "captioner_scenes", "--out", str(tmp_path / "run"), *OPTIONS, *small]) == 0
    said = capsys.readouterr().out
    assert "exact 0." in said
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    assert main(["curves", str(tmp_path / "run"), "--out", str(tmp_path / "c.png")]) == 0


def test_a_captioner_is_no_classifier(tmp_path, capsys):
    small = shlex.split("--duration '1 steps' --critical.duration '0 steps'")
    assert main(["train", "captioner_scenes", "--out", str(tmp_path / "run"), *OPTIONS, *small]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "x.png"]) == 2
    assert "is a captioner; expected a classifier" in capsys.readouterr().err
    assert main(["caption", "vit-cifar10", "x.png"]) == 2
    assert "is a classifier; expected a captioner" in capsys.readouterr().err
