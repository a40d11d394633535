"""Pictures on their way into batches: processes beside threads, and what benchmarks/feeding.py measures of both."""

import errno
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from pellucid.data import decoding
from pellucid.data.lazy import ImageFile, LazyImageSet


@dataclass(frozen=True)
class ThreadsHere:
    """An item whose pixels are how many threads PyTorch would use where it is decoded."""

    name: str = "threads"

    def decode(self, size, channels, view=None):
        return torch.full((channels, *size), torch.get_num_threads(), dtype=torch.uint8)


def read(items, **how):
    images = LazyImageSet(items, torch.zeros(len(items)).long(), ("one",), (8, 8), tolerated=0.5, **how)
    try:
        return images.read_whole(torch.arange(len(items)))
    finally:
        images.close()


def test_a_process_that_couldnt_be_started_is_asked_for_again(monkeypatch):
    plain, tries = decoding._Process.__init__, []

    def start(self):
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        plain(self)

    monkeypatch.setattr(decoding._Process, "__init__", start)
    decoders, out = decoding.Decoders(processes=2), torch.empty(64, 3, 8, 8, dtype=torch.uint8)
    try:
        items = [ThreadsHere(str(i)) for i in range(64)]
        failures = [future.exception() for future in decoders.begin(out, items, [None] * 64, (8, 8), 3)]
        assert [str(each) for each in failures if each is not None] == ["[Errno 11] Resource temporarily unavailable"]
        assert not [future for future in decoders.begin(out, items, [None] * 64, (8, 8), 3) if future.exception()]
        assert (out == 1).all()
    finally:
        decoders.close()


def test_processes_give_what_threads_give(tmp_path):
    for i in range(20):
        Image.effect_noise((30 + i, 40), 60).convert("RGB").save(tmp_path / f"{i:02}.png")
    (tmp_path / "05.png").write_bytes(b"nothing")
    items = [ImageFile(path.name, path) for path in sorted(tmp_path.iterdir())]
    threads, processes = read(items), read(items, processes=2)
    assert torch.equal(threads[0], processes[0])
    assert threads[1].tolist() == processes[1].tolist() == [i for i in range(20) if i != 5]


def test_a_process_that_decodes_is_one_thread():
    """With as many as there are cores in each, two processes on two cores had an eighth of the pictures."""
    assert read([ThreadsHere()] * 3, processes=1)[0].unique().tolist() == [1]
    with_more = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert read([ThreadsHere()] * 3, processes=1)[0].unique().tolist() == [1]
    finally:
        torch.set_num_threads(with_more)


@dataclass(frozen=True)
class MeetsOthers:
    """An item that can be decoded when all are being decoded."""

    barrier: threading.Barrier
    name: str = "one of several"

    def decode(self, size, channels, view=None):
        self.barrier.wait(timeout=20)
        return torch.zeros(channels, *size, dtype=torch.uint8)


def test_few_pictures_are_shared_among_all_threads():
    """Given eight at a time, a batch of 32 had kept four of sixteen cores busy."""
    items = [MeetsOthers(threading.Barrier(6))] * 6
    assert len(read(items, threads=6)[0]) == 6


@dataclass(frozen=True)
class WaitsFor:
    """An item that can be decoded when there is a file."""

    path: Path
    name: str = "patient"

    def decode(self, size, channels, view=None):
        while not self.path.exists():
            time.sleep(0.01)
        return torch.zeros(channels, *size, dtype=torch.uint8)


def test_a_process_has_its_next_pictures_before_it_has_answered(tmp_path):
    items = [WaitsFor(tmp_path / "now")] * 40
    images = LazyImageSet(items, torch.zeros(40).long(), ("one",), (8, 8), processes=1)
    reading = images.begin(torch.arange(40))
    assert images._decoders is not None
    until = time.monotonic() + 60
    while not (images._decoders.started and images._decoders.started[0].asked == 2) and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    assert (images._decoders.started[0].asked, images._decoders.started[0].answered) == (2, 0)
    (tmp_path / "now").touch()
    assert reading.finish().sum() == 0
    assert images._decoders.started[0].answered == images._decoders.started[0].asked == 5
    images.close()


def test_a_process_that_ends_is_a_sentence(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "one.png")
    items = [ImageFile("one", tmp_path / "one.png")]
    images = LazyImageSet(items, torch.zeros(1).long(), ("one",), (8, 8), processes=1, strict=True)
    images.read(torch.tensor([0]))
    assert images._decoders is not None
    images._decoders.started[0].process.kill()
    with pytest.raises(ValueError, match="a process that decodes images has ended"):
        images.read(torch.zeros(40).long())
    images.close()


@pytest.mark.slow
def test_the_benchmark_of_feeding_keeps_each_row_as_it_comes(tmp_path, monkeypatch):
    sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
    import feeding

    monkeypatch.setattr(feeding, "SIDE", 32)
    paths = feeding.make_files(tmp_path / "pictures", 24, 60, 40)
    assert len({path.parent.name for path in paths}) == 10
    names = ["threads", "kept decoded", "kept whole, parts of that"]
    how = {"batch": 4, "turns": 1, "seconds": 0.01, "size": "tiny", "compiled": False}
    tables = feeding.fed(tmp_path / "pictures", names, limit=60.0, **how)
    assert [row["way"] for row in next(tables).rows] == ["threads"]
    row = list(tables)[-1].rows[-1]
    assert row["way"] == names[-1]
    assert row["ratio"] == pytest.approx(row["fed"] / row["one batch"])
    assert min(row["feeding alone"], row["fed"], row["one batch"]) > 0
    assert [len(table.rows) for table in feeding.fed(tmp_path / "pictures", names, limit=0.0, **how)] == [1]
