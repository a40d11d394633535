"""The quick way through a usual JPEG: the bytes of Pillow's way, and nothing that Pillow should have looked at."""

import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from pellucid.data import images, jpeg
from pellucid.data.aspect import Area
from pellucid.data.images import View, decode

pytest.importorskip("simplejpeg")


def photograph(height, width, seed=0):
    """Smooth colours with some noise, as photographs are."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width, height), 3)
    return Image.fromarray((np.array(coarse) * 0.9 + draw.integers(0, 25, (height, width, 3))).astype(np.uint8))


def write(picture, **how):
    stream = io.BytesIO()
    picture.save(stream, "JPEG", **{"quality": 90} | how)
    return stream.getvalue()


def camera(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


PLAIN = {
    "4:2:0": write(photograph(335, 500)),
    "4:4:4": write(photograph(100, 75), subsampling=0),
    "4:2:2": write(photograph(231, 77), subsampling=1),
    "grey": write(photograph(90, 130).convert("L")),
    "restarts": write(photograph(90, 130), restart_marker_blocks=4),
    "best": write(photograph(64, 64), quality=100, optimize=True),
    "large": write(photograph(900, 1200)),
}
OTHER = {
    "progressive": write(photograph(90, 130), progressive=True),
    "turned": write(photograph(90, 130), exif=camera(6)),
    "upright, by a camera": write(photograph(90, 130), exif=camera(1)),
    "four inks": write(photograph(90, 130).convert("CMYK")),
}
WAYS = {
    "own size": {},
    "cover": {"size": (48, 64)},
    "stretch": {"size": (48, 64), "fit": "stretch"},
    "a part": {"size": (32, 32), "view": View(0.3, 1.2, 0.4, 0.6)},
    "own ratio": {"size": Area((64, 64), (8, 8))},
}


@pytest.mark.parametrize("how", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("data", (PLAIN | OTHER).values(), ids=PLAIN | OTHER)
def test_both_ways_give_the_same_bytes(data, how, monkeypatch):
    channels = 1 if data == PLAIN["grey"] else 3
    quick = decode(data, channels=channels, **how)
    monkeypatch.setattr(jpeg, "simplejpeg", None)
    assert torch.equal(decode(data, channels=channels, **how), quick)


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_a_plain_file_is_not_opened_by_pillow(data, tmp_path, monkeypatch):
    def refuse(*args, **how):
        raise AssertionError("opened")

    (tmp_path / "plain.jpg").write_bytes(data)
    monkeypatch.setattr(images, "opened", refuse)
    for file in (data, tmp_path / "plain.jpg", str(tmp_path / "plain.jpg")):
        decode(file, (32, 32), channels=1 if data == PLAIN["grey"] else 3)


@pytest.mark.parametrize("name", [*OTHER, "grey as colour", "a stream", "too large", "a PNG"])
def test_any_other_file_is(name, monkeypatch):
    seen = []
    usual = images.opened
    monkeypatch.setattr(images, "opened", lambda *args: seen.append(args) or usual(*args))
    stream = io.BytesIO()
    photograph(20, 20).save(stream, "PNG")
    data = OTHER.get(name, PLAIN["grey"] if name == "grey as colour" else PLAIN["4:2:0"])
    data = stream.getvalue() if name == "a PNG" else data
    file = io.BytesIO(data) if name == "a stream" else data
    if name == "too large":
        with pytest.raises(ValueError, match="more than the limit of 100"):
            decode(file, max_pixels=100)
    else:
        decode(file)
    assert len(seen) == 1


def test_what_is_wrong_with_a_file_is_said_as_ever(tmp_path, monkeypatch):
    data = PLAIN["4:2:0"]
    broken = {
        "cut short": data[: len(data) // 2],
        "a head alone": data[:200],
        "three bytes": data[:3],
        "another size": data.replace(b"\xff\xc0\x00\x11\x08\x01\x4f\x01\xf4", b"\xff\xc0\x00\x11\x08\x4f\x4f\xf4\xf4"),
        "no size": data.replace(b"\xff\xc0\x00\x11\x08\x01\x4f\x01\xf4", b"\xff\xc0\x00\x11\x08\x00\x00\x00\x00"),
        "two scans": data[:-2] + data[data.index(b"\xff\xda") :],
    }
    assert all(each != data for each in broken.values())

    def say(file):
        try:
            return decode(file, (32, 32))
        except ValueError as error:
            return str(error)

    for name, content in broken.items():
        (tmp_path / f"{name}.jpg").write_bytes(content)
        quick = [say(tmp_path / f"{name}.jpg"), say(content)]
        with monkeypatch.context() as context:
            context.setattr(jpeg, "simplejpeg", None)
            slow = [say(tmp_path / f"{name}.jpg"), say(content)]
        for mine, its in zip(quick, slow, strict=True):
            assert torch.equal(mine, its) if isinstance(mine, torch.Tensor) else mine == its, name
    assert "cut short.jpg can't be read" in say(tmp_path / "cut short.jpg")
    assert "nowhere.jpg" in say(tmp_path / "nowhere.jpg")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ValueError, match="it is a folder, a pipe or a device"):
        decode(tmp_path / "pipe.jpg")
