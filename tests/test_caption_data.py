"""Captioned images: every format that they come in, what is left out of them, and what is told about them."""

import csv
import io
import json
import logging
import random
import re
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from pellucid.cli import main
from pellucid.data import (
    CaptionData,
    CaptionSet,
    ImageSet,
    LazyImageSet,
    decode,
    listings,
    load_captions,
)
from pellucid.data.caption_inspection import inspect_captions
from pellucid.data.scenes import SceneConfig

SIZE = (8, 8)
SPLITS = {"train": 4, "val": 2, "test": 2}


def picture(seed, mode="RGB", height=10, width=14):
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode)


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def image_bytes(seed):
    """An image and its suffix: all sorts of files, one after the other."""
    deep = Image.fromarray(np.random.default_rng(seed).integers(0, 1 << 16, (10, 14), dtype=np.uint16))
    frames = {"save_all": True, "append_images": [picture(seed + 500)]}
    return (
        lambda: (encoded(picture(seed), "PNG"), "png"),
        lambda: (encoded(picture(seed), "WEBP", lossless=True), "webp"),
        lambda: (encoded(picture(seed, "CMYK"), "JPEG"), "jpg"),
        lambda: (encoded(deep, "PNG"), "png"),
        lambda: (encoded(picture(seed), "GIF", **frames), "gif"),
        lambda: (encoded(picture(seed), "WEBP", lossless=True, **frames), "webp"),
        lambda: (encoded(picture(seed, "L"), "PNG"), "png"),
        lambda: (encoded(picture(seed, "RGBA"), "PNG"), "png"),
    )[seed % 8]()


def said_of(i):
    return [f'A 狗, number {i}, says "hello".', f"Ein süßer Hund № {i}"][: 1 + i % 2]


def samples():
    """(split, file name, bytes, captions) of eight images."""
    made = []
    for split, count in SPLITS.items():
        for _ in range(count):
            i = len(made)
            content, suffix = image_bytes(i)
            made.append((split, f"im_{i}.{suffix}", content, said_of(i)))
    return made


SAMPLES = samples()


def write_images(folder, chosen=SAMPLES):
    folder.mkdir(parents=True, exist_ok=True)
    for _, name, content, _ in chosen:
        (folder / name).write_bytes(content)


def write_tar(path, contents):
    with tarfile.open(path, "w") as tar:
        for name, content in contents:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def karpathy(root, tar=False):
    images = [
        {"filename": name, "imgid": i, "split": "restval" if i == 1 else split, "sentences": [{"raw": s} for s in said]}
        for i, (split, name, _, said) in enumerate(SAMPLES)
    ]
    (root / "dataset_mine.json").write_text(json.dumps({"dataset": "mine", "images": images}))
    if tar:
        write_tar(root / "images.tar", [(name, content) for _, name, content, _ in SAMPLES])
    else:
        write_images(root / "pictures" / "all")
    return root


def karpathy_tar(root):
    return karpathy(root, tar=True)


def coco(root):
    (root / "annotations").mkdir()
    for split in SPLITS:
        chosen = [each for each in SAMPLES if each[0] == split]
        write_images(root / f"{split}2017", chosen)
        images = [{"id": int(name[3]), "file_name": name} for _, name, _, _ in chosen]
        said = [{"id": 1, "image_id": int(name[3]), "caption": s} for _, name, _, each in chosen for s in each]
        content = {"info": {}, "images": images, "annotations": said}
        (root / "annotations" / f"captions_{split}2017.json").write_text(json.dumps(content))
    (root / "annotations" / "instances_train2017.json").write_text('{"images": [{"id": 1}], "annotations": [{}]}')
    return root


def tokens(root):
    write_images(root / "Flicker8k_Dataset")
    lines = [f"{name}#{i}\t{s}" for _, name, _, said in SAMPLES for i, s in enumerate(said)]
    (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    (root / "Flickr8k.lemma.token.txt").write_text("other.jpg#0\tdog\n")
    for split, called in {"train": "train", "val": "dev", "test": "test"}.items():
        names = [name for each, name, _, _ in SAMPLES if each == split]
        (root / f"Flickr_8k.{called}Images.txt").write_text("\n".join(names) + "\n")
    return root


def kaggle(root, header=True):
    write_images(root / "Images")
    with (root / "captions.txt").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("image", "caption")] * header)
        writer.writerows((name, s) for _, name, _, said in SAMPLES for s in said)
    return root


def kaggle_bare(root):
    return kaggle(root, header=False)


def metadata(root):
    for split, folder in {"train": "train", "val": "validation", "test": "test"}.items():
        chosen = [each for each in SAMPLES if each[0] == split]
        write_images(root / folder, chosen)
        lines = [{"file_name": name, ("captions", "text")[len(said) == 1]: said if len(said) > 1 else said[0]}
                 for _, name, _, said in chosen]  # fmt: skip
        (root / folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root


def metadata_flat(root):
    write_images(root)
    lines = [{"file_name": name, "captions": said} for _, name, _, said in SAMPLES]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root


def shards(root):
    for split in SPLITS:
        contents = []
        for each, name, content, said in SAMPLES:
            if each == split:
                text = json.dumps({"caption": said}).encode() if split == "val" else "\n".join(said).encode()
                contents += [(name, content), (f"{name[:4]}.{'json' if split == 'val' else 'txt'}", text)]
        write_tar(root / f"{split}-000.tar", contents)
    return root


def one_shard(root):
    contents = [
        pair
        for _, name, content, said in SAMPLES
        for pair in ((name, content), (f"{name[:4]}.txt", "\n".join(said).encode()))
    ]
    write_tar(root / "mine-0.tar", contents)
    return root / "mine-{0..0}.tar"


def blip(root):
    write_images(root / "images")
    for split in SPLITS:
        entries = [
            {
                "image": f"coco/images/{name}" if i else f"{root}/images/{name}",
                "caption": said if split != "train" else s,
            }
            for i, (each, name, _, said) in enumerate(SAMPLES)
            if each == split
            for s in (said if split == "train" else said[:1])  # one caption an entry, as BLIP trains
        ]
        (root / f"mine_karpathy_{split}.json").write_text(json.dumps(entries))
    return root / "mine_karpathy_val.json"


def beside(root):
    for split, name, content, said in SAMPLES:
        (root / split / "deep").mkdir(parents=True, exist_ok=True)
        (root / split / "deep" / name).write_bytes(content)
        (root / split / "deep" / f"{name[:4]}.txt").write_text("\n".join(said) + "\n\n")
    return root


SPLIT = (karpathy, karpathy_tar, coco, tokens, metadata, shards, blip, beside)
UNSPLIT = (kaggle, kaggle_bare, metadata_flat, one_shard)
TOLD = {
    "karpathy": "Karpathy's splits",
    "karpathy_tar": "Karpathy's splits",
    "coco": "COCO captions",
    "tokens": "lines of image#0 and caption",
    "metadata": "metadata.jsonl of each split",
    "shards": "WebDataset, 3 shards",
    "blip": "list of images and captions",
    "beside": "images with .txt beside them",
    "kaggle": "a table parted by commas, the image from column 'image', its captions from 'caption'",
    "kaggle_bare": "lines of image,caption",
    "metadata_flat": "metadata.jsonl",
    "one_shard": "WebDataset, 1 shards",
}


def load(path, **options):
    return load_captions(CaptionData(str(path), size=SIZE, **options))


def number(name):
    return int(re.search(r"im_(\d)|^(\d)$", name).group().lstrip("im_"))


def parts(splits):
    return {"train": splits.train, "val": splits.validation, "test": splits.test}


def check(part):
    for name, captions, pixels in zip(part.ids, part.captions, part.images.read(torch.arange(len(part))), strict=True):
        _, _, content, said = SAMPLES[number(name)]
        assert captions == tuple(said)
        torch.testing.assert_close(pixels, decode(content, SIZE, fit="stretch"), rtol=0, atol=0)


@pytest.mark.parametrize("write", SPLIT, ids=lambda write: write.__name__)
def test_a_format_with_splits_is_read_as_it_was_written(write, tmp_path):
    splits = load(write(tmp_path), strict=True)
    for split, part in parts(splits).items():
        assert sorted(map(number, part.ids)) == [i for i, each in enumerate(SAMPLES) if each[0] == split]
        assert isinstance(part.images, ImageSet)
        assert part.images.classes == ("picture",)
        check(part)


@pytest.mark.parametrize("write", UNSPLIT, ids=lambda write: write.__name__)
def test_a_format_without_splits_is_split_by_a_hash(write, tmp_path, caplog):
    caplog.set_level(logging.INFO, "pellucid")
    path = write(tmp_path)
    splits = load(path, strict=True)
    assert [len(part) for part in parts(splits).values()] == [6, 1, 1]
    assert "split by a hash of the images' names: 6 train, 1 test, 1 validation" in caplog.text
    assert sorted(number(name) for part in parts(splits).values() for name in part.ids) == list(range(8))
    for part in parts(splits).values():
        check(part)
    assert [part.ids for part in parts(load(path)).values()] == [part.ids for part in parts(splits).values()]


@pytest.mark.parametrize("write", SPLIT + UNSPLIT, ids=lambda write: write.__name__)
def test_a_format_is_inspected_by_the_command(write, tmp_path, capsys):
    path = write(tmp_path)
    assert main(["data", "inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path}: {TOLD[write.__name__]}, 8 images, 12 captions\n")
    assert said.endswith("no problems\n")
    assert main(["data", "inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(part["captions"] for part in found["splits"].values()) == 12
    assert found["sizes"] == [{"height": 10, "width": 14, "images": 8}]
    assert found["shape"] == [3, 64, 64]


def test_images_that_do_not_fit_in_memory_are_the_same(tmp_path, monkeypatch):
    path = coco(tmp_path)
    expected = load(path)
    monkeypatch.setattr(listings, "IN_MEMORY", 0)
    for one, other in zip(parts(load(path)).values(), parts(expected).values(), strict=True):
        assert isinstance(one.images, LazyImageSet)
        check(one.subset(torch.tensor([-1])))
        assert (one.ids, one.captions) == (other.ids, other.captions)


def test_a_broken_image_is_left_out_or_white_and_never_another(tmp_path, monkeypatch, caplog):
    path = karpathy(tmp_path)
    broken = tmp_path / "pictures" / "all" / SAMPLES[0][1]
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"1 of 8 images can't be read, more than 1%; the first: .*im_0.png can't be"):
        load(path)
    monkeypatch.setattr("pellucid.data.caption_sources.Unreadable.check", lambda *_: None)
    train = load(path).train
    assert sorted(map(number, train.ids)) == [1, 2, 3]
    check(train)
    monkeypatch.setattr(listings, "IN_MEMORY", 0)
    lazy = load(path).train.images
    assert lazy.read(torch.tensor([0])).unique().tolist() == [255]
    assert lazy.subset(torch.tensor([0, 1])).read(torch.tensor([0])).unique().tolist() == [255]
    assert "left out: " in caplog.text
    report = inspect_captions(CaptionData(str(path)))
    assert report.splits["train"].images == 4  # a lazy set keeps its place
    assert any("im_0.png can't be read" in problem for problem in report.problems)


def many(root, count=100, **changes):
    """A set large enough that one image is 1 % of it; `changes`: what an entry has instead."""
    write_images(root / "images", [("", f"{i}.png", SAMPLES[0][2], ()) for i in range(count)])
    entries = [{"image": f"{i}.png", "caption": [f"number {i}", "a dog"]} for i in range(count)]
    for i, change in changes.items():
        entries[int(i[1:])] |= change
    (root / "mine.json").write_text(json.dumps(entries))
    return root


PROBLEMS = {
    "images that are not there": {"image": "none.png"},
    "images without a caption": {"caption": []},
    "empty captions": {"caption": ["", " \t", "a cat"]},
    "captions that are no readable text": {"caption": ["a \ud800 cat", "a cat"]},
    "captions with control characters": {"caption": ["a \x1b[31mcat\u202e", "a\tcat\n"]},
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_what_is_wrong_is_counted_named_and_left_out(kind, tmp_path, caplog):
    path = many(tmp_path, _3=PROBLEMS[kind])
    splits = load(path)
    captions = {
        name: said for part in parts(splits).values() for name, said in zip(part.ids, part.captions, strict=True)
    }
    kept = {"images that": None, "images wi": None, "captions with": ("a [31mcat", "a cat")}
    expected = next((kept[start] for start in kept if kind.startswith(start)), ("a cat",))
    assert captions.get("3.png") == expected
    assert len(captions) == 99 + (expected is not None)
    said = next(record.message for record in caplog.records if kind in record.message)
    assert re.search(rf"{'2' if kind == 'empty captions' else '1'} {kind}: '(3|none).png", said)
    assert [problem for problem in inspect_captions(CaptionData(str(path))).problems if kind in problem]
    with pytest.raises(ValueError, match=f"there are {kind}, the first: '(3|none).png"):
        load(path, strict=True)


def test_more_than_one_percent_missing_is_an_error(tmp_path):
    load(many(tmp_path, _3={"image": "a"}))
    with pytest.raises(ValueError, match=r"has 2 images that are not there, more than 1% of 100; the first: 'a'"):
        load(many(tmp_path, _3={"image": "a"}, _4={"image": "b"}))
    bad = {f"_{i}": {"caption": ["a \ud800"] * 2} for i in range(2)}
    with pytest.raises(ValueError, match=r"has 4 captions that are no readable text, more than 1% of 200"):
        load(many(tmp_path, **bad))


def test_text_that_is_not_utf8(tmp_path):
    path = kaggle(tmp_path) / "captions.txt"
    path.write_bytes(b"image,caption\n" + b"".join(f"im_{i}.x,süß\n".encode("latin-1") for i in range(8)))
    with pytest.raises(ValueError, match="images that are not there"):
        load(path)
    path.write_bytes("\n".join(f"{name},ein süßer Hund" for _, name, _, _ in SAMPLES).encode("utf-16"))
    assert set(load(path).train.captions) == {("ein süßer Hund",)}
    path.write_bytes("\n".join(f"{name},ein süßer Hund" for _, name, _, _ in SAMPLES).encode("latin-1"))
    with pytest.raises(ValueError, match="has 8 captions that are no readable text, more than 1% of 8"):
        load(path)


TABLES = {
    "a comma that is not quoted": ("{},a dog, a cat\n", "a dog, a cat"),
    "a quotation that is not closed": ('{},"a dog, a cat\n', "a dog, a cat"),
    "a sentence in two lines": ('{},"a dog\nruns"\n', "a dog runs"),
    "quotation marks": ('{},"a ""dog"", a cat"\r\n', 'a "dog", a cat'),
    "control characters that end lines": ("{},a dog\x1ca cat\u2028\x85\n", "a dog a cat"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_as_people_write_them(kind, tmp_path):
    line, said = TABLES[kind]
    path = kaggle(tmp_path) / "captions.txt"
    path.write_bytes("".join(line.format(name) for _, name, _, _ in SAMPLES).encode())
    assert set(load(path).train.captions) == {(said,)}
    rows = "".join(f"{name},{i},a dog\n" for i, (_, name, _, _) in enumerate(SAMPLES))
    path.write_text("image_name,comment_number,comment\n" + rows)
    assert set(load(path, strict=True).train.captions) == {("a dog",)}


# Tables by their columns: the header, a row with {} for the image, and what inspect says of it


COLUMNS = {
    "file,caption": ("{},a dog", "the image from column 'file', its captions from 'caption'"),
    "image_path,caption": ("{},a dog", "the image from column 'image_path', its captions from 'caption'"),
    "name\tcaption": ("{}\ta dog", "a table parted by tabs, the image from column 'name'"),
    "\ufeffCaption;Image Path": ("a dog;{}", "a table parted by semicolons, the image from column 'Image Path'"),
    ",imageName,split,sentence,source": (
        "7,{},{split},a dog,web",
        "'imageName', its captions from 'sentence', its split",
    ),
    "image_name| comment_number| comment": ("{}| 0| a dog", "parted by bars, the image from column 'image_name'"),
    "photo,description,title": ("{},a dog,none", "the image from column 'photo', its captions from 'description'"),
    "image,text,caption": ("{},none,a dog", "the image from column 'image', its captions from 'caption'"),
    "image,file_name,caption": ("{0},{0},a dog", "the image from column 'file_name'"),
    "id,image,caption": ("17,{},a dog", "the image from column 'image'"),
    "image_id,label": ("{stem},a dog", "the image from column 'image_id', its captions from 'label'"),
    "first,second": ("{},a dog", "the image from column 'first', its captions from 'second'"),
    "sep=;\nimage;text": ("{};a dog", "parted by semicolons, the image from column 'image', its captions from 'text'"),
    '"file","caption"': ('"{}","a\n dog"', "a table parted by commas, the image from column 'file'"),
}


def write_table(folder, header, line, name="table.csv"):
    write_images(folder / "images")
    rows = [line.format(each, stem=each[:4], split=split) for split, each, _, _ in SAMPLES]
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("header", COLUMNS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_columns_are_known_by_many_names_and_inspect_says_which_were_taken(header, end, tmp_path, capsys):
    line, said = COLUMNS[header]
    path = write_table(tmp_path, header, line)
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    splits = load(path, strict=True)
    assert {sentence for part in parts(splits).values() for each in part.captions for sentence in each} == {"a dog"}
    assert sum(map(len, parts(splits).values())) == 8
    assert sorted(map(number, splits.test.ids)) == [6, 7] or "split" not in header
    assert main(["data", "inspect", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert said in first
    assert "8 images, 8 captions" in first


def test_several_columns_of_captions_are_all_read(tmp_path):
    header = "caption_0,image,caption_1,caption_2"
    path = write_table(tmp_path, header, 'a dog,{},"a dog, running",')
    assert set(load(path, strict=True).train.captions) == {("a dog", "a dog, running")}
    path = write_table(tmp_path, header.replace("caption_2", "text"), "a dog,{},a cat,none")
    assert set(load(path, strict=True).train.captions) == {("a dog", "a cat")}


UNCLEAR = {
    "image,text,comment": (
        "{},a,b",
        "has several columns that could be the caption, 'text', 'comment'; rename the right",
    ),
    "image,caption,caption": ("{},a,b", "several columns that could be the caption, 'caption', 'caption'; rename"),
    "image,file,caption": (
        "{0},{0},a",
        "several columns that could name the image, 'image', 'file'; rename the right one",
    ),
    "file_name,file name,caption": ("{0},{0},a", "rename the right one 'file_name' and the others otherwise"),
    "image,colour,size": (
        "{},a,b",
        "has the columns 'image', 'colour', 'size', and none is known as the caption; rename",
    ),
    "x,y,caption": ("1,2,a", "has the columns 'x', 'y', 'caption', and none is known to name the image; rename it"),
    "url,caption": ("https://a.org/{},a", "names images by their address, 'https://a.org/im_0.png'; fetch them"),
}


@pytest.mark.parametrize("header", UNCLEAR)
def test_columns_that_could_be_read_in_two_ways_are_asked_about(header, tmp_path, capsys):
    line, sentence = UNCLEAR[header]
    path = write_table(tmp_path, header, line)
    assert main(["data", "inspect", str(path)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    with pytest.raises(ValueError, match=r"table\.csv "):
        load(path)


def test_a_folder_with_two_tables_is_asked_about(tmp_path):
    write_table(tmp_path, "file,caption", "{},a dog", "captions_train.csv")
    assert len(load(tmp_path).train)
    write_table(tmp_path, "file,caption", "{},a dog", "captions_val.csv")
    with pytest.raises(ValueError, match=r"several tables of captions, '.*train.csv', '.*val.csv'; name one file"):
        load(tmp_path)


def test_captions_and_images_that_are_there_twice_are_told(tmp_path):
    path = write_table(tmp_path, "split,file,caption", "{split},{},a dog")
    assert inspect_captions(CaptionData(str(path))).repeated == (
        "1 captions of several images, most often 'a dog', of 8",
    )
    lines = [f"{split},{name},number {i}" for i, (split, name, _, _) in enumerate(SAMPLES)]
    path.write_text("\n".join(["split,file,caption", *lines]))
    assert inspect_captions(CaptionData(str(path))).repeated == ()
    path.write_text("\n".join(["split,file,caption", *lines, lines[2]]))
    (tmp_path / "images" / "im_1.webp").write_bytes((tmp_path / "images" / "im_0.png").read_bytes())
    inspection = inspect_captions(CaptionData(str(path)))
    assert inspection.repeated == (
        "1 captions more than once of one image: 'number 2' of 'im_2.jpg'",
        "1 train images under several names: 'im_0.png', 'im_1.webp'",
    )
    assert "repeated: 1 train images under several names" in str(inspection)


def test_an_image_in_two_lists(tmp_path, caplog):
    path = tokens(tmp_path)
    with (tmp_path / "Flickr_8k.trainImages.txt").open("a") as file:
        file.write("im_7.png\n")
    assert sorted(map(number, load(path).test.ids)) == [6, 7]
    assert "1 images in two splits: 'im_7.png'" in caplog.text


def test_an_image_in_two_splits_stays_where_it_judges(tmp_path, caplog):
    path = karpathy(tmp_path) / "dataset_mine.json"
    content = json.loads(path.read_text())
    content["images"].append(content["images"][7] | {"split": "train", "sentences": [{"raw": "cheating"}]})
    content["images"].append(content["images"][0] | {"split": "test"})
    path.write_text(json.dumps(content))
    splits = load(path)
    assert sorted(map(number, splits.train.ids)) == [1, 2, 3]
    assert sorted(map(number, splits.test.ids)) == [0, 6, 7]
    check(splits.test)
    assert "2 images in two splits: 'im_7.png', 'im_0.png'" in caplog.text
    with pytest.raises(ValueError, match="there are images in two splits"):
        load(path, strict=True)


def test_the_same_pixels_in_two_splits_are_told(tmp_path):
    path = karpathy(tmp_path)
    folder = tmp_path / "pictures" / "all"
    (folder / "im_6.png").write_bytes((folder / "im_0.png").read_bytes())
    assert "1 of the test images are also in train" in inspect_captions(CaptionData(str(path))).problems


def test_images_in_no_list_are_told_and_are_no_error(tmp_path, caplog):
    path = tokens(tmp_path)
    lists = tmp_path / "Flickr_8k.trainImages.txt"
    lists.write_text(lists.read_text().replace("im_0.png\n", ""))
    assert sorted(map(number, load(path, strict=True).train.ids)) == [1, 2, 3]
    assert "1 images in none of the split lists: 'im_0.png'" in caplog.text
    lists.write_text(lists.read_text() + "nobody.jpg\n")
    with pytest.raises(ValueError, match=r"images that are not there, more than 1% of 8; the first: 'nobody.jpg'"):
        load(path)


def test_long_captions_are_kept_and_named(tmp_path):
    path = many(tmp_path, count=20, _3={"caption": "very " * 10_000 + "long"}, _4={"caption": "…"})
    splits = load(path)
    captions = {
        name: said for part in parts(splits).values() for name, said in zip(part.ids, part.captions, strict=True)
    }
    assert len(captions["3.png"][0].split()) == 10_001
    report = inspect_captions(CaptionData(str(path)))
    assert [
        problem for problem in report.problems if problem.startswith("1 captions of more than 100 words: '3.png: v")
    ]
    assert "1 captions without a word: '4.png: …'" in report.problems
    assert max(part.words_per_caption.max for part in report.splits.values()) == 10_001
    assert all(len(problem) < 300 for problem in report.problems)


def test_the_report_counts_words(tmp_path):
    path = karpathy(tmp_path)
    report = inspect_captions(CaptionData(str(path), size=SIZE))
    said = [caption for _, _, _, captions in SAMPLES[:4] for caption in captions]
    words = [re.findall(r"\w+", caption.lower().replace("№", "")) for caption in said]
    train = report.splits["train"]
    assert (train.words_per_caption.min, train.words_per_caption.max) == (min(map(len, words)), max(map(len, words)))
    assert train.words_per_caption.mean == sum(map(len, words)) / len(words)
    assert (train.captions_per_image.min, train.captions_per_image.mean, train.captions_per_image.max) == (1, 1.5, 2)
    everything = [word for each in words for word in each]
    assert report.vocabulary == len(set(everything))
    assert report.frequent == sum(everything.count(word) >= 5 for word in set(everything))


# Paths inside the files


ESCAPES = ("../secret.png", "images/../../secret.png", "/etc/passwd", "..\\secret.png", "C:\\secret.png")


@pytest.mark.parametrize("name", ESCAPES)
def test_paths_that_lead_out_are_refused(name, tmp_path, capsys):
    write_images(tmp_path, [("", "secret.png", SAMPLES[0][2], ())])
    inner = tmp_path / "inner"
    inner.mkdir()
    path = many(inner, count=20, _3={"image": name})
    with pytest.raises(ValueError, match=r"lies outside .*; it is not opened"):
        load(path)
    (inner / "mine.json").unlink()
    (inner / "metadata.jsonl").write_text(json.dumps({"file_name": name, "text": "a"}))
    with pytest.raises(ValueError, match="lies outside"):
        load(path)
    assert main(["data", "inspect", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_paths_inside_are_allowed_however_they_are_written(tmp_path):
    inside = {"_3": {"image": "images/../images/3.png"}, "_4": {"image": f"{tmp_path}/images/4.png"}}
    path = many(tmp_path, count=20, _5={"image": "images\\5.png"}, **inside)
    assert sum(map(len, parts(load(path)).values())) == 20
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "mine.json").rename(elsewhere / "mine.json")
    with pytest.raises(ValueError, match=r"no images are in .*elsewhere"):
        load(elsewhere)
    assert sum(map(len, parts(load(elsewhere, images=str(tmp_path / "images"))).values())) == 20


def test_a_name_that_two_images_have(tmp_path):
    path = karpathy(tmp_path)
    write_images(tmp_path / "thumbnails", SAMPLES[:1])
    with pytest.raises(ValueError, match=r"'im_0.png' could be 'pictures/all/im_0.png', 'thumbnails/im_0.png'; say"):
        load(path)
    check(load(path, images=str(tmp_path / "pictures")).train)


def test_an_image_of_another_folder_is_not_taken_for_it(tmp_path):
    write_images(tmp_path / "train", SAMPLES[:4])
    write_images(tmp_path / "val", SAMPLES[4:])
    entries = [{"image": f"train/{name}", "caption": "a"} for _, name, _, _ in SAMPLES]
    (tmp_path / "mine.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"has 4 images that are not there.*'train/im_4.gif'"):
        load(tmp_path)


# What is no caption set


NONE = {
    "empty.json": (b"", "is empty; expected captions"),
    "cut.json": (b'{"images": [{"filen', "is not JSON"),
    "deep.json": (b"[" * 100_000, "more than 64 levels"),
    "other.json": (b'{"a": 1}', "holds no captions; expected .*Karpathy.*COCO"),
    "nothing.json": (b'{"images": []}', "holds no captions; expected"),
    "number.json": (b"7", "holds no captions; expected"),
    "split.json": (
        b'{"images": [{"filename": "a.png", "split": "x", "sentences": []}]}',
        "the split of 'a.png' is 'x'",
    ),
    "instances.json": (
        b'{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1}]}',
        "are no captions",
    ),
    "mixed.json": (b'[{"image": "a.png", "caption": "b"}, 7]', "entry 1 is '7'; expected an object with 'image'"),
    "prose.txt": (b"Once upon a time\nthere was a dog.\n", "begins with 'Once upon a time', which is no caption"),
    "captions.txt": (b"image,caption\n", "has no captioned images for train"),
    "lines.jsonl": (b"{}\n[]\n", "has 2 lines of .* that are no {file_name, text}, more than 1% of 2"),
    "images.tar": (None, "holds no captioned images; expected images with a .txt or a .json"),
    "broken.tar": (b"\x01" * 2000, "can't be read: .*; shards are plain tars, not compressed"),
    "none.json": (None, "doesn't exist; give"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_caption_set_is_said_in_a_sentence(name, tmp_path, capsys):
    content, sentence = NONE[name]
    write_images(tmp_path / "images")
    path = tmp_path / name
    if name == "images.tar":
        write_tar(path, [("read.me", b"hello")])
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert main(["data", "inspect", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_folders_that_hold_no_captions_or_two_sets(tmp_path):
    with pytest.raises(ValueError, match="holds no captions that are known here; expected Karpathy's"):
        load(tmp_path)
    karpathy(tmp_path)
    (tmp_path / "captions_val.json").write_text("[]")
    with pytest.raises(ValueError, match=r"holds several caption sets, .*; name one file"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"the images .* are not there; give a folder or a .tar"):
        load(tmp_path / "dataset_mine.json", images=str(tmp_path / "nowhere"))
    path = tmp_path / "dataset_mine.json"
    content = json.loads(path.read_text())
    for each in content["images"]:
        each["sentences"] = [] if each["split"] == "val" else each["sentences"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has no captioned images for validation"):
        load(path)


def test_labelled_images_are_still_labelled_images(tmp_path, capsys):
    for name in ("cat", "dog"):
        write_images(tmp_path / name, SAMPLES)
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / "labels.json").write_text('{"cat": 0}')
    (tmp_path / "dataset_info.json").write_text("{}")
    assert main(["data", "inspect", str(tmp_path)]) == 0
    assert "image folder, 2 classes" in capsys.readouterr().out
    write_tar(tmp_path / "a.tar", [("0.png", SAMPLES[0][2]), ("0.cls", b"0"), ("0.txt", b"a dog")])
    assert main(["data", "inspect", str(tmp_path / "a.tar")]) == 0
    assert "WebDataset, 1 shards, 1 classes" in capsys.readouterr().out


# Damage


def refused_by(call):
    """Whether it is refused: in one sentence, and by no error but the one that is meant."""
    said = None
    try:
        call()
    except ValueError as error:
        said = error
    assert said is None or (type(said) is ValueError and str(said).strip() and "\n" not in str(said))
    return said is not None


def damaged(content, draw):
    """Cut, changed in a few places, or something else altogether."""
    kind = draw.randrange(3)
    if kind == 0:
        return content[: draw.randrange(len(content) + 1)]
    if kind == 1:
        content = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        return bytes(content)
    return draw.randbytes(draw.randrange(1, 2000))


@pytest.mark.parametrize("write", SPLIT + UNSPLIT, ids=lambda write: write.__name__)
@pytest.mark.parametrize("tolerant", [False, True])
def test_damaged_files_are_refused_in_a_sentence_or_read(write, tolerant, tmp_path):
    draw = random.Random(write.__name__)
    path = write(tmp_path)
    files = [each for each in sorted(tmp_path.rglob("*")) if each.suffix in (".json", ".jsonl", ".txt", ".tar")]
    refused = 0
    for _ in range(8):
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, draw))
        before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
        refused += refused_by(lambda: inspect_captions(CaptionData(str(path), size=SIZE)) if tolerant else load(path))
        assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before
        file.write_bytes(whole)
    assert refused or tolerant
    load(path, strict=True)


@pytest.mark.parametrize("value", [None, 7, 1e400, True, [], {}, "", "\0", "a" * 5000, "\ud800", ["x", 7], {"raw": 3}])
def test_fields_of_any_type(value, tmp_path):
    for write, file in ((karpathy, "dataset_mine.json"), (coco, "annotations/captions_val2017.json")):
        root = tmp_path / write.__name__
        root.mkdir()
        path = write(root) / file
        whole = json.loads(path.read_text())
        for place in ("images", "annotations"):
            for key in list(whole[place][0]) if place in whole else ():
                content = json.loads(json.dumps(whole))
                content[place][0][key] = value
                path.write_text(json.dumps(content))
                assert refused_by(lambda root=root: load(root)) <= refused_by(lambda root=root: load(root, strict=True))


# The set itself, scenes and the picture


def test_a_caption_set_checks_itself():
    images = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), ("picture",))
    with pytest.raises(ValueError, match="2 images, captions of 1 and 2 ids; expected as many of each"):
        CaptionSet(images, (("a",),), ("1", "2"))
    with pytest.raises(ValueError, match="'2' has no caption"):
        CaptionSet(images, (("a",), ()), ("1", "2"))
    part = CaptionSet(images, (("a",), ("b",)), ("1", "2")).subset(torch.tensor([False, True]))
    assert (part.ids, part.captions, len(part.images)) == (("2",), (("b",),), 1)


def test_stretching_keeps_the_edges_that_covering_cuts():
    image = np.zeros((8, 32, 3), dtype=np.uint8)
    image[:, :8], image[:, -8:] = (255, 0, 0), (0, 0, 255)
    content = encoded(Image.fromarray(image), "PNG")
    assert decode(content, SIZE).max() == 0
    whole = decode(content, SIZE, fit="stretch")
    assert whole[0, :, 0].min() > 200
    assert whole[2, :, -1].min() > 200


def test_scenes_come_by_their_name():
    small = SceneConfig(train=30, validation=4, test=6)
    splits = load_captions(CaptionData(size=(32, 32), scenes=small))
    assert [len(part) for part in parts(splits).values()] == [30, 4, 6]
    report = inspect_captions(CaptionData(size=(32, 32), scenes=small))
    assert report.lines()[0] == "scenes: drawn scenes, 40 images, 40 captions"


@pytest.mark.parametrize("write", [karpathy, one_shard], ids=lambda write: write.__name__)
def test_look_draws_captioned_images(write, tmp_path, capsys):
    path, drawn = write(tmp_path), [tmp_path / f"{i}.svg" for i in range(2)]
    for out in drawn:
        assert main(["data", "look", str(path), "--count", "3", "--out", str(out)]) == 0
    assert re.match(r"3 of [46] training images of .*, each with a caption\nsamples: ", capsys.readouterr().out)
    with Image.open(io.BytesIO(_png(path, tmp_path))) as image:
        assert np.asarray(image.convert("RGB")).std() > 10
    assert main(["data", "look", str(path), "--recipe", "vit_digits", "--out", str(drawn[0])]) == 2
    assert "--recipe is for labelled images" in capsys.readouterr().err


def _png(path, folder):
    assert main(["data", "look", str(path), "--count", "4", "--out", str(folder / "grid.png")]) == 0
    return (folder / "grid.png").read_bytes()
