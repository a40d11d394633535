"""What a mutation run found untested in evaluation."""

import json
import logging
import math
import random
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from speaking import CAPTIONS, captioner, pictures
from speaking import NORMALISE as SPOKEN
from torch import nn

from pellucid.data import ImageSet
from pellucid.data.augment import Normalise, normalised
from pellucid.data.captions import CaptionSet
from pellucid.data.reader import PictureReader
from pellucid.data.tokenizer import END, NEVER, START, CaptionTokenizer
from pellucid.decode import cross_attention, greedy
from pellucid.decode.captions import maps_of_words, write_captions
from pellucid.evaluation import captioning, captions, jars
from pellucid.evaluation.accuracy import ClassificationReport, evaluate_classifier
from pellucid.evaluation.captioning import CaptioningReport, measure_exactness
from pellucid.evaluation.captions import References, Scores, bleu_of, counts
from pellucid.evaluation.controls import best_fixed, bootstrap_scores, controls, derangement, people
from pellucid.evaluation.labels import relabel
from pellucid.evaluation.pointing import aligned, multiply_layers, pointing, pointing_at, read_along
from pellucid.watching import watch

NORMALISE = Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def images(count: int) -> ImageSet:
    pixels = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 3, ("ant", "bee", "cow"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_loss_is_the_mean_over_however_few_images_there_are(count):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 3))
    some = images(count)
    report = evaluate_classifier(model, some, NORMALISE, batch=2)
    expected = F.cross_entropy(model(normalised(some.images, NORMALISE)), some.labels)
    assert report.loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_blank_picture_has_the_mean_colour_in_bytes():
    blank = PictureReader((8, 12), 3, Normalise((0.8, 0.0, 1.0), (0.2, 0.2, 0.2))).blank()
    assert blank.shape == (3, 8, 12)
    assert [channel.unique().tolist() for channel in blank] == [[204], [0], [255]]


def test_the_clock_runs_while_the_model_answers(monkeypatch):
    now = [100.0]

    class Slow(nn.Sequential):
        def forward(self, x):
            now[0] += 0.5
            return super().forward(x)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    report = evaluate_classifier(Slow(nn.Flatten(), nn.Linear(3 * 4 * 4, 3)), images(6), NORMALISE, batch=2)
    assert report.seconds == pytest.approx(1.5)
    assert report.images_per_second == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("box", "share"),
    [((4, 4, 8, 8), 0.25), ((0, 0, 4, 4), 0.25), ((3.9, 4, 8, 8), 0.5), ((4, 3.9, 8, 8), 0.5), ((0, 0, 4.1, 4), 0.5)],
)
def test_a_patch_that_only_touches_the_box_is_no_tolerant_hit(box, share):
    report = pointing([torch.ones(1, 1, 1, 2, 2)], [[[box]]], (8, 8))
    assert report.tolerant_chance == share


def test_a_beam_of_one_says_the_likeliest_word_each_time():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, pixels = captioner(tokenizer, steps=5), pictures()
    context = model.encode(normalised(pixels, SPOKEN))
    words = greedy(model, context, start=START, end=END, length=15, forbidden=NEVER).tokens[:, 0]
    said = write_captions(model, tokenizer, pixels, beam=1)
    assert [best.text for (best,) in said] == [tokenizer.decode(row) for row in words]
    with pytest.raises(ValueError, match="beam is 0; expected one or more"):
        write_captions(model, tokenizer, pixels, beam=0)


def test_an_interval_is_of_as_many_resamples_as_are_asked_for():
    references = {"a": ["a dog runs"], "b": ["two cats sit on grass"], "c": ["a red bird"]}
    said = {"a": "a dog runs", "b": "a dog runs", "c": "a red bird"}
    low, high = controls(said, references, resamples=1).interval["cider_d"]
    assert low == high  # of one number
    low, high = controls(said, references).interval["cider_d"]
    assert low < high


# Classifiers


def slow_ece(probabilities, labels, bins=15):
    """Naeini et al. 2015, one interval (low, high] at a time."""
    total = 0.0
    for i in range(bins):
        sure = [(max(row), row.index(max(row)) == label) for row, label in zip(probabilities, labels, strict=True)]
        inside = [(p, right) for p, right in sure if i / bins < p <= (i + 1) / bins]
        total += abs(sum(p - right for p, right in inside)) / len(labels)
    return total


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_calibration_is_in_fifteen_intervals_from_nothing_to_all(classes):
    """Of 40 classes the likeliest may have less than a fifteenth."""
    logits = torch.randn(600, classes, dtype=torch.float64) * torch.rand(600, 1).double().mul(4)
    logits[:100] /= 100
    probabilities, labels = logits.softmax(-1), torch.randint(classes, (600,))
    report = ClassificationReport(probabilities, labels, 0.0, 1.0)
    assert report.ece() == pytest.approx(slow_ece(probabilities.tolist(), labels.tolist()), abs=1e-12)
    assert report.ece(4) == pytest.approx(slow_ece(probabilities.tolist(), labels.tolist(), 4), abs=1e-12)
    over = ClassificationReport(torch.tensor([[1.0000001, 0.0]]), torch.tensor([1]), 0.0, 1.0)  # as softmax rounds
    assert over.ece() == pytest.approx(1.0, abs=1e-6)


def test_the_figures_of_a_report_by_hand():
    rows = torch.tensor([[0.5, 0.2, 0.1, 0.09, 0.06, 0.05]] * 4)
    report = ClassificationReport(rows, torch.tensor([0, 4, 5, 5]), 0.25, 2.0, tuple("abcdda"[:5]) + ("f",))
    assert report.right.tolist() == [True, False, False, False]
    assert (report.top1, report.top5) == (0.25, 0.5)
    assert report.figures == {
        "top1": 0.25,
        "top5": 0.5,
        "ece": report.ece(),
        "per_class": {"a": 1.0, "b": None, "c": None, "d (3)": None, "d (4)": 0.0, "f": 0.0},
        "images_per_second": 2.0,
        "images": 4,
    }
    assert ClassificationReport(rows, torch.tensor([0] * 4), 0.0, 1.0).classes == tuple("012345")
    with pytest.raises(ValueError, match="zip"):
        _ = replace(report, names=("a", "b")).figures  # of six classes
    assert report.confusion.sum() == 4
    assert report.confusion[5].tolist() == [2, 0, 0, 0, 0, 0]


def test_shares_of_images_are_every_so_manieth_and_other_labels_may_be_given():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 3))
    some = images(7)
    whole = evaluate_classifier(model, some, NORMALISE)
    assert whole.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    parts = [evaluate_classifier(model, some, NORMALISE, share=(rank, 3), batch=2) for rank in range(3)]
    for rank, part in enumerate(parts):
        assert torch.equal(part.labels, whole.labels[rank::3])
        torch.testing.assert_close(part.probabilities, whole.probabilities[rank::3])
    other = evaluate_classifier(model, some, NORMALISE, labels=torch.zeros(7, dtype=torch.long), names=tuple("xyz"))
    assert other.labels.tolist() == [0] * 7
    assert (other.classes, whole.classes) == (("x", "y", "z"), ("0", "1", "2"))
    assert other.loss == pytest.approx(-whole.probabilities[:, 0].log().mean().item(), rel=1e-5)
    assert not whole.probabilities.requires_grad


def test_a_model_is_left_as_it_was_found():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(3 * 4 * 4, 3)).train()
    one, two = (evaluate_classifier(model, images(4), NORMALISE) for _ in range(2))
    assert model.training
    assert one.labels.tolist() == two.labels.tolist()


def named(*classes):
    return SimpleNamespace(classes=classes, labels=torch.tensor([0, 2, 1, 1]))


def test_labels_are_told_by_name_or_else_by_order(caplog):
    data = named("ant", "bee", "cow")
    assert relabel(data, ("ant", "bee", "cow"), 3) is data.labels
    assert relabel(data, ("dog", "cow", "bee", "ant"), 4).tolist() == [3, 1, 2, 2]
    assert relabel(data, ("dog", "dog", "cow", "bee", "ant"), 5).tolist() == [4, 2, 3, 3]
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert relabel(data, None, 3) is data.labels
        numbered = named("0", "1", "2")
        assert relabel(numbered, ("x", "y", "z"), 3) is numbered.labels
    assert ["model has no names" in r.getMessage() for r in caplog.records] == [True, False]
    assert relabel(data, ("x", "y", "z"), 3, {"ant": "z", "bee": "x", "cow": "y"}).tolist() == [2, 1, 0, 0]
    assert relabel(data, ("x", "bee", "cow"), 3, {"ant": "x"}) is data.labels
    assert all("taken in their order" in record.getMessage() for record in caplog.records)
    for labels, count, why in (
        (("ant", "bee", "cow", "ant"), 4, "several of the model's classes are called 'ant'"),
        (
            ("ant", "bee", "pig"),
            3,
            "the model doesn't know 'cow' of the data's 3 classes; it knows 'ant', 'bee', 'pig'",
        ),
        (("x", "y", "z"), 3, "doesn't know 'ant', 'bee', 'cow' of the data's 3 classes; it knows 'x', 'y', 'z'"),
        (("x", "y", "z", "w"), 4, "doesn't know 'ant', 'bee', 'cow' of the data's 3 classes; it knows 'x', 'y', 'z'"),
        (None, 4, "it knows 4 classes"),
    ):
        with pytest.raises(ValueError, match=why):
            relabel(data, labels, count)


# Captions


def test_metrics_at_the_bounds_of_length_by_hand():
    """One word to five, said of one, two and three images: n-grams longer than the sentence count as none."""
    assert counts(["a"]) == {("a",): 1}
    assert counts(list("aabaa")) == {
        ("a",): 4, ("b",): 1, ("a", "a"): 2, ("a", "b"): 1, ("b", "a"): 1,
        ("a", "a", "b"): 1, ("a", "b", "a"): 1, ("b", "a", "a"): 1, ("a", "a", "b", "a"): 1, ("a", "b", "a", "a"): 1,
    }  # fmt: skip
    rows = References([[list("abcd"), list("ab")], [list("xy")]]).bleu_counts([list("abd"), []])
    assert rows.tolist() == [
        [3, 1, 0, 0, 3, 2, 1, 0, 3, 2],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    ]  # of two as near, the shorter
    assert References([[list("abcd")]]).bleu_counts([list("aa")])[0].tolist() == [1, 0, 0, 0, 2, 1, 0, 0, 2, 4]
    short = bleu_of(np.array([2, 1, 0, 0, 2, 1, 0, 0, 2, 4]))
    assert short[0] == pytest.approx(math.exp(1 - 4 / 2), rel=1e-6)  # all right, but half as long as it should be
    assert short[1] == pytest.approx(math.exp(1 - 4 / 2), rel=1e-6)
    long = bleu_of(np.array([2, 1, 0, 0, 4, 3, 2, 1, 4, 2]))
    assert long[:2] == pytest.approx([2 / 4, math.sqrt(2 / 4 * 1 / 3)], rel=1e-6)


def test_rouge_by_hand():
    known = References([[list("abcde"), list("ae")], [["x"]], [[]]])
    found = known.rouge_l([list("ace"), ["y"], []])
    precision, recall, beta = 1.0, 1.0, 1.2  # the best of each: "ace" of "abcde", "ae" of "ae"
    assert found.tolist() == pytest.approx([(1 + beta**2) * precision * recall / (recall + beta**2 * precision), 0, 1])
    (half,) = References([[list("abcd")]]).rouge_l([list("axcy")])
    assert half == pytest.approx(0.5)
    (uneven,) = References([[list("abcd")]]).rouge_l([list("ab")])
    assert uneven == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    (other,) = References([[list("abcd")]]).rouge_l([list("ab")], beta=1.0)
    assert other == pytest.approx(2 * 0.5 / 1.5)


def test_rarity_is_counted_by_image():
    known = References([[["a", "dog"], ["a", "dog"]], [["a", "cat"]], [["two", "dog"]]])
    assert len(known) == 3
    assert known.rarity(("a",)) == pytest.approx(math.log(3 / 2))
    assert known.rarity(("cat",)) == known.rarity(("zebra",)) == pytest.approx(math.log(3))
    assert known.rarity(("a", "dog")) == pytest.approx(math.log(3))
    weighed = known.weigh(counts(["a", "a", "cat", "cat"]))
    assert weighed.length == 3
    assert weighed.weights[0] == {("a",): pytest.approx(2 * math.log(1.5)), ("cat",): pytest.approx(2 * math.log(3))}
    assert weighed.norms[0] == pytest.approx(2 * math.hypot(math.log(1.5), math.log(3)))
    assert weighed.norms[3] == pytest.approx(math.log(3))


def test_as_many_captions_are_scored_as_there_are_images():
    known = References([[["a", "dog"]], [["two", "cats"]]])
    for said in ([["a"]], [["a"], ["b"], ["c"]]):
        for measure in (known.bleu_counts, known.rouge_l, known.cider_d, known.scores):
            with pytest.raises(ValueError, match="zip"):
                measure(said)


def test_people_are_five_at_most_and_an_image_alone_has_as_many_as_it_has():
    draw = random.Random(0)
    words = ["a", "man", "rides", "brown", "dogs", "on", "the", "beach"]

    def several(n):
        return [[draw.choice(words) for _ in range(draw.randint(2, 7))] for _ in range(n)]

    def slow(images, taken):
        rounds = [
            References([each[:i] + each[i + 1 :] for each in images]).scores([each[i] for each in images]).figures
            for i in range(taken)
        ]
        return {name: pytest.approx(sum(each[name] for each in rounds) / taken) for name in rounds[0]}

    for sizes, taken in (((7, 8), 5), ((7, 3), 3), ((2, 6), 2), ((7,), 5), ((3,), 3), ((2,), 2)):
        images = [several(n) for n in sizes]
        assert people(images) == slow(images, taken)
        assert people([*images, several(1)]) == slow(images, taken)
    assert people([several(1), several(1)]) is None


def test_the_fixed_caption_counts_each_reference_by_its_images_share():
    """Of images with one and with many references, beside captions longer and shorter than all of them."""
    draw = random.Random(3)
    words = ["a", "man", "rides", "brown", "dogs", "on", "the", "beach"]

    def sentence(longest):
        return [draw.choice(words) for _ in range(draw.randint(1, longest))]

    for longest in (2, 6, 20):
        meant = [[sentence(7) for _ in range(draw.choice((1, 1, 6)))] for _ in range(8)]
        pool = [" ".join(sentence(longest)) for _ in range(25)]
        slow = [captions.cider_d([text.split()] * 8, meant) for text in pool]
        assert best_fixed(References(meant), pool) == pool[int(np.argmax(slow))]
    assert best_fixed(References([[["a"]], [["b"]]]), ["zebra", "yak"]) == "zebra"  # nobody scores: the first
    assert best_fixed(References([[["a"]], [["b"]]]), ["zebra", "b", "a"]) == "b"  # both as well: the first


def test_all_is_drawn_from_the_seed_and_a_thousand_times():
    references = {str(i): [f"w{i} a b", f"w{i} c"] for i in range(9)}
    said = {key: texts[int(key) % 2] if int(key) % 3 else "a b" for key, texts in references.items()}
    plain = controls(said, references)
    words = [text.split() for text in said.values()]
    known = References([[text.split() for text in texts] for texts in references.values()])
    scores = known.scores(words)
    assert plain.interval == bootstrap_scores(scores)
    draw = np.random.default_rng(0)
    many = Scores(draw.integers(1, 9, (50, 10)), draw.random(50), draw.random(50))
    assert bootstrap_scores(many) == bootstrap_scores(many, seed=0, resamples=1000)
    assert bootstrap_scores(many) != bootstrap_scores(many, resamples=1001)
    assert bootstrap_scores(many) != bootstrap_scores(many, seed=1)
    assert plain.shuffled == known.scores([words[i] for i in derangement(9)]).figures
    assert derangement(9).tolist() == derangement(9, 0).tolist() != derangement(9, 1).tolist()
    other = controls(said, references, seed=1)
    assert (other.interval, other.shuffled) != (plain.interval, plain.shuffled)
    assert sorted(derangement(2).tolist()) == [0, 1] != derangement(2).tolist()
    figures = plain.figures
    assert figures["cider_d"] == plain.model["cider_d"]
    assert figures["interval"]["bleu4"] == list(plain.interval["bleu4"])
    assert "model" not in figures
    assert {"images", "fixed", "fixed_caption", "shuffled", "blank", "people", "different", "warning"} <= figures.keys()


def test_warnings_come_just_where_they_should():
    references = {str(i): [f"w{i} x{i} y{i}"] for i in range(200)}
    right = {key: text for key, (text,) in references.items()}

    def warned(said):
        return controls(said, references, resamples=20).warning or ""

    assert "only 1 " not in warned(dict.fromkeys(references, "a b"))
    assert "same of all 200" in warned(dict.fromkeys(references, "a b"))
    two = {key: "a b" if int(key) % 2 else "c d" for key in references}
    assert warned(two) == ""  # a hundredth is not less than a hundredth; and of what scores nothing nothing is said
    fewer = {key: said for key, said in references.items() if key != "0"}
    more = references | {"200": ["a"]}
    assert "hardly looks" in (controls(dict(two) | {"200": "a b"}, more, resamples=20).warning or "")
    assert controls({key: two[key] for key in fewer}, fewer, resamples=20).warning is None
    assert warned(right) == ""
    texts = list(right.values())
    assert "fit other images as well" in warned({key: texts[int(key) - 1] for key in references} | {"0": texts[0]})
    punctuation = controls({"a": ".", "b": "dog"}, {"a": ["!"], "b": ["?"]}, resamples=5)
    assert punctuation.never_said == 0.0


# The official programs, played by a short one: what is said to them, and what is made of their answers


METEOR = """
import sys
assert sys.argv[1:] == ["-Xmx2G", "-jar", "meteor.jar", "-", "-", "-stdio", "-l", "en", "-norm"], sys.argv
lines = []
for line in sys.stdin:
    parts = line.strip().split(" ||| ")
    lines.append(parts)
    if parts[0] == "SCORE":
        print(f"{len(parts)} {len(parts[-1].split())}", flush=True)
    else:
        assert parts == ["EVAL", "4 2", "3 1"], parts
        assert lines[0] == ["SCORE", "a brown dog", "the dog", "a dog"], lines
        assert lines[1] == ["SCORE", "two cats", "cats"], lines
        for figure in (0.25, 0.75, 0.4375):  # of each image, then of all
            print(figure, flush=True)
"""
SPICE = """
import json, sys
assert sys.argv[1:4] == ["-Xmx8G", "-cp", sys.argv[3]] and sys.argv[3].endswith("spice.jar"), sys.argv
assert sys.argv[4].endswith("Spice.java"), sys.argv
images = json.load(open(sys.argv[5]))
assert images == [
    {"image_id": 0, "test": "a dog", "refs": ["a brown dog", "the dog"]},
    {"image_id": 1, "test": "cats", "refs": ["two cats"]},
], images
json.dump([{"scores": {"All": {"f": f}}} for f in (0.5, 0.25)], open(sys.argv[6], "w"))
"""


def test_the_official_programs_are_spoken_to_in_their_language(monkeypatch, tmp_path):
    said, meant = {"x": "A dog.", "y": "cats"}, {"y": ["Two cats!"], "x": ["a brown dog", "the dog"]}
    monkeypatch.setattr(jars, "find_jar", lambda metric: tmp_path / f"{metric}.jar")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def plays(program):
        (tmp_path / "program.py").write_text(program)
        (tmp_path / "java").write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
        (tmp_path / "java").chmod(0o755)

    plays(METEOR)
    assert jars.official(said, meant, ["meteor"]) == {"meteor": 0.4375}
    plays(SPICE)
    assert jars.official(said, meant, iter(["spice"])) == {"spice": 0.375}
    plays("import sys; sys.exit(3)")
    with pytest.raises(ValueError, match="SPICE's program failed: it said nothing"):
        jars.official(said, meant, ["spice"])
    plays("print('done')")  # and nothing is there
    with pytest.raises(ValueError, match="SPICE's program failed: it said nothing"):
        jars.official(said, meant, ["spice"])
    assert jars._failed("X", b"one\n\ntwo\n") == "X's program failed: one"
    assert jars._failed("X", b"one\nan Exception\nan Error\n") == "X's program failed: an Exception"
    assert jars._failed("X", b"one\nan Error\nan Exception\n") == "X's program failed: an Error"


# What is measured of a captioner


def report_of(captions, references, ids=None):
    images = SimpleNamespace(captions=references, ids=ids or [str(i) for i in range(len(captions))])
    return CaptioningReport(images, captions, {})


def test_examples_are_at_equal_steps_from_the_best_to_the_worst():
    references = [(f"w{i} x{i} y{i} z{i} v{i}",) for i in range(20)]
    said = [" ".join(f"{c}{i}" for c in "wxyzv"[: 1 + i % 5]) for i in range(20)]
    report = report_of(said, references)
    scores = References([[text.split() for text in texts] for texts in references]).cider_d([s.split() for s in said])
    for count, expected in ((8, 8), (3, 3), (1, 1), (30, 20)):
        places = report.examples(count)
        assert len(places) == expected
        assert len({place for place, _ in places}) == expected
        values = [value for _, value in places]
        assert values == sorted(values, reverse=True)
        assert all(value == scores[place] for place, value in places)
        assert values[0] == scores.max()
        ordered = sorted(scores, reverse=True)
        at = [round(float(x)) for x in np.linspace(0, 19, expected)]
        assert values == [ordered[i] for i in at]
    assert report.examples() == report.examples(8)


def test_captions_are_saved_as_cocos_results(tmp_path):
    report_of(["é dog", "two"], [("a",), ("b",)], ["007", "b7.jpg"]).save_captions(tmp_path / "captions.json")
    text = (tmp_path / "captions.json").read_text(encoding="utf-8")
    assert json.loads(text) == [{"image_id": 7, "caption": "é dog"}, {"image_id": "b7.jpg", "caption": "two"}]
    assert "é" in text
    assert text.count("\n") > 4  # to be read by people
    assert text.endswith("]\n")


def test_the_official_figure_is_of_the_captions_and_their_references(monkeypatch):
    calls = []
    monkeypatch.setattr(jars, "official", lambda *call: calls.append(call) or {"meteor": 0.5})
    assert report_of(["x", "y"], [("a", "b"), ("c",)]).official("meteor") == {"meteor": 0.5}
    assert calls == [({"0": "x", "1": "y"}, {"0": ("a", "b"), "1": ("c",)}, ["meteor"])]


def test_exactness_by_kind_and_by_what_was_seen():
    scenes = SimpleNamespace(
        captions=[("A red Cube",), ("two balls",), ("a ball", "other"), ("a cone",)],
        kinds=("one", "count", "one", "one"),
        unseen=torch.tensor([False, False, True, False]),
    )
    found = measure_exactness(scenes, ["a red  cube", "two cubes", "a ball", "cone"])
    assert found == {
        "exact": 0.5,
        "exact_seen": pytest.approx(1 / 3),
        "exact_unseen": 1.0,
        "exact_by_kind": {"count": 0.0, "one": pytest.approx(2 / 3)},
    }
    scenes.unseen[:] = False
    assert measure_exactness(scenes, ["", "", "", ""])["exact_unseen"] is None


def test_the_map_that_points_best_is_chosen_on_other_scenes(monkeypatch):
    """On at most a thousand of them, both ways; and without them it is the mean of all."""

    class Scenes:
        def __init__(self, count, name):
            self.count, self.name = count, name
            self.captions, self.images, self.boxes = [("a", "b")] * count, name, name

        def __len__(self):
            return self.count

        def subset(self, index):
            assert index.tolist() == list(range(len(index)))
            return Scenes(len(index), self.name)

    calls = []

    def pointing_at(model, tokenizer, images, captions, boxes, *, through, batch):
        calls.append((images, len(captions), set(captions), boxes, through, batch))
        best = (1, 0) if through else (0, 2)
        return SimpleNamespace(
            best=best,
            share=lambda which, tolerant=False: (which, images, through, tolerant),
            chance=("chance", through),
            tolerant_chance=("tolerant", through),
        )

    monkeypatch.setattr(captioning, "pointing_at", pointing_at)
    monkeypatch.setattr(captioning, "SceneSet", Scenes)
    figures, choice = captioning.measure_pointing(None, None, Scenes(3, "mine"), Scenes(1005, "others"), 7)
    assert choice == (0, 2)
    assert figures == {
        "pointing": ((0, 2), "mine", False, False),
        "pointing_map": "layer 0, head 2",
        "pointing_chance": ("chance", True),
        "pointing_tolerant": ((0, 2), "mine", False, True),
        "pointing_tolerant_chance": ("tolerant", True),
        "pointing_rollout": ((1, 0), "mine", True, False),
        "pointing_rollout_map": "layer 1, head 0",
        "pointing_rollout_tolerant": ((1, 0), "mine", True, True),
    }
    assert calls == [
        ("others", 1000, {"a"}, "others", False, 7),
        ("mine", 3, {"a"}, "mine", False, 7),
        ("others", 1000, {"a"}, "others", True, 7),
        ("mine", 3, {"a"}, "mine", True, 7),
    ]
    calls.clear()
    captioning.measure_pointing(None, None, Scenes(3, "mine"), Scenes(4, "others"), 7)
    assert calls[0][1] == 4
    figures, choice = captioning.measure_pointing(None, None, Scenes(3, "mine"), None, 7)
    assert choice == (None, None)
    assert figures["pointing_map"] == "mean over layers and heads"


def test_a_captioner_is_judged_by_what_it_says(monkeypatch):
    """Of all pictures and of a blank one, with as many beams as are asked for, by the clock."""
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model = captioner(tokenizer)
    pixels = pictures()
    some = CaptionSet(
        ImageSet(pixels, torch.zeros(5, dtype=torch.long), ("picture",)),
        tuple((caption, "a dog") for caption in CAPTIONS),
        tuple("abcde"),
    )
    now, beams, heard = [10.0], [], []
    say, write = captioning.caption_all, captioning.write_captions

    def slow(*a, **k):
        now[0] += 2.0
        beams.append((k["beam"], k["batch"]))
        return say(*a, **k)

    monkeypatch.setattr(captioning, "caption_all", slow)
    monkeypatch.setattr(captioning, "write_captions", lambda *a, **k: beams.append(k["beam"]) or write(*a, **k))
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    report = captioning.evaluate_captioner(model, tokenizer, some, progress=lambda *done: heard.append(done))
    assert report.captions == list(CAPTIONS)
    assert (report.pointing_by, report.images) == (None, some)
    assert beams == [(5, 64), 5]
    assert heard == [(5, 5)]
    assert (report.figures["captions_per_second"], report.figures["beam"]) == (2.5, 5)
    blank = PictureReader.of(model.config.encoder).blank()[None]
    assert report.figures["blank_caption"] == write(model, tokenizer, blank)[0][0].text
    said, meant = dict(enumerate(CAPTIONS)), dict(enumerate(some.captions))
    expected = controls(said, meant, blank=report.figures["blank_caption"])
    assert report.figures.items() >= expected.figures.items()
    training = SimpleNamespace(captions=[("two cats", "a zebra"), ("birds",)])
    fixed = captioning.evaluate_captioner(model, tokenizer, some, training=training, beam=2, batch=3).figures
    assert beams[2:] == [(2, 3), 2]
    assert fixed["fixed_caption"] in ("two cats", "birds")


# Pointing


def test_a_point_on_the_edge_is_inside_on_one_side_only():
    """Centres lie at 2, 6, 10, …; a box from 2 to 6 holds the first and not the second, along either axis."""
    for box, hits in (
        ((2, 2, 6, 6), {(0, 0)}),
        ((2.1, 2, 6.1, 6), {(1, 0)}),
        ((2, 2.1, 6, 6.1), {(0, 1)}),
        ((0, 0, 2, 12), set()),
        ((0, 0, 8, 2), set()),
        ((0, 0, 2.1, 2.1), {(0, 0)}),
    ):
        for y in range(2):
            for x in range(3):
                maps = torch.zeros(1, 1, 1, 2, 3)
                maps[..., y, x] = 1
                found = pointing([maps], [[[box]]], (8, 12))
                assert found.share((0, 0)) == ((y, x) in hits)
                assert found.chance == pytest.approx(len(hits) / 6)


def test_words_said_beside_the_true_ones():
    boxes = [(1,), (2,), (3,)]
    assert aligned(["a", "Red", "cube", "too"], "A red cube", boxes) == [(1,), (), (3,), ()]
    assert aligned([], "A red cube", boxes) == []
    assert aligned(["a", "red", "cube"], "a red cube", boxes) == boxes
    with pytest.raises(ValueError, match="'a red' has 2 words and boxes for 3"):
        aligned(["a"], "a red", boxes)


def test_batches_of_pictures_are_one(monkeypatch):
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, pixels = captioner(tokenizer, steps=5), pictures()
    set_of = ImageSet(pixels, torch.zeros(5, dtype=torch.long), ("picture",))
    boxes = [[[(0, 0, 4, 4), (4, 8, 8, 12)]] * len(caption.split()) for caption in CAPTIONS]
    plain = pointing_at(model, tokenizer, set_of, CAPTIONS, boxes)
    assert plain == pointing_at(model, tokenizer, set_of, CAPTIONS, boxes, batch=2)
    assert plain == pointing_at(model, tokenizer, set_of, CAPTIONS, boxes, batch=5, through=False)
    assert plain.words == sum(len(caption.split()) for caption in CAPTIONS)
    model.train()
    looked = read_along(model, tokenizer, pixels, CAPTIONS)
    assert model.training
    assert [words for words, _ in looked] == [tuple(caption.split()) for caption in CAPTIONS]
    by_hand = pointing([maps for _, maps in looked], boxes, (8, 12))
    assert by_hand.hits == pytest.approx(plain.hits)
    assert by_hand.best == plain.best


def test_layers_are_multiplied_from_the_first_to_the_last():
    torch.manual_seed(0)
    maps = [torch.rand(2, 3, 4, 4, dtype=torch.float64).softmax(-1) for _ in range(3)]
    records = [SimpleNamespace(weights=lambda p=p: p) for p in maps]
    eye = torch.eye(4, dtype=torch.float64)
    one, two, three = (0.5 * p.mean(1) + 0.5 * eye for p in maps)
    torch.testing.assert_close(multiply_layers(records), three @ two @ one)
    torch.testing.assert_close(multiply_layers(records[:1]), one)
    half = multiply_layers([SimpleNamespace(weights=lambda p=p: p.float()) for p in maps])
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, (three @ two @ one).float())


def test_a_thousand_pictures_are_answered_at_once_and_no_more(monkeypatch):
    calls = []

    class Noted(nn.Sequential):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    evaluate_classifier(Noted(nn.Flatten(), nn.Linear(3 * 4 * 4, 3)), images(1001), NORMALISE)
    assert calls == [1000, 1]


def test_sentences_name_three_of_what_is_wrong_and_warnings_three_classes(caplog):
    said = dict.fromkeys("abcde", "a dog")
    with pytest.raises(ValueError, match="captions without references: a, b, c; give every image its references"):
        captions.tokenise_captions(said, {})
    with pytest.raises(ValueError, match=r"images with an empty list of references: a, b, c$"):
        captions.tokenise_captions(said, {key: [] for key in "abcde"})
    with pytest.raises(ValueError, match="there are no captions to score"):
        captions.tokenise_captions({}, {})
    data = SimpleNamespace(classes=tuple("abcde"), labels=torch.arange(5))
    with caplog.at_level(logging.WARNING):
        relabel(data, None, 5)
    (record,) = caplog.records
    assert "('a', 'b', 'c' and 2 more) are taken in their order" in record.getMessage()


def test_captions_and_what_they_are_of_are_as_many():
    images_of = SimpleNamespace(captions=[("a",), ("b",)], ids=["0", "1"])
    for said in (["a"], ["a", "b", "c"]):
        report = CaptioningReport(images_of, said, {})
        for ask in (report.examples, lambda report=report: report.save_captions(None)):
            with pytest.raises(ValueError, match="zip"):
                ask()
        scenes = SimpleNamespace(captions=[("a",), ("b",)], kinds=("x", "x"), unseen=torch.tensor([True, False]))
        with pytest.raises(ValueError, match="zip"):
            measure_exactness(scenes, said)
        with pytest.raises(ValueError, match="pictures and boxes of"):
            pointing([torch.ones(1, 1, 1, 2, 2)] * len(said), [[[]]] * 2, (8, 8))


def test_captions_that_are_as_good_come_with_the_later_first():
    """A hundred alike: an order that isn't stable would mix them."""
    report = report_of(["a dog"] * 100, [("a dog", "cat")] * 100)
    assert [place for place, _ in report.examples(100)] == list(range(99, -1, -1))


def test_a_file_of_captions_to_the_last_blank(tmp_path):
    report_of(["a"], [("a",)], ["1"]).save_captions(tmp_path / "captions.json")
    text = (tmp_path / "captions.json").read_bytes().decode("utf-8")
    assert text == '[\n {\n  "image_id": 1,\n  "caption": "a"\n }\n]\n'


def test_what_every_image_has_weighs_nothing():
    known = References([[["a", "dog"]], [["a", "cat"]]])
    assert known.cider_d([["a"], ["a"]]).tolist() == [0.0, 0.0]
    assert known.cider_d([["a", "dog"], ["a"]])[0] > 0
    assert References([[["a"]], [["a"]]]).cider_d([["a"], ["a"]]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("said", "share"), [({"a": "dog"}, 0.0), ({"a": "cat"}, 1.0)])
def test_of_one_word_all_or_none_is_never_said(said, share):
    found = controls(said, {"a": ["dog"]}, resamples=5)
    assert found.never_said == share
    assert (found.shuffled, found.people) == (None, None)
    two = controls({"a": "a dog runs", "b": "a dog runs"}, {"a": ["a dog runs"], "b": ["cats sleep"]}, resamples=5)
    assert two.shuffled is not None
    assert two.warning == "the model says the same of all 2 images: it has not learned to look"
    assert controls({"a": "a"}, {"a": ["a"]}, resamples=5).warning is None


# More of the official programs


def play(monkeypatch, tmp_path, program: str) -> None:
    monkeypatch.setattr(jars, "find_jar", lambda metric: tmp_path / f"{metric}.jar")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "java").write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
    (tmp_path / "java").chmod(0o755)


def test_a_program_that_goes_on_is_ended_whether_it_was_right_or_wrong(monkeypatch, tmp_path):
    """One that answers and then waits for more than there is; one that answers nonsense and does."""
    begun = time.monotonic()
    answers = "import sys, time\nfor line in sys.stdin:\n    print(0.5, flush=True)\n    if 'EVAL' in line:\n        "
    play(monkeypatch, tmp_path, answers + "print(0.5, flush=True); time.sleep(60)")
    assert jars.official({"a": "dog"}, {"a": ["dog"]}, ["meteor"]) == {"meteor": 0.5}
    nonsense = "import sys, time\nprint('No dog was ever here', file=sys.stderr, flush=True)\n"
    play(monkeypatch, tmp_path, nonsense + "for _ in range(9): print('dog', flush=True)\ntime.sleep(60)")
    with pytest.raises(ValueError, match=r"METEOR's program failed: No dog was ever here$"):
        jars.official({"a": "dog"}, {"a": ["dog"]}, ["meteor"])
    assert time.monotonic() - begun < 50
    assert jars._failed("X", b"\xff\xfe is no text\n").endswith(" is no text")


@pytest.mark.parametrize("kit", [True, False])
def test_spice_needs_all_its_files_and_a_development_kit(kit, monkeypatch, tmp_path):
    package = tmp_path / "pycocoevalcap"
    (package / "spice" / "lib").mkdir(parents=True)
    monkeypatch.setattr(jars, "require", lambda name, user: SimpleNamespace(__path__=[str(package)]))
    play(monkeypatch, tmp_path, f"print('java.base@21\\njdk.{'compiler' if kit else 'net'}@21')")
    monkeypatch.undo()
    monkeypatch.setattr(jars, "require", lambda name, user: SimpleNamespace(__path__=[str(package)]))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ValueError, match=r"spice-1\.0\.jar is not there; install it again"):
        jars.find_jar("spice")
    (package / "spice" / "spice-1.0.jar").touch()
    (package / "spice" / "lib" / f"{jars.CORENLP}.jar").touch()
    with pytest.raises(ValueError, match=f"SPICE lacks Stanford's {jars.CORENLP}-models.jar: take them"):
        jars.find_jar("spice")
    (package / "spice" / "lib" / f"{jars.CORENLP}-models.jar").touch()
    if kit:
        assert jars.find_jar("spice") == package / "spice" / "spice-1.0.jar"
    else:
        with pytest.raises(ValueError, match="needs a Java development kit, 11 or newer"):
            jars.find_jar("spice")
    with pytest.raises(ValueError, match=r"metrics has bleu; expected meteor and spice"):
        jars.official({"a": "dog"}, {"a": ["dog"]}, ["bleu"])


# More of pointing


def test_a_centre_is_where_it_is_to_the_last_bit():
    """Patches of 7/3 pixels: a box may begin or end next to a centre."""
    for axis in (0, 1):
        centre = 0.5 * (7 / 3)
        for begin, end, inside in (
            (centre, 7.0, 3), (math.nextafter(centre, 8), 7.0, 2),
            (0.0, centre, 0), (0.0, math.nextafter(centre, 8), 1),
        ):  # fmt: skip
            box = (begin, 0.0, end, 1.0) if axis == 0 else (0.0, begin, 1.0, end)
            maps, size = (torch.ones(1, 1, 1, 3, 1), (7, 1)) if axis == 0 else (torch.ones(1, 1, 1, 1, 3), (1, 7))
            assert pointing([maps], [[[box]]], size).chance == pytest.approx(inside / 3, abs=1e-15)


def test_shares_of_ties_are_exact_however_many_words_there_are():
    maps = torch.zeros(2, 2, 30, 1, 3)
    found = pointing([maps], [[[(0, 0, 4, 4)]] * 30], (4, 12))
    assert found.words == 30
    assert list(found.hits.values()) == pytest.approx([10.0] * 7, rel=1e-14)
    assert found.chance == pytest.approx(1 / 3, rel=1e-14)
    assert found.tolerant_chance == pytest.approx(1 / 3, rel=1e-14)
    assert found.share((None, None), tolerant=True) == pytest.approx(1 / 3, rel=1e-14)
    for wrong in (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2, 2)):
        with pytest.raises(ValueError, match="expected \\(layers heads words rows columns\\) with 1 words"):
            pointing([wrong], [[[]]], (8, 8))
    with pytest.raises(ValueError, match="there are no pictures to point at"):
        pointing([], [], (8, 8))
    nothing = pointing([torch.ones(1, 1, 1, 2, 2)], [[[]]], (8, 8))
    assert (nothing.words, nothing.chance, nothing.share((0, 0))) == (0, 0.0, None)


def test_what_it_reads_along_can_be_followed_to_the_picture_and_what_it_says_itself_counts_where_it_is_right():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    model, pixels = captioner(tokenizer), pictures()
    set_of = ImageSet(pixels, torch.zeros(5, dtype=torch.long), ("picture",))
    boxes = [[[(0, 0, 4, 4), (4, 8, 8, 12)]] * len(caption.split()) for caption in CAPTIONS]
    with watch(model) as seen, torch.no_grad():
        context = model.encode(PictureReader.of(model.config.encoder).prepare(pixels, model))
    rolled = multiply_layers([seen[name] for name in seen if name.startswith("encoder.")])
    tokens = tokenizer.batch(CAPTIONS, model.config.max_length)[:, 1:]
    cross = cross_attention(model, context, tokens[:, None], START)[:, 0].float()
    looked = read_along(model, tokenizer, pixels, CAPTIONS, through=True)
    for i, (row, (words, maps)) in enumerate(zip(tokens, looked, strict=True)):
        pieces = tokenizer.words(row)
        assert words == tuple(word for word, _ in pieces)
        through = torch.einsum("lhts,sk->lhtk", cross[i], rolled[i].float())
        torch.testing.assert_close(maps, maps_of_words(model, pieces, through))
    followed = pointing_at(model, tokenizer, set_of, CAPTIONS, boxes, through=True)
    assert followed.hits == pytest.approx(pointing([maps for _, maps in looked], boxes, (8, 12)).hits)
    assert followed.hits != pointing_at(model, tokenizer, set_of, CAPTIONS, boxes).hits
    said = [best for (best,) in write_captions(model, tokenizer, pixels, beam=2, attention=True)]
    truths = [" ".join([*best.words[:1], "zebra"]) for best in said]
    boxed = [[boxes[0][0], boxes[0][0]]] * 5
    own = pointing_at(model, tokenizer, set_of, truths, boxed, own=2, batch=2)
    named = [aligned(best.words, truth, boxed[0]) for best, truth in zip(said, truths, strict=True)]
    assert own.hits == pytest.approx(pointing([best.attention for best in said], named, (8, 12)).hits)
    assert own.words == 5
    with pytest.raises(ValueError, match="leave out own, or through"):
        pointing_at(model, tokenizer, set_of, truths, boxed, own=2, through=True)


def test_64_pictures_are_read_along_at_once(monkeypatch):
    counts_ = []

    def read(model, tokenizer, pixels, captions_, *, through):
        counts_.append((len(pixels), len(captions_), through))
        return [((), torch.zeros(1, 1, 0, 2, 2))] * len(pixels)

    monkeypatch.setattr(sys.modules["pellucid.evaluation.pointing"], "read_along", read)
    some = ImageSet(torch.zeros(65, 3, 8, 8, dtype=torch.uint8), torch.zeros(65, dtype=torch.long), ("x",))
    pointing_at(None, None, some, ["a"] * 65, [[()]] * 65)
    assert counts_ == [(64, 64, False), (1, 1, False)]
