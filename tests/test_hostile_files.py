"""Files that ask for gigabytes: each is refused in one sentence, within seconds and a fraction of the memory."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from fuzz_child import Reader
from PIL import Image
from test_data import encoded, picture
from test_data_fuzz import debian

from pellucid.cli import main

MEGABYTES, SECONDS = 500, 10  # what refusing one may take; most take nothing
CLAIM = 2_500 << 20  # bytes


@pytest.fixture(scope="module")
def reader():
    with Reader() as reading:
        yield reading


def assert_refused(reader, files):
    """files: (format, path, what the sentence has to say)."""
    outcomes = list(reader.outcomes(paths=[(name, str(path)) for name, path, _ in files]))
    assert len(outcomes) == len(files)
    for (name, path, expected), outcome in zip(files, outcomes, strict=True):
        assert outcome["failed"] is None, (name, path.name, outcome)
        assert outcome["said"] is not None, f"{path.name} was read"
        assert expected in outcome["said"], (path.name, outcome["said"])
        assert outcome["megabytes"] < MEGABYTES, (path.name, outcome)
        assert outcome["seconds"] < SECONDS, (path.name, outcome)


# Pictures


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *more, pixels=b"", kind=2, bits=8):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def tiff(*fields, big=False):
    """A TIFF of these fields: (tag, type, count, value)."""
    entry, count = ("<HHQQ", "<Q") if big else ("<HHLL", "<H")
    start = b"II\x2b\0\x08\0\0\0" + struct.pack("<Q", 16) if big else b"II\x2a\0" + struct.pack("<L", 8)
    return start + struct.pack(count, len(fields)) + b"".join(struct.pack(entry, *each) for each in fields) + bytes(8)


def tiff_sides(width, height):
    return [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]


def gif(width, height, comment=b""):
    start = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(6)
    frame = b"," + struct.pack("<HHHH", 0, 0, width, height) + b"\0\x02\x02\x44\x01\0;"
    return start + comment + frame


def exif_of(count, length):
    """As many fields as that, each of which is the same `length` bytes."""
    fields = b"".join(struct.pack("<HHLL", tag, 7, length, 8) for tag in range(count))
    return b"II\x2a\0\x08\0\0\0" + struct.pack("<H", count) + fields + bytes(4 + length)


TALL = 33_554_432
LONG_SIDE, AREA = "with a side longer than the limit of 65,536", "more than the limit of 67,108,864"
PICTURES = {
    "tall.png": (png(1, TALL), LONG_SIDE),
    "wide.png": (png(TALL, 1), LONG_SIDE),
    "tall and whole.png": (png(1, TALL, pixels=bytes(2 * TALL), kind=0), LONG_SIDE),
    "large.png": (png(20_000, 20_000), AREA),
    "two sizes.png": (png(8, 8, chunk(b"IHDR", struct.pack(">IIBBBBB", 1, TALL, 8, 2, 0, 0, 0))), LONG_SIDE),
    "no height.png": (png(8, 0), "can't be read"),
    "large exif.png": (png(8, 8, chunk(b"eXIf", exif_of(60_000, 1 << 19)), pixels=bytes(200)), "its EXIF has"),
    "large.gif": (gif(65_535, 65_535), AREA),
    "comments.gif": (gif(8, 8, b"!\xfe" + (b"\xff" + bytes(255)) * 16_000), "can't be read"),
    "tall.bmp": (b"BM" + struct.pack("<LLLLllHHLLLLLL", 99, 0, 54, 40, 1, TALL, 1, 24, 0, 0, 0, 0, 0, 0), LONG_SIDE),
    "tall.ppm": (b"P6 1 33554432 255\n", LONG_SIDE),
    "tall.tif": (tiff(*tiff_sides(1, TALL), (273, 4, 1, 8)), LONG_SIDE),
    "tall big.tif": (tiff(*tiff_sides(1, TALL), (273, 4, 1, 8), big=True), LONG_SIDE),
    "tiles.tif": (tiff(*tiff_sides(8, 8), (322, 4, 1, 1 << 20), (323, 4, 1, 1 << 20), (324, 4, 1, 8)), "its tiles are"),
    "strips.tif": (tiff(*tiff_sides(8, 8), (273, 3, 8_000_000, 8)) + bytes(16_000_000), "its field 273 says"),
    "large.webp": (b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\xff\xff" * 2, LONG_SIDE),
    "markers.jpg": (b"\xff\xd8" + b"\xff\xe1\0\x02" * 3_000_000, "it takes too long to read"),
    "a.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no image in a format that is read here"),
}


def test_pictures_that_ask_for_gigabytes_are_refused_by_their_headers(reader, tmp_path):
    files = []
    for name, (data, expected) in PICTURES.items():
        (tmp_path / name).write_bytes(data)
        files.append(("picture", tmp_path / name, expected))
    os.mkfifo(tmp_path / "pipe.png")
    files += [("picture", tmp_path / "pipe.png", "a pipe or a device"), ("picture", Path("/dev/zero"), "a device")]
    assert_refused(reader, files)


def test_what_a_picture_says_beside_its_pixels_takes_no_memory(reader, tmp_path):
    """Texts and profiles that unpack to 100 MB each are left where they are; the picture is read."""
    bomb = zlib.compress(bytes(100 << 20), 9)
    for name, text in (("zTXt", b"a\0\0" + bomb), ("iTXt", b"a\0\1\0\0\0" + bomb), ("iCCP", b"a\0\0" + bomb)):
        for count in (1, 20):
            data = png(8, 8, *[chunk(name.encode(), text)] * count, pixels=bytes(200))
            (tmp_path / f"{name} {count}.png").write_bytes(data)
    paths = [("picture", str(path)) for path in sorted(tmp_path.iterdir())]
    for outcome in reader.outcomes(paths=paths):
        assert outcome["failed"] is None
        assert outcome["megabytes"] < MEGABYTES
        assert outcome["seconds"] < SECONDS


def test_a_folder_of_tall_pictures_is_inspected_in_no_time(reader, tmp_path):
    for split, name in itertools.product(("train", "test"), ("cat", "dog")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "good.png").write_bytes(encoded(picture()))
        for i in range(3):
            (tmp_path / split / name / f"{i}.png").write_bytes(png(1, TALL, pixels=bytes(2 * TALL), kind=0))
    (outcome,) = reader.outcomes(paths=[("folder", str(tmp_path))])
    assert (outcome["failed"], outcome["said"]) == (None, None)
    assert outcome["megabytes"] < MEGABYTES
    assert outcome["seconds"] < SECONDS


def test_the_largest_pictures_that_are_let_in_keep_within_a_gigabyte(reader, tmp_path):
    for name, image in (("rgb.png", Image.new("RGB", (8192, 8192))), ("rgba.png", Image.new("RGBA", (8192, 8192)))):
        image.save(tmp_path / name, compress_level=1)
    (tmp_path / "tallest.png").write_bytes(png(1, 65_536, pixels=bytes(2 * 65_536), kind=0))
    for outcome in reader.outcomes(paths=[("picture", str(path)) for path in sorted(tmp_path.iterdir())]):
        assert (outcome["failed"], outcome["said"]) == (None, None)


# Archives


ZEROS = 1 << 24  # bytes of a piece, repeated to as many as are wanted
PACKED = {
    "tar.gz": lambda data: gzip.compress(data, 6, mtime=0),
    "tar.bz2": bz2.compress,
    "tar.xz": lambda data: lzma.compress(data, preset=0),
}


def claiming(kind, size, form=tarfile.GNU_FORMAT):
    header = tarfile.TarInfo("./name")
    header.type, header.size = kind, size
    return header.tobuf(form)


HEADERS = {"long name": b"L", "long link": b"K", "pax": b"x", "global pax": b"g", "solaris pax": b"X"}


def test_headers_that_claim_gigabytes_are_refused_before_they_are_read(reader, tmp_path):
    files = []
    for (what, kind), (suffix, pack) in itertools.product(HEADERS.items(), PACKED.items()):
        path = tmp_path / f"{what}.{suffix}"
        path.write_bytes(pack(claiming(kind, CLAIM)) + pack(bytes(ZEROS)) * (CLAIM // ZEROS))
        files.append(
            ("unpacked", path, "can't be unpacked: its headers claim 1 names for one member, the last of 2,621")
        )
    for what, kind in HEADERS.items():
        with (tmp_path / f"{what}.tar").open("wb") as file:  # a file with holes, which take no room on disk
            file.write(claiming(kind, CLAIM))
            file.truncate(CLAIM + 4096)
        files.append(("unpacked", tmp_path / f"{what}.tar", "its headers claim"))
        files.append(("shard", tmp_path / f"{what}.tar", "its headers claim"))
    assert_refused(reader, files)


def pax(records):
    return claiming(b"x", len(records)) + records.ljust(-(-len(records) // 512) * 512, b"\0") + claiming(b"0", 0)


ARCHIVES = {
    "a bomb.tar.gz": (
        PACKED["tar.gz"](claiming(b"0", CLAIM)) + PACKED["tar.gz"](bytes(ZEROS)) * 160,
        "it holds more than",
    ),
    "a bomb.tar.bz2": (
        PACKED["tar.bz2"](claiming(b"0", CLAIM)) + PACKED["tar.bz2"](bytes(ZEROS)) * 160,
        "it holds more",
    ),
    "a bomb.tar.xz": (PACKED["tar.xz"](claiming(b"0", CLAIM)) + PACKED["tar.xz"](bytes(ZEROS)) * 160, "it holds more"),
    "a large member.tar": (claiming(b"0", 8 << 30), "it is cut short"),
    "a sparse member.tar": (claiming(b"S", 512) + bytes(1024), "is sparse"),
    "a sparse map.tar": (pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"), "is sparse"),
    "names of names.tar": (
        (claiming(b"L", 3) + b"abc".ljust(512, b"\0")) * 3000 + bytes(1024),
        "9 names for one member",
    ),
    "digits.tar": (pax(b"9" * 8000), "no list of fields"),
    "no end.tar": (pax(b"0 path=a\n"), "no list of fields"),
    "a negative size.tar": (claiming(b"0", -512, tarfile.GNU_FORMAT), "can't be unpacked"),
    "deep.tar": (pax(b"2011 path=" + b"a/" * 1000 + b"\n") + bytes(1024), "1,000 folders deep"),
    "a large package.deb": (debian("data.tar", b"").replace(b"0         `\n", b"9999999999`\n"), "can't be unpacked"),
    "odd packages.deb": (b"!<arch>\n" + f"{'x':<48}{0:<10}`\n".encode() * 100_000, "without data"),
    "a large window.tar.xz": (
        lzma.compress(bytes(100), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29}]),
        "can't be unpacked",
    ),
    "many members.tar": (claiming(b"0", 0) * 20_000, "can't be unpacked"),
}


def test_archives_that_ask_for_gigabytes_are_refused(reader, tmp_path):
    files = []
    for name, (data, expected) in ARCHIVES.items():
        (tmp_path / name).write_bytes(data)
        files.append(("unpacked", tmp_path / name, expected))
    assert_refused(reader, files)


def test_archives_with_long_names_and_of_any_packing_are_unpacked(tmp_path):
    """The twin: what is refused above is refused for its size alone."""
    from pellucid.data.archives import unpack_archive

    name = "folder/" + "long" * 40 + "é.txt"
    for form, pack in itertools.product((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT), PACKED.values()):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
            for each, content in ((name, b"one" * 300), ("second", b""), ("third", bytes(100_000))):
                info = tarfile.TarInfo(each)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        data = pack(stream.getvalue())
        (tmp_path / "a").write_bytes(data)
        target = tmp_path / f"{form} {len(list(tmp_path.iterdir()))}"
        unpack_archive(tmp_path / "a", target)
        assert (target / name).read_bytes() == b"one" * 300
        assert (target / "third").read_bytes() == bytes(100_000)


# Weights and pickles


def saved(**options):
    stream = io.BytesIO()
    torch.save({"a": torch.arange(8.0), "b": torch.nn.Parameter(torch.ones(2, 3))}, stream, **options)
    return stream.getvalue()


def deflated(bytes_of_zeros):
    """A file of torch.save whose second storage is so many zeros, deflated: a full flush lets a piece be repeated."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = engine.compress(bytes(ZEROS)) + engine.flush(zlib.Z_FULL_FLUSH)
    content = piece * (bytes_of_zeros // ZEROS) + b"\x03\0"
    whole, out = zipfile.ZipFile(io.BytesIO(saved())), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in whole.namelist():
            if not name.endswith("data/1"):
                archive.writestr(name, whole.read(name))
        archive.writestr("archive/data/1", content)
        info = archive.getinfo("archive/data/1")
        info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, bytes_of_zeros
    return out.getvalue()


def altered_pickle(old, new):
    whole, out = zipfile.ZipFile(io.BytesIO(saved())), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("data.pkl"):
                assert old in content
                content = content.replace(old, new)
            archive.writestr(name, content)
    return out.getvalue()


LARGE = b"J\xff\xff\xff\x7f"  # a number, 2³¹ − 1
WEIGHTS = {
    "deflated.pt": (deflated(2_800 << 20), "its members are compressed"),
    "long storage.pt": (
        altered_pickle(b"K\x08tq", LARGE + b"tq"),
        "a storage of it has 32 bytes; expected 8,589,934,588",
    ),
    "one number many times.pt": (altered_pickle(b"K\x02K\x03\x86", LARGE + LARGE + b"\x86"), "more than it has for it"),
    "negative.pt": (altered_pickle(b"K\x00K\x08\x85", b"J\xff\xff\xff\xffK\x08\x85"), "no list of whole numbers"),
    "bytearray.pt": (altered_pickle(b"}q\x00", b"cbuiltins\nbytearray\n" + LARGE + b"\x85R0}q\x00"), "is refused"),
    "bytearray 8.pt": (altered_pickle(b"}q\x00", b"\x96" + bytes(4) + b"\3" + bytes(3) + b"0}q\x00"), "is refused"),
    "many sets.pt": (pickle.dumps(None, 2)[:2] + b"\x8f" * 30_000_000, "it takes too long"),
    "frames.pt": (b"\x80\x04\x95" + (30_000_000).to_bytes(8, "little") + b"\x8f" * 30_000_000, "no file of torch.save"),
    "older, of other numbers.pt": (saved(_use_new_zipfile_serialization=False)[:-20], "can't be read: "),
    "a tar.pt": (claiming(b"L", CLAIM) + bytes(512), "it is no file of torch.save"),
}


def test_weights_that_ask_for_gigabytes_are_refused(reader, tmp_path):
    files = []
    for name, (data, expected) in WEIGHTS.items():
        (tmp_path / name).write_bytes(data)
        files.append(("pt", tmp_path / name, expected))
    assert len((tmp_path / "deflated.pt").read_bytes()) < 3_000_000
    assert_refused(reader, files)


@pytest.mark.parametrize("older", [False, True])
def test_weights_that_are_cut_anywhere_are_refused_in_a_sentence(older, reader, tmp_path):
    whole = saved(_use_new_zipfile_serialization=not older)
    for length in range(0, len(whole), 23):
        (tmp_path / f"{length}.pt").write_bytes(whole[:length])
    paths = [("pt", str(path)) for path in sorted(tmp_path.iterdir())]
    for outcome, (_, path) in zip(reader.outcomes(paths=paths), paths, strict=True):
        assert outcome["failed"] is None, path
        assert outcome["said"].startswith(f"{path} can't be read: ")


@pytest.mark.parametrize("older", [False, True])
def test_weights_are_read_as_pytorch_reads_them(older, tmp_path):
    from pellucid.hub.pickled import read_pickled

    base = torch.randn(6, 4)
    kinds = (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    data = {"turned": base.T, "part": base[1:3, ::2], "none": torch.empty(0, 3), "one": torch.tensor(2.0), "tied": base}
    data |= {str(kind): torch.arange(5).to(kind) for kind in kinds} | {"learned": torch.nn.Parameter(base + 1)}
    torch.save(
        {"state_dict": data, "epoch": 3, "loss": [0.5]}, tmp_path / "a.pt", _use_new_zipfile_serialization=not older
    )
    ours = read_pickled(tmp_path / "a.pt")
    theirs = torch.load(tmp_path / "a.pt", weights_only=True)["state_dict"]
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor)


def test_a_command_says_one_sentence(tmp_path, capsys):
    (tmp_path / "a.pt").write_bytes(deflated(2_800 << 20))
    (tmp_path / "cifar10.tar.gz").write_bytes(PACKED["tar.gz"](claiming(b"L", CLAIM) + bytes(ZEROS)))
    (tmp_path / "tall.png").write_bytes(png(1, TALL))
    for words in (
        ("convert", tmp_path / "a.pt", tmp_path / "out", "--heads", "2"),
        ("data", "inspect", tmp_path / "cifar10.tar.gz"),
        ("predict", "vit-cifar10", tmp_path / "tall.png"),
    ):
        assert main([str(word) for word in words]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert len(said.err.splitlines()) == 1
