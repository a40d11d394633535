"""Caption metrics, against the official scorer (pycocoevalcap; its tokenizer needs Java)."""

import json
import random
import shutil
from pathlib import Path

import odd_captions
import pytest
from compare_ptb import ask_java

from pellucid.evaluation import captions
from pellucid.evaluation.ptb import tokenise

ALPHABET = ["a", "man", "rides", "brown", "dog", "the", "on", "beach"]


def sentence(draw: random.Random, longest: int = 12, shortest: int = 1) -> list[str]:
    return [draw.choice(ALPHABET) for _ in range(draw.randint(shortest, longest))]


def corpus(draw: random.Random) -> tuple[list[list[str]], list[list[list[str]]]]:
    count = draw.randint(2, 12)
    said = [sentence(draw) for _ in range(count)]
    meant = [[sentence(draw) for _ in range(draw.randint(1, 5))] for _ in range(count)]
    for i in range(0, count, 3):  # some captions are right, so that long n-grams count too
        said[i] = list(meant[i][0])
    return said, meant


def official(said, meant):
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    truth = {i: [" ".join(other) for other in others] for i, others in enumerate(meant)}
    told = {i: [" ".join(one)] for i, one in enumerate(said)}
    bleu, _ = Bleu(4).compute_score(truth, told, verbose=0)
    return [*bleu, Rouge().compute_score(truth, told)[0], float(Cider().compute_score(truth, told)[0])]


def ours(said, meant):
    return [*captions.bleu(said, meant), captions.rouge_l(said, meant), captions.cider_d(said, meant)]


def test_every_metric_is_the_official_one():
    draw = random.Random(0)
    for _ in range(200):
        said, meant = corpus(draw)
        assert ours(said, meant) == pytest.approx(official(said, meant), rel=0, abs=1e-12)
    said[0] = said[0][::-1] + ["beach"]
    assert ours(said, meant) != pytest.approx(official(*corpus(draw)), rel=0, abs=1e-3)  # else the test says nothing


KEPT = Path(__file__).with_name("ptb_words.jsonl")


def test_words_are_those_that_the_official_tokenizer_gave():
    pairs = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    assert len(pairs) > 300
    assert [(line, tokenise(line)) for line, _ in pairs] == [(line, words) for line, words in pairs]


@pytest.mark.skipif(shutil.which("java") is None, reason="the official tokenizer needs Java")
def test_words_of_thousands_of_odd_captions_are_the_official_tokenizers():
    lines = [*odd_captions.captions(2000, seed=2), *ORDINARY]
    different = [
        (line, official, tokenise(line))
        for line, official in zip(lines, ask_java(lines), strict=True)
        if official != tokenise(line)
    ]
    assert not different, different[:5]


ORDINARY = (
    "A baseball player ready to bat., he stands at home plate.",
    "A man in a t-shirt isn't near the dog's bowl .",
    'The sign says " stop it " on a 4-wheeler at 7:30 p.m.',
    "Mr. Smith has 1,000 dogs, 3.5 cats & a half; who'd've thought?",
    "a photo of no. 5, Washington D.C., in the U.S.",
)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("ready to bat., he stands", ["ready", "to", "bat.", "he", "stands"]),
        ("ready to bat, he stands.", ["ready", "to", "bat", "he", "stands"]),
        ("Mr. Smith et al. at No. 5", ["mr.", "smith", "et", "al.", "at", "no.", "5"]),
        ("is it ill. Or is it Ill.?", ["is", "it", "ill", "or", "is", "it", "ill."]),
        ("ÉTÉ 猫🐈dog ½ ‘n’t", ["été", "猫", "dog", "1/2", "n't"]),
        ("see www.a.com/bc.", ["see", "www.a.com/bc"]),
        ("two\u2028lines\nin one", ["two", "lines", "in", "one"]),
        ("vitamin C.", ["vitamin", "c."]),
        ("'till 'em, 'cause 'he", ["'till", "'em", "'cause", "he"]),
        ("l'homme, c’est un li'l gov't", ["l'homme", "c’est", "un", "li'l", "gov", "t"]),
        ("s&Ls, s&m, AT&T", ["s&ls", "s", "&", "m", "at&t"]),
        ("PIC\u3000broccoli.comdr. 😀x.com", ["pic", "broccoli.com", "dr.", "😀x.com"]),
    ],
)
def test_words_that_look_odd_are_as_the_official_tokenizer_has_them(caption, words):
    assert tokenise(caption) == words


def test_the_exceptions_are_those_that_are_named():
    assert tokenise("ΟΔΟΣ") == ["οδος"]
    assert tokenise("ΟΔΟΣ-sign") == ["οδος-sign"]  # officially οδοσ-sign


def test_words_by_hand():
    assert tokenise("A man's dog doesn't bark.") == ["a", "man", "'s", "dog", "does", "n't", "bark"]
    assert tokenise("He cannot see the 'old' t-shirt...") == ["he", "can", "not", "see", "the", "old", "t-shirt"]
    assert tokenise("") == tokenise(" . , !") == []


def test_score_by_hand():
    found = captions.score(
        {"x": "a dog runs on grass", "y": "two cats"}, {"x": ["A dog runs on grass."], "y": ["Two cats!"]}
    )
    assert found["bleu1"] == pytest.approx(1.0)
    assert found["bleu4"] == pytest.approx(1.0, abs=1e-6)
    assert found["rouge_l"] == 1.0
    assert set(found) == {"bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider_d"}
    worse = captions.score(
        {"x": "a dog sleeps on grass", "y": "two cats"}, {"x": ["A dog runs on grass."], "y": ["Two cats!"]}
    )
    assert all(worse[name] < found[name] for name in found)


def test_an_empty_caption_scores_nothing_and_breaks_nothing():
    found = captions.score({"x": "", "y": "a cat"}, {"x": ["a dog"], "y": ["a cat"]})
    assert 0 < found["rouge_l"] < 1


@pytest.mark.parametrize(
    ("candidates", "references", "sentence"),
    [
        ({}, {}, "there are no captions to score"),
        ({"a": "x"}, {"b": ["x"]}, "captions without references: a"),
        ({"a": "x"}, {"a": []}, "images with an empty list of references: a"),
    ],
)
def test_what_can_not_be_scored_is_refused(candidates, references, sentence):
    with pytest.raises(ValueError, match=sentence):
        captions.score(candidates, references)
