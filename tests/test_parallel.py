"""Parallel text: where it comes from, what its pieces are, and which of it a step sees."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from pairs import all_pairs, write_folder

from pellucid.cli import main
from pellucid.data.parallel import MOST_LETTERS, ParallelData, list_splits, load_pairs, load_training, load_validation
from pellucid.data.subwords import SubwordTokenizer
from pellucid.data.text_inspection import holds_text
from pellucid.data.text_loader import TextLoader
from pellucid.data.tokenizer import END, PAD, SPECIAL, START, UNKNOWN

PAIRS = all_pairs()
ODD = ["", " ", "  zwei  Blanks ", 'Er sagt: "ja".', "œ漢🙂\u200b", "don't", "TAB\there", "<pad> <2de>"]


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "text")


def test_a_folder_has_splits_in_languages(folder):
    config = ParallelData(str(folder))
    (train,) = load_training(config)
    assert (len(train), train.sources[0], train.targets[0]) == (120, *PAIRS[0])
    validation = load_validation(config)
    assert validation is not None
    assert list(zip(validation.sources, validation.targets, strict=True)) == PAIRS[120:140]
    assert load_pairs(config, "test_new").sources == [source for source, _ in PAIRS[140:]]
    back = load_pairs(ParallelData(str(folder), source="de", target="en"), "train")
    assert (back.sources, back.targets, back.direction) == (train.targets, train.sources, ("de", "en"))
    assert list_splits(folder, ("en", "de")) == ["test_new", "train", "val"]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "translation", "named.tsv", "two files"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_gives_the_same_pairs(tmp_path, form, packed):
    pairs = [*PAIRS[:9], ("says \"yes, no\"", "sagt „ja, nein“")]  # fmt: skip
    texts = {
        "tsv": "".join(f"{a}\t{b}\n" for a, b in pairs),
        "named.tsv": "de\tid\ten\n" + "".join(f"{b}\t7\t{a}\n" for a, b in pairs),
        "csv": "".join(f'"{a.replace(chr(34), chr(34) * 2)}","{b}"\n' for a, b in pairs),
        "jsonl": "".join(json.dumps({"de": b, "en": a}) + "\n" for a, b in pairs),
        "translation": "".join(json.dumps({"translation": {"en": a, "de": b}}) + "\n" for a, b in pairs),
    }

    def written(name, text):
        path = tmp_path / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        return str(path)

    if form == "two files":
        sides = [written(f"x.{i}", "".join(pair[i] + "\r\n" for pair in pairs)) for i in (0, 1)]
        name = ",".join(sides)
    else:
        name = written({"translation": "t.jsonl"}.get(form, f"t.{form.rpartition('.')[2]}"), texts[form])
    found = load_pairs(ParallelData(name), "all")
    assert list(zip(found.sources, found.targets, strict=True)) == pairs


def test_what_is_held_out_of_a_file_is_never_trained_on(tmp_path):
    pairs = [*PAIRS[:30], (PAIRS[3][0], "noch einmal")]  # one sentence twice
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    config = ParallelData(str(path), held_out=8)
    (train,), validation = load_training(config), load_validation(config)
    assert validation is not None
    assert 8 <= len(validation) <= 9
    assert len(train) + len(validation) == 31
    assert not set(train.sources) & set(validation.sources)
    assert load_validation(ParallelData(str(path))) is None
    assert load_training(config) == [train]


def test_pairs_without_words_are_not_trained_on(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tb\n \tc\nd\t\ne\tf\n")
    (train,) = load_training(ParallelData(str(tmp_path / "t.tsv")))
    assert (train.sources, train.targets) == (["a", "e"], ["b", "f"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"a\tb\nc\n", "line 2 has 1 columns"),
        (b"a\tb\n\xff\xfe\tc\n", "line 2 is not UTF-8"),
        (b"x" * (MOST_LETTERS + 1) + b"\n", "line 1 has more than 16,384 letters"),
        (b"x" * (5 * MOST_LETTERS), "line 1 has more than 16,384 letters"),
    ],
)
def test_bad_tables_are_told_in_a_sentence(tmp_path, text, sentence):
    (tmp_path / "t.tsv").write_bytes(text)
    with pytest.raises(ValueError, match=sentence):
        load_training(ParallelData(str(tmp_path / "t.tsv")))


def test_bad_files_are_told_in_a_sentence(tmp_path, folder):
    (folder / "train.de").write_text("nur eine\n")
    with pytest.raises(ValueError, match=r"train\.en has 120 lines and .*train\.de 1"):
        load_training(ParallelData(str(folder)))
    (tmp_path / "t.jsonl").write_text('{"en": "a", "de": "b"}\n["a"]\n')
    with pytest.raises(ValueError, match='line 2: expected an object with "en" and "de"'):
        load_training(ParallelData(str(tmp_path / "t.jsonl")))
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" * 99)[:-20])
    with pytest.raises(ValueError, match="can't be read"):
        load_training(ParallelData(str(tmp_path / "t.tsv.gz")))
    with pytest.raises(ValueError, match="the splits there are: test_new, train, val"):
        load_pairs(ParallelData(str(folder)), "test")
    with pytest.raises(ValueError, match="is no parallel text"):
        load_training(ParallelData(str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match="expected a direction such as 'en-fr'"):
        ParallelData(also=("enfr",))
    (tmp_path / "one.tsv").write_text("a\tb\n")
    with pytest.raises(ValueError, match="held_out is 99, and there are 1 pairs"):
        load_training(ParallelData(str(tmp_path / "one.tsv"), held_out=99))


# Pieces of words


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    sentences = [sentence for pair in PAIRS for sentence in pair]
    return SubwordTokenizer.train(sentences, kind=request.param, size=320)


def test_what_is_decoded_is_what_was_encoded(tokenizer):
    for sentence in [*ODD, *(sentence for pair in PAIRS[:20] for sentence in pair)]:
        ids = tokenizer.encode(sentence)
        assert tokenizer.decode(ids) == sentence
        assert UNKNOWN not in ids
        assert not ids or min(ids) >= SPECIAL  # a name of a special token in a text is only text
        assert tokenizer.decode([START, *ids, END, 9, PAD]) == sentence
    assert tokenizer.encode_all(ODD) == [tokenizer.encode(sentence) for sentence in ODD]
    assert len(tokenizer.encode("a small dog")) < len(tokenizer.encode("q zxvvv jqk"))


def test_words_are_spelt_by_their_pieces(tokenizer):
    ids = tokenizer.source("Der kleine Hund, läuft.")
    words = tokenizer.words(ids)
    assert [word for word, _ in words] == ["Der", "kleine", "Hund", ",", "läuft", "."]
    places = [place for _, pieces in words for place in range(*pieces.indices(len(ids)))]
    assert places == sorted(set(places))
    for word, pieces in words:
        assert tokenizer.tokenizer.decode(ids[pieces]).strip() == word


def test_a_tokenizer_is_kept_whole(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode_all(ODD) == tokenizer.encode_all(ODD)
    assert len(again) == len(tokenizer)
    data = json.loads(tokenizer.to_json())
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(ValueError, match="another pre_tokenizer"):
        SubwordTokenizer.from_json(json.dumps(data))
    with pytest.raises(ValueError, match="no tokenizer of pieces"):
        SubwordTokenizer.from_json("[]")
    with pytest.raises(ValueError, match="is not there"):
        SubwordTokenizer.load(tmp_path / "no.json")


def test_languages_are_asked_for():
    texts = [sentence for pair in PAIRS for sentence in pair]
    several = SubwordTokenizer.train(texts, size=300, languages=["de", "fr"])
    assert list(several.languages) == ["de", "fr"]
    asked = several.source("a dog", "fr")
    assert asked == [several.languages["fr"], *several.encode("a dog"), END]
    assert several.decode(asked) == "a dog"
    with pytest.raises(ValueError, match="expected de, fr"):
        several.source("a dog", "es")
    one = SubwordTokenizer.train(texts, size=300)
    assert one.source("a dog", "whatever") == [*one.encode("a dog"), END]
    with pytest.raises(ValueError, match="size is 100; expected 262 or more"):
        SubwordTokenizer.train(texts, size=100)


# Batches


def sentences(lengths):
    """Each sentence its own number, so that it is known again."""
    sources = [[100 + i] * length for i, length in enumerate(lengths)]
    return sources, [[START, *source] for source in sources]


LENGTHS = [3, 4, 5, 5, 6, 9, 11, 13, 13, 17, 22, 30, 31, 7, 8, 2, 3]


@pytest.mark.parametrize("tokens", [32, 50, 400])
def test_every_sentence_comes_once_in_an_epoch(tokens):
    loader = TextLoader(*sentences(LENGTHS), tokens=tokens, seed=3)
    for epoch in (0, 1, 7):
        seen = []
        for (part,) in loader.batches(epoch * loader.steps, (epoch + 1) * loader.steps):
            assert part.source.numel() <= tokens
            rows = part.source[part.source[:, 0] != PAD]
            seen += rows[:, 0].tolist()
            for row, target in zip(part.source, part.target, strict=True):
                assert row[row != PAD].tolist() == target[target != PAD].tolist()[1:]
            assert part.words == (part.target[:, 1:] != PAD).sum()
            lengths = (rows != PAD).sum(1)
            assert lengths.max() - lengths.min() <= 8  # alike
        assert sorted(seen) == [100 + i for i in range(len(LENGTHS))]
    assert len({part.source.shape for (part,) in loader.batches(0, 3 * loader.steps)}) <= 6


def test_the_order_is_a_function_of_seed_and_step():
    one, two = (TextLoader(*sentences(LENGTHS), tokens=40, seed=seed) for seed in (1, 2))
    late = TextLoader(*sentences(LENGTHS), tokens=40, seed=1)
    steps = list(one.batches(0, 3 * one.steps))
    for step, (expected,) in list(enumerate(steps))[::-5]:  # in any order of asking
        ((part,),) = late.batches(step, step + 1)
        assert torch.equal(part.source, expected.source)
        assert torch.equal(part.target, expected.target)
    others = list(two.batches(0, 3 * one.steps))
    assert any(
        a.source.shape != b.source.shape or not torch.equal(a.source, b.source)
        for (a,), (b,) in zip(steps, others, strict=True)
    )


def test_processes_and_parts_share_a_batch():
    whole = TextLoader(*sentences(LENGTHS), tokens=128, seed=0, world=1, parts=4)
    shares = [TextLoader(*sentences(LENGTHS), tokens=128, seed=0, rank=rank, world=2, parts=2) for rank in (0, 1)]
    for step in range(whole.steps):
        ((*parts,),) = whole.batches(step, step + 1)
        first, second = (next(loader.batches(step, step + 1)) for loader in shares)
        split = [first[0], second[0], first[1], second[1]]
        for mine, theirs in zip(parts, split, strict=True):
            assert torch.equal(mine.source, theirs.source)
            assert mine.words == theirs.words
        total = sum(int((part.target[:, 1:] != PAD).sum()) for part in parts)
        assert all(part.words == total for part in parts)


def test_what_has_no_room_is_told():
    with pytest.raises(ValueError, match="expected room for the longest sentence, of 31"):
        TextLoader(*sentences(LENGTHS), tokens=40, seed=0, world=2)
    with pytest.raises(ValueError, match="a sentence has 600 tokens; expected up to 512"):
        TextLoader(*sentences([600]), tokens=1000, seed=0)
    with pytest.raises(ValueError, match="no sentences to train on"):
        TextLoader([], [], tokens=10, seed=0)


@pytest.mark.parametrize(
    ("line", "count", "sentence"),
    [
        (b"\n", 1 << 20, "it holds more than 524,288 lines"),
        (b"word " * 400 + b"\n", 1 << 14, "it holds more than 8,388,608 bytes"),
    ],
)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused_on_the_way(line, count, sentence, folder, capsys):
    for language in ("en", "de"):
        (folder / f"test.{language}.gz").write_bytes(gzip.compress(line * count))
    assert (folder / "test.en.gz").stat().st_size < 100_000
    assert main(["data", "inspect", str(folder), "--json"]) == 0
    count, (told,) = json.loads(capsys.readouterr().out)["problems"]["not put together"]
    assert count == 1
    assert sentence in told
    with pytest.raises(ValueError, match=sentence):
        load_pairs(ParallelData(str(folder)), "test")


# Inspection


def test_what_is_wrong_with_text_is_told(folder, capsys):
    assert main(["data", "inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "train: 120 pairs" in text
    assert "no problems found" in text
    sources = (folder / "val.en").read_text().splitlines()
    targets = (folder / "val.de").read_text().splitlines()
    train = (folder / "train.en").read_text().splitlines()
    sources[1], targets[2], targets[3], targets[4] = "", sources[2], "ein", "один старый человек"
    sources[3] = "a very very old man runs here and there"
    sources[5] = train[7]
    (folder / "val.en").write_text("\n".join(sources) + "\n")
    (folder / "val.de").write_text("\n".join(targets) + "\n")
    (folder / "test_new.de").write_text("nur eine\n")
    assert main(["data", "inspect", str(folder), "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {name: count for name, (count, _) in problems.items()} == {
        "not put together": 1,
        "an empty side": 1,
        "the same on both sides": 1,
        "odd lengths": 1,
        "letters of another script in the target": 1,
        "sources of train in another split": 1,
    }
    assert problems["an empty side"][1] == ["val line 2"]
    assert problems["letters of another script in the target"][1] == ["val line 5: один старый человек"]


PAIRED = {
    "named.tsv": ("en\tfr\nA man walks.\tUn homme marche.\n", ("en", "fr")),
    "named.csv": ('fr,en\n"Un homme, là.","A man, there."\n', ("en", "fr")),
    "plain.tsv": ("A man walks.\tEin Mann geht.\n", ("en", "de")),
    "nested.jsonl": ('\n{"translation": {"fr": "Un homme.", "cs": "Muž."}}\n', ("fr", "cs")),
}
CAPTIONED = {
    "flickr.tsv": "a dog.jpg#0\ta dog runs\n",
    "named.csv": "file_name,caption\na.jpg,a dog runs\n",
    "lines.jsonl": '{"image": "a.jpg", "caption": "a dog runs"}\n',
    "numbered.tsv": "id\ttext\n7\ta dog runs\n",
    "broken.jsonl": "{\n",
    "empty.tsv": "",
}


@pytest.mark.parametrize("name", PAIRED)
def test_a_table_of_pairs_is_inspected_in_its_languages(name, tmp_path, capsys):
    text, languages = PAIRED[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / f"train{Path(name).suffix}").write_text(text, encoding="utf-8")
    for place, split in ((tmp_path / name, "all"), (packed, "all"), (tmp_path / "splits", "train")):
        assert main(["data", "inspect", str(place), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert tuple(told["direction"]) == languages
        assert told["pairs"] == {split: 1}


@pytest.mark.parametrize("name", CAPTIONED)
def test_a_table_of_captions_is_no_table_of_pairs(name, tmp_path):
    (tmp_path / name).write_text(CAPTIONED[name], encoding="utf-8")
    assert not holds_text(str(tmp_path / name))
    assert not holds_text(str(tmp_path))


def test_sentences_in_the_other_language_are_told(folder, capsys):
    sources, targets = ((folder / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    sources[4], targets[4] = targets[4], sources[4]
    targets[9] = sources[10]  # not translated
    for side, lines in (("en", sources), ("de", targets)):
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n")
    assert main(["data", "inspect", str(folder), "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems["the source reads like the other language"] == [1, [f"train line 5: {sources[4]}"]]
    assert problems["the target reads like the other language"][0] == 2
    (folder / "train.de").write_text((folder / "train.en").read_text())  # one language on both sides: nobody can tell
    for name in folder.glob("val.*"):
        name.unlink()
    assert main(["data", "inspect", str(folder), "--json"]) == 0
    assert not [name for name in json.loads(capsys.readouterr().out)["problems"] if "reads like" in name]
