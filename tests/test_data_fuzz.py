"""Hostile and broken files: one sentence, nothing run, nothing written outside the folder meant."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_data import FORMATS, encoded, idx, parts, picture, samples, write_binary10, write_python10, write_shard

from pellucid.data import DataConfig, decode, load_images, named
from pellucid.data import archives as archives_module
from pellucid.data.archives import download, unpack_archive
from pellucid.data.formats import read_cifar10_binary, read_cifar10_python, read_idx
from pellucid.data.shards import list_shards

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(function, *arguments):
    """Calls, and returns the sentence it was refused with; None if it was accepted."""
    said = None
    try:
        function(*arguments)
    except ValueError as error:
        said = str(error)
    assert said is None or (said.strip() and "\n" not in said)
    return said


def everything_below(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


# Images


def png(width, height, pixels=b""):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def test_a_huge_image_is_refused_by_its_header(tmp_path):
    path = tmp_path / "huge.png"
    path.write_bytes(png(20_000, 20_000))
    said = refused(decode, path)
    assert (
        said == f"{path} can't be read: it is 20,000×20,000 pixels, more than the limit of 67,108,864; make it smaller"
    )
    assert "more than the limit of 29" in refused(lambda: decode(encoded(picture()), max_pixels=29))
    assert decode(encoded(picture()), max_pixels=30).shape == (3, 6, 5)


WEBP = {
    "lossless": bytearray(encoded(picture(), "WEBP", lossless=True)),
    "lossy": bytearray(encoded(picture(), "WEBP")),
    "extended": bytearray(encoded(picture(mode="RGBA"), "WEBP", exif=Image.Exif().tobytes())),
}


@pytest.mark.parametrize("kind", WEBP)
def test_a_huge_webp_is_refused_before_its_canvas_is_made(kind, monkeypatch):
    assert refused(decode, bytes(WEBP[kind])) is None
    monkeypatch.setattr("PIL.WebPImagePlugin.WebPImageFile._open", None)  # would make it
    at = {"lossless": 21, "lossy": 26, "extended": 24}[kind]
    data = WEBP[kind].copy()
    data[at : at + 4] = b"\xff\xff\xff\x3f"
    assert " pixels, " in (said := refused(decode, bytes(data)))
    assert "the limit of " in said


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 500), (500, 1)])
def test_the_smallest_images_are_scaled(width, height):
    image = Image.new("RGB", (width, height), (9, 8, 7))
    assert decode(encoded(image), size=(16, 12)).flatten(1).unique(dim=1).tolist() == [[9], [8], [7]]


@quick
@given(st.binary(max_size=200))
def test_random_bytes_are_no_image(data):
    assert refused(decode, data)


KINDS = {kind: encoded(picture(height=16, width=16).convert(mode), kind) for kind, mode in FORMATS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_images_are_refused(kind):
    assert "can't be read" in refused(decode, KINDS[kind][: len(KINDS[kind]) // 2])
    assert refused(decode, KINDS[kind]) is None


def test_an_image_that_is_not_there(tmp_path):
    assert refused(decode, tmp_path / "none.png").endswith("none.png can't be read: No such file or directory")
    assert refused(decode, b"") == "the image can't be read: it is empty"
    odd = tmp_path / "two\nlines.png"
    odd.write_bytes(b"?")
    assert "two lines.png can't be read" in refused(decode, odd)
    assert refused(lambda: decode(encoded(picture()), channels=4)) == "channels is 4; expected 1 (grey) or 3 (colour)"


# idx and the other official formats


@quick
@given(st.binary(max_size=100))
def test_random_bytes_are_no_idx(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert refused(read_idx, path) or idx(read_idx(path)) == data
    path.write_bytes(gzip.compress(data))
    assert refused(read_idx, path) or idx(read_idx(path)) == data


@quick
@given(st.integers(0, 3), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4), st.binary(max_size=50))
def test_an_idx_header_that_lies(tmp_path, more, axes, data):
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, 8, len(axes) + more]) + b"".join(n.to_bytes(4, "big") for n in axes) + data)
    said = refused(read_idx, path)
    assert said is None or "file can't be read: " in said


def test_a_whole_idx_and_a_truncated_one(tmp_path):
    path, array = tmp_path / "file", np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    for data in (idx(array), gzip.compress(idx(array))):
        path.write_bytes(data)
        assert np.array_equal(read_idx(path), array)
        path.write_bytes(data[:-9])
        assert refused(read_idx, path)


@pytest.mark.parametrize("change", ["cut", "label"])
def test_damaged_binary_batches(change, tmp_path):
    write_binary10(tmp_path, parts())
    assert refused(read_cifar10_binary, tmp_path) is None
    path = tmp_path / "data_batch_3.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change == "cut" else b"\x0b" + data[1:])
    expected = {
        "cut": "it holds 6,145 bytes; expected a multiple of 3,073",
        "label": "holds the label 11; expected 0…9",
    }
    assert expected[change] in refused(read_cifar10_binary, tmp_path)


class Code:
    """A pickle that runs a command when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_with_code_in_it_runs_nothing(protocol, tmp_path):
    write_python10(tmp_path, parts())
    assert refused(read_cifar10_python, tmp_path) is None
    proof = tmp_path / "it_ran"
    for code in (Code(os.system, f"touch {proof}"), Code(eval, f"open({str(proof)!r}, 'w')"), Code(Path.touch, proof)):
        bomb = pickle.dumps({"data": code, "labels": [1]}, protocol)
        (tmp_path / "data_batch_1").write_bytes(bomb)
        assert "which is refused; only arrays, lists and strings are read" in refused(read_cifar10_python, tmp_path)
        assert not proof.exists()
    pickle.loads(bomb)
    assert proof.exists()  # the bomb was live


PICKLES = {
    "it holds no dictionary": [1, 2],
    "its 'data' is no array": {"labels": [1]},
    "expected bytes (u1)": {"data": np.zeros((1, 3072)), "labels": [1]},
    "its 'labels' are no list of class numbers": {"data": np.zeros((1, 3072), np.uint8), "labels": [-1]},
    "holds 1 images and 2 labels": {"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]},
}


@pytest.mark.parametrize("sentence", PICKLES)
def test_pickles_of_other_things(sentence, tmp_path):
    write_python10(tmp_path, parts())
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(PICKLES[sentence], 2))
    assert sentence in refused(read_cifar10_python, tmp_path)


@pytest.fixture
def python_files(tmp_path):
    write_python10(tmp_path, parts(n_train=5, n_test=1))
    return tmp_path


@quick
@given(st.binary(max_size=100))
def test_random_bytes_are_no_pickle(python_files, data):
    (python_files / "data_batch_1").write_bytes(data)
    assert refused(read_cifar10_python, python_files)


# Archives


def tar_with(path, name="inside.txt", kind=tarfile.REGTYPE, link="", content=b"hello"):
    with tarfile.open(path, "w:gz") as tar:
        for each, data in (("first.txt", b"first"), (name, content)):
            info = tarfile.TarInfo(each)
            if each == name:
                info.type, info.linkname = kind, link
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


HOSTILE = {
    "a way up": {"name": "../outside.txt"},
    "a way up inside": {"name": "a/../../outside.txt"},
    "an absolute path": {"name": "/tmp/pellucid_outside.txt"},
    "a drive": {"name": "C:\\outside.txt"},
    "a symbolic link": {"name": "link", "kind": tarfile.SYMTYPE, "link": "/etc"},
    "a hard link": {"name": "link", "kind": tarfile.LNKTYPE, "link": "../victim.txt"},
    "a device": {"name": "null", "kind": tarfile.CHRTYPE},
    "a pipe": {"name": "pipe", "kind": tarfile.FIFOTYPE},
    "a name twice": {"name": "first.txt"},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives_write_nothing(what, tmp_path):
    (tmp_path / "victim.txt").write_text("untouched")
    archive = tar_with(tmp_path / "a.tar.gz", **HOSTILE[what])
    before = everything_below(tmp_path)
    said = refused(unpack_archive, archive, tmp_path / "target")
    assert said.startswith(f"{archive} can't be unpacked: ")
    assert everything_below(tmp_path) == before
    assert not Path("/tmp/pellucid_outside.txt").exists()


def test_a_sound_archive_is_unpacked_once(tmp_path):
    archive = tar_with(tmp_path / "a.tar.gz", name="./folder/inside.txt")
    unpack_archive(archive, tmp_path / "target")
    assert (tmp_path / "target" / "folder" / "inside.txt").read_bytes() == b"hello"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "target"]
    assert "is there already" in refused(unpack_archive, archive, tmp_path / "target")


def test_archives_are_bounded(tmp_path):
    archive = tar_with(tmp_path / "a.tar.gz", content=bytes(100_000))
    assert "it holds more than 99 bytes" in refused(lambda: unpack_archive(archive, tmp_path / "b", max_bytes=99))
    assert "more than 1 members" in refused(lambda: unpack_archive(archive, tmp_path / "b", max_members=1))
    assert not (tmp_path / "b").exists()
    assert refused(lambda: unpack_archive(archive, tmp_path / "b", max_bytes=103_424, max_members=2)) is None


@pytest.mark.parametrize("kept", [0, 1, 10, 60, 300, 1000])
def test_truncated_archives_leave_nothing(kept, tmp_path):
    archive = tar_with(tmp_path / "a.tar.gz", content=np.random.default_rng(0).bytes(3000))
    archive.write_bytes(archive.read_bytes()[:kept])
    assert "can't be unpacked" in refused(unpack_archive, archive, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@quick
@given(st.binary(max_size=300), st.sampled_from([b"", b"!<arch>\n", b"\x1f\x8b\x08", b"\xfd7zXZ\0"]))
def test_random_bytes_are_no_archive(tmp_path, data, magic):
    archive = tmp_path / "a.tar"
    archive.write_bytes(magic + data)
    refused(unpack_archive, archive, tmp_path / "target") or (tmp_path / "target").rmdir()  # a tar may well be empty
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def debian(member, data):
    def entry(name, content):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        return header + content + b"\n" * (len(content) % 2)

    return b"!<arch>\n" + entry("debian-binary", b"2.0\n") + entry("control.tar.gz", b"odd") + entry(member, data)


def test_debian_packages(tmp_path):
    tar, package = tar_with(tmp_path / "a.tar.gz", name="./usr/share/file"), tmp_path / "a.deb"
    package.write_bytes(debian("data.tar.gz", tar.read_bytes()))
    unpack_archive(package, tmp_path / "target")
    assert (tmp_path / "target" / "usr" / "share" / "file").read_bytes() == b"hello"
    package.write_bytes(debian("data.tar.zst", b""))
    assert "compressed with zstd" in refused(unpack_archive, package, tmp_path / "other")
    package.write_bytes(debian("nothing", b""))
    assert "a Debian package without data" in refused(unpack_archive, package, tmp_path / "other")


def test_damaged_shards(tmp_path):
    shard = tmp_path / "a.tar"
    write_shard(shard, samples(0, 3))
    whole = shard.read_bytes()
    assert refused(list_shards, str(tmp_path)) is None
    for kept in (0, 100, 520, 600):
        shard.write_bytes(whole[:kept])
        assert refused(list_shards, str(tmp_path))
    shard.write_bytes(gzip.compress(whole))
    assert "shards are plain tars, not compressed" in refused(list_shards, str(tmp_path))


# Downloads and the cache


class Answer(io.BytesIO):
    url = "https://elsewhere"


@pytest.fixture
def served(monkeypatch):
    """What the network answers, whatever is asked."""
    answers = {}
    monkeypatch.setattr(archives_module, "urlopen", lambda request, timeout: answers["next"])
    return answers


def test_a_download_has_its_name_only_when_it_is_whole(served, tmp_path):
    whole = b"all of the bytes"
    md5 = hashlib.md5(whole, usedforsecurity=False).hexdigest()
    served["next"] = Answer(whole[:7])
    said = refused(download, "https://somewhere/file", tmp_path / "file", md5)
    assert "https://somewhere/file: its MD5 is" in said
    assert "after 7 bytes" in said
    assert list(tmp_path.iterdir()) == []
    served["next"] = Answer(whole)
    download("https://somewhere/file", tmp_path / "file", md5)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", whole)]


def test_a_download_that_breaks_off_or_never_ends(served, tmp_path):
    class Broken(Answer):
        def read(self, *_):
            raise TimeoutError("timed out")

    served["next"] = Broken()
    assert "https://a/b: timed out" in refused(download, "https://a/b", tmp_path / "file", "")
    served["next"] = Answer(bytes(200))
    assert "larger than 100 bytes" in refused(lambda: download("https://a/b", tmp_path / "file", "", max_bytes=100))
    served["next"] = Answer(b"")
    served["next"].url = "http://plain"
    assert "not served over https" in refused(download, "https://a/b", tmp_path / "file", "")
    assert list(tmp_path.iterdir()) == []


def test_a_half_finished_download_does_not_count(served, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named.shutil, "which", lambda program: None)
    arrays, files = parts(), tmp_path / "files"
    files.mkdir()
    write_binary10(files, arrays)
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as tar:
        tar.add(files, "cifar-10-batches-bin")
    whole = (tmp_path / "set.tar.gz").read_bytes()
    urls = ((named.KNOWN["cifar10"].urls[0][0], hashlib.md5(whole, usedforsecurity=False).hexdigest()),)
    digests = {split: named.sha256(part) for split, part in arrays.items()}
    monkeypatch.setitem(named.KNOWN, "cifar10", replace(named.KNOWN["cifar10"], urls=urls, sha256=digests))
    served["next"] = Answer(whole[:-100])
    assert "its MD5 is" in refused(load_images, DataConfig("cifar10"))
    assert list((tmp_path / "cache").iterdir()) == []
    served["next"] = Answer(whole)
    assert torch.equal(load_images(DataConfig("cifar10")).train.images, torch.from_numpy(arrays["train"][0]))


@pytest.mark.parametrize("damage", ["bit", "cut", "other images", "no tensors"])
def test_a_damaged_cache_is_not_used(damage, served, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    monkeypatch.setattr(named.shutil, "which", lambda program: None)
    digests = {split: named.sha256(part) for split, part in parts().items()}
    monkeypatch.setitem(named.KNOWN, "cifar10", replace(named.KNOWN["cifar10"], sha256=digests))
    cached = tmp_path / "cifar10.safetensors"
    named.write_cache(cached, parts())
    assert refused(load_images, DataConfig("cifar10")) is None
    data = bytearray(cached.read_bytes())
    if damage == "bit":
        data[-1] ^= 1
        cached.write_bytes(data)
    elif damage == "cut":
        cached.write_bytes(data[:-1])
    elif damage == "other images":
        named.write_cache(cached, parts(n_train=15))
    else:
        cached.write_bytes(b"\2\0\0\0\0\0\0\0{}")
    served["next"] = Answer(b"")
    assert "cifar10.safetensors is damaged" in refused(load_images, DataConfig("cifar10"))


def test_an_unrecorded_set_is_checked_against_what_was_written(tmp_path):
    cached = tmp_path / "cifar100.safetensors"
    named.write_cache(cached, parts())
    assert refused(named.read_cache, cached, named.KNOWN["cifar100"]) is None
    data = bytearray(cached.read_bytes())
    data[-9] ^= 1
    cached.write_bytes(data)
    assert "is not the recorded one" in refused(named.read_cache, cached, named.KNOWN["cifar100"])
