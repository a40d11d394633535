"""What a captioner's sureness is worth: learned from held-out captions, kept with the model, said with a caption."""

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from speaking import CAPTIONS, captioner, pictures

from pellucid.cli import main
from pellucid.data.captions import CaptionSet
from pellucid.data.images import ImageSet
from pellucid.data.tokenizer import START, CaptionTokenizer
from pellucid.decode.captions import Caption
from pellucid.evaluation.doubt import Doubt, name_things, share_said
from pellucid.ready import ReadyCaptioner, load_captioner
from pellucid.ready.captioner import choose_different

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))


@pytest.fixture(scope="module")
def speaker():
    tokenizer = CaptionTokenizer.train(CAPTIONS, min_count=1)
    return ReadyCaptioner(captioner(tokenizer), tokenizer)


def known(captions):
    images = ImageSet(pictures(), torch.zeros(5, dtype=torch.int64), ("image",))
    return CaptionSet(images, tuple((caption,) for caption in captions), tuple(map(str, range(5))))


def test_words_that_name_something_count_in_any_form():
    assert name_things("The dogs are running") == name_things("a dog runs") == {"dog", "run"}
    assert name_things("he rides") == name_things("they were riding") == name_things("ride")
    assert name_things("some grass") != name_things("some glass")
    assert share_said("a cat", ["a dog", "some birds"]) == 0.0
    assert share_said("a cat", ["a dog", "many cats"]) == 1.0
    assert share_said("it is on the", ["a dog"]) == 1.0  # it claims nothing


def test_what_is_expected_never_falls_and_is_the_mean_of_what_was_there():
    said = [0.2, 0.0, 0.5, 0.4, 0.9, 1.0]
    doubt = Doubt.fit([-6, -5, -4, -3, -2, -1], said, groups=6)
    assert doubt.said == (0.1, 0.1, 0.45, 0.45, 0.9, 1.0)
    assert sum(doubt.said) == pytest.approx(sum(said))
    assert [doubt.expect(score) for score in (-60, -2, 0)] == [0.1, 0.9, 1.0]
    shuffled = Doubt.fit([-3, -6, -1, -5, -2, -4], [0.4, 0.2, 1.0, 0.0, 0.9, 0.5], groups=6)
    assert shuffled == doubt
    backwards = Doubt.fit([-6, -5, -4, -3, -2, -1], said[::-1], groups=6)  # the twin: nothing is to be learned
    assert len(set(backwards.said)) == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"scores": [], "said": []}, "expected as many, one at least"),
        ({"scores": [-1.0], "said": [0.5, 0.6]}, "1 scores and 2 shares"),
        ({"scores": [-1.0, -2.0], "said": [0.5, 0.6]}, "ascending order"),
        ({"scores": [-1.0], "said": [1.5]}, "shares, 0…1"),
        ({"scores": [-1.0]}, "lacks said"),
    ],
)
def test_a_damaged_file_is_one_sentence(fields, sentence, tmp_path):
    (tmp_path / "doubt.json").write_text(json.dumps(fields | {"images": 2}))
    with pytest.raises(ValueError, match=sentence) as error:
        Doubt.load(tmp_path)
    assert str(tmp_path / "doubt.json") in str(error.value)


def test_of_other_weights_nothing_is_known(tmp_path, caplog):
    Doubt((-1.0,), (0.5,), 10, step=100).save(tmp_path)
    assert Doubt.load(tmp_path, 100) is not None
    assert Doubt.load(tmp_path, 200) is None
    assert "measured after step 100" in caplog.text
    assert Doubt.load(tmp_path / "nowhere") is None


def test_a_captioner_learns_how_much_of_its_captions_is_right(speaker, tmp_path):
    """It knows its pictures by heart: of true captions everything is expected, of others' hardly anything."""
    try:
        assert speaker.learn_doubt(known(CAPTIONS)).said[-1] == 1.0
        (best,) = speaker.caption(pictures()[0])
        assert (best.expected, best.unsure, best.to_json()["expected"]) == (1.0, False, 1.0)
        wrong = speaker.learn_doubt(known((*CAPTIONS[1:], CAPTIONS[0])))
        (best,) = speaker.caption(pictures()[0])
        assert best.unsure
        assert best.expected == wrong.expect(best.score) < 0.5
        speaker.save(tmp_path / "kept")
        (again,) = load_captioner(tmp_path / "kept").caption(pictures()[0])
        assert again.expected == pytest.approx(best.expected, abs=1e-6)
        with pytest.raises(ValueError, match="test images only test"):
            speaker.learn_doubt(known(CAPTIONS), "test")
    finally:
        speaker.doubt = None
    (best,) = speaker.caption(pictures()[0])
    assert (best.expected, best.unsure) == (None, False)


def test_the_command_says_when_it_is_unsure(speaker, tmp_path, capsys):
    speaker.save(tmp_path / "model")
    Image.fromarray(pictures()[0].permute(1, 2, 0).numpy()).save(tmp_path / "0.png")
    words = ["caption", str(tmp_path / "model"), str(tmp_path / "0.png")]
    for share, told in ((0.31, "  (unsure: people would say about 3 in 10 of these words)"), (0.7, "")):
        Doubt((-1.0,), (share,), 10).save(tmp_path / "model")
        assert main(words) == 0
        assert capsys.readouterr().out == f"{tmp_path / '0.png'}  {CAPTIONS[0]}{told}\n"


def test_the_benchmark_tests_what_it_fits_on_other_captions():
    from doubt import correlate, tabulate

    rows = [
        {
            "text": "a dog" if i % 3 else "a cat",
            "references": ["a dog"],
            "said": float(i % 3 > 0),
            "probability of a token": (i % 3 > 0) - i / 100,
            "noise": float(i % 7),
        }
        for i in range(60)
    ]
    groups, signs = tabulate(rows)
    assert sum(row["captions"] for row in groups.rows if "of" in row["how sure"]) == 30  # every second one
    least, most = groups.rows[0], groups.rows[4]
    assert (least["said by people"], most["said by people"]) == (0.0, 1.0)
    assert {row["sign"] for row in signs.rows} == {"probability of a token", "noise"}
    assert correlate([1, 2, 3], [5, 6, 9]) == pytest.approx(1.0)
    assert correlate([1, 2, 2, 3], [4, 3, 3, 1]) == pytest.approx(-1.0)


# Captions that name different things, and words that it needn't have said


def test_captions_are_different_if_they_name_different_things(speaker):
    def said(text):
        return Caption(text, tuple(text.split()), -1.0, -1.0, (), torch.tensor([6]), torch.zeros(1))

    texts = ["a red dog runs", "the red dog is running", "a red cat on grass", "a cat on the grass", "birds"]
    assert [str(each) for each in choose_different([*map(said, texts)], 3)] == [texts[0], texts[2], texts[4]]
    assert [str(each) for each in choose_different([*map(said, texts)], 2)] == [texts[0], texts[2]]
    best = speaker.caption(pictures()[0], n_best=3, different=True)
    assert best[0].text == CAPTIONS[0]
    names = [name_things(each.text) for each in best]
    assert all(len(a & b) <= len(a | b) / 2 for i, a in enumerate(names) for b in names[:i])


def test_a_word_is_forced_where_it_fits_best(speaker):
    """Against the model asked place by place, in one pass for each."""
    picture = pictures()[0]
    unsaid = speaker.look_for(picture, "cat")
    inside = speaker.reader.prepare(torch.stack([picture, speaker.reader.blank()]), speaker.model)
    (number,) = speaker.tokenizer.encode("cat")
    words = speaker.tokenizer.encode(CAPTIONS[0])
    shares = []
    for place in range(len(words) + 1):
        with torch.no_grad():
            logits = speaker.model(inside, torch.tensor([[START, *words[:place]]] * 2))
        shares.append(logits[:, -1].softmax(-1)[:, number].tolist())
    best = max(range(len(shares)), key=lambda place: shares[place][0])
    assert unsaid.after == tuple(CAPTIONS[0].split()[:best])
    assert [unsaid.probability, unsaid.blank] == pytest.approx(shares[best], rel=1e-4)
    assert unsaid.gain == pytest.approx(shares[best][0] / shares[best][1], rel=1e-4)
    assert unsaid.map.values.shape == (8,)  # two registers, six patches


def test_of_what_is_there_the_picture_makes_a_word_likelier(speaker):
    dog, cat = pictures()[0], pictures()[1]
    gains = [speaker.look_for(picture, "dog", caption=CAPTIONS[0]).gain for picture in (dog, cat)]
    assert gains[0] > gains[1]
    assert speaker.look_for(dog, "dog", caption=CAPTIONS[0]).after == ("a", "red")
    reds = [speaker.look_for(dog, word).map.values for word in ("dog", "birds")]
    assert not torch.allclose(*reds)  # the map is the word's own


@pytest.mark.parametrize("word", ["zebra", "red dog", "", "<end>"])
def test_a_word_that_it_does_not_know_is_one_sentence(word, speaker):
    with pytest.raises(ValueError, match="is no word that this captioner knows; it knows"):
        speaker.look_for(pictures()[0], word)


def test_words_in_pieces_are_forced_piece_by_piece():
    tokenizer = CaptionTokenizer.train(CAPTIONS, kind="bpe", size=24)
    speaker = ReadyCaptioner(captioner(tokenizer), tokenizer)
    pieces = tokenizer.encode("birds")
    assert len(pieces) > 1
    unsaid = speaker.look_for(pictures()[4], "birds")
    assert (unsaid.word, unsaid.after) == ("birds", ())
    assert unsaid.probability > 0.5 > unsaid.blank


def test_the_command_tells_of_words_and_draws_them(speaker, tmp_path, capsys):
    speaker.save(tmp_path / "model")
    Image.fromarray(pictures()[0].permute(1, 2, 0).numpy()).save(tmp_path / "0.png")
    words = ["caption", str(tmp_path / "model"), str(tmp_path / "0.png")]
    assert main([*words, "--about", "dog", "cat", "--figure", str(tmp_path / "about.png")]) == 0
    _, dog, cat, figure = capsys.readouterr().out.splitlines()
    assert dog.startswith("  dog: 9")
    assert " after 'a red', " in dog
    assert cat.startswith("  cat: ")
    assert figure.endswith("about.png")
    assert (tmp_path / "about.png").stat().st_size > 1000
    assert main([*words, "--about", "dog", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["about"][0]["after"] == ["a", "red"]
    assert main([*words, "--about", "zebra"]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "'zebra' is no word" in said.err
    assert said.out == ""
    assert main([*words, "--n-best", "3", "--different", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert 1 <= len(found["captions"]) <= 3
