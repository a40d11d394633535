"""Caption metrics, against the official scorer (pycocoevalcap; its tokenizer needs Java)."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from pellucid.evaluation import captions
from pellucid.evaluation.ptb import DROPPED, tokenise

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


TEMPLATES = (
    "A {} in a t-shirt isn't near the {}'s {} .",
    'The sign says " {} {} " on a 4-wheeler at 7:30 p.m.',
    "Two {}s (one {}) cannot jump -- they're gonna fall!",
    "Mr. {} has 1,000 {}s, 3.5 {}s & a half; who'd've thought?",
    "Washington D.C. is where the {} won 2nd place: {}/{} ...",
    "A slip 'n' slide, a rock-'n'-roll {} and a [blue] {} at $5 (50%).",
    "{}\u2019s {} doesn\u2019t bark \u2014 \u201cnever\u201d, said {}.",
    "  {}   {}. {}",
    "St. {} and the U.S. {} team #1 @ home",
)


@pytest.mark.skipif(shutil.which("java") is None, reason="the official tokenizer needs Java")
def test_words_are_the_official_tokenizers(tmp_path):
    import pycocoevalcap

    draw = random.Random(1)
    lines = [
        template.format(*(draw.choice(ALPHABET) for _ in range(template.count("{}"))))
        for template in TEMPLATES
        for _ in range(60)
    ]
    (tmp_path / "captions.txt").write_text("\n".join(lines), encoding="utf-8")
    jar = Path(pycocoevalcap.__path__[0]) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    told = subprocess.run(
        [*command, "-preserveLines", "-lowerCase", "captions.txt"], cwd=tmp_path, capture_output=True, check=True
    ).stdout.decode()
    different = [
        (line, wanted, tokenise(line))
        for line, tokens in zip(lines, told.split("\n"), strict=False)
        if (wanted := [token for token in tokens.split() if token not in DROPPED]) != tokenise(line)
    ]
    assert len(different) <= 0.001 * len(lines), different[:5]


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
