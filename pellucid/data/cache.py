"""Pictures kept decoded in a folder: what takes milliseconds to decode is read in microseconds from then on.

A part of 1,024 pictures is one file of bytes and one index, which is written last: a part without it isn't there. So
whoever is interrupted goes on with the next part, and the processes of one training share the work.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.config import read_json
from pellucid.data.aspect import Area, Goal
from pellucid.data.decoding import Decoders, Item
from pellucid.data.images import ImageHeader, View, bring_to_size
from pellucid.files import make_folder, sync

log = logging.getLogger("pellucid")

PER_FILE = 1024
TELL_AFTER = 10.0  # seconds between two words about how far it is
LAYOUT = 1  # of the files; another number makes another folder


@dataclass(frozen=True, slots=True)
class KeptImage:
    """An image that lies decoded in a file; height 0: it can't be read, and why."""

    name: str
    file: Path
    offset: int
    shape: tuple[int, int, int]
    failure: str = ""

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        if self.failure:
            raise ValueError(self.failure)
        count = int(np.prod(self.shape))
        try:
            pixels = np.fromfile(self.file, np.uint8, count, offset=self.offset)
        except OSError as error:
            raise ValueError(f"{self.name} can't be read from {self.file}: {error.strerror}") from error
        if len(pixels) < count:
            raise ValueError(f"{self.name} can't be read: {self.file} is cut short; remove it")
        return bring_to_size(torch.from_numpy(pixels.reshape(self.shape)), size, view=view)

    def probe(self) -> ImageHeader:
        if self.failure:
            raise ValueError(self.failure)
        return ImageHeader(*self.shape[1:], self.shape[0] == 1)

    def n_bytes(self) -> int:
        return int(np.prod(self.shape))


def keep_decoded(
    items: Sequence[Item], folder: Path, size: Goal, channels: int, side: int | None = None, processes: int = 0
) -> list[KeptImage]:
    """The images as they lie decoded below a folder, which are decoded now if they aren't there yet.

    They are kept as `decode` brings them to `size`; with a `side`, whole, their shorter side at most that long.
    """
    box = size.size if isinstance(size, Area) else size
    about = {"layout": LAYOUT, "size": side or list(box), "channels": channels, "images": len(items)}
    if isinstance(size, Area) and not side:
        about["patch"] = list(size.patch)
    digest = hashlib.sha256(json.dumps(about).encode())
    for item in items:
        digest.update(f"{item.name}\0{_n_bytes(item)}\0".encode())
    place = folder / digest.hexdigest()[:16]
    make_folder(place)
    starts = range(0, len(items), PER_FILE)
    missing = [start for start in starts if _read_part(place, start, channels) is None]
    if missing:
        n_bytes = min(len(items), PER_FILE * len(missing)) * channels * box[0] * box[1]
        if (free := shutil.disk_usage(place).free) < n_bytes:
            raise ValueError(
                f"{place} has {free / 1e9:.1f} GB left; the decoded images take about {n_bytes / 1e9:.1f} GB"
            )
        log.info("decoding %s images into %s: about %.1f GB", f"{len(items):,}", place, n_bytes / 1e9)
        _fill(place, items, missing, size, channels, side, processes)
    kept: list[KeptImage] = []
    for start in starts:
        rows = _read_part(place, start, channels)
        assert rows is not None, "it was just made"
        offset = 0
        for item, (height, width, failure) in zip(items[start : start + PER_FILE], rows, strict=True):
            kept.append(KeptImage(item.name, _pixels(place, start), offset, (channels, height, width), failure))
            offset += channels * height * width
    return kept


def _fill(
    place: Path,
    items: Sequence[Item],
    missing: list[int],
    size: Goal,
    channels: int,
    side: int | None,
    processes: int,
) -> None:
    """Write the parts that aren't there, beginning elsewhere in each process; others may be there before us."""
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    first = len(missing) * rank // world
    decoders, begun, said_at, done = Decoders(processes=processes), time.perf_counter(), time.perf_counter(), 0
    try:
        for i, start in enumerate([*missing[first:], *missing[:first]]):
            if _read_part(place, start, channels) is not None:
                continue
            part = items[start : start + PER_FILE]
            _write_part(place, start, part, decoders, size, channels, side)
            done, now = done + len(part), time.perf_counter()
            if now - said_at > TELL_AFTER:
                said_at, rate = now, done / (now - begun)
                left = (len(missing) - i - 1) * PER_FILE / rate
                log.info("decoded %s images, %.0f a second; about %.0f s left", f"{done:,}", rate, left)
    finally:
        decoders.close()


def _write_part(
    place: Path, start: int, items: Sequence[Item], decoders: Decoders, size: Goal, channels: int, side: int | None
) -> None:
    if side is None and not isinstance(size, Area):
        out = torch.empty(len(items), channels, *size, dtype=torch.uint8)
        begun = decoders.begin(out, items, [None] * len(items), size, channels)
        failures = [each for part in begun for each in part.result()]
        answers: list[Tensor | ValueError] = [
            pixels if failure is None else failure for pixels, failure in zip(out, failures, strict=True)
        ]
    else:
        answers = list(decoders.pool.map(lambda item: _in_its_ratio(item, side or size, channels), items))

    def write(path: Path) -> None:
        with path.open("wb") as file:
            for answer in answers:
                if isinstance(answer, Tensor):
                    file.write(answer.numpy().data)

    rows = [[*a.shape[1:], ""] if isinstance(a, Tensor) else [0, 0, str(a)] for a in answers]
    _put(_pixels(place, start), write)
    _put(_index(place, start), lambda path: path.write_text(json.dumps(rows), encoding="utf-8"))


def _put(path: Path, write: Callable[[Path], Any]) -> None:
    """As `replace_file`, with a name of this process's own: another may be writing the same part."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write(own)
        sync(own)
        os.replace(own, path)
    finally:
        own.unlink(missing_ok=True)
    sync(path.parent)


def _in_its_ratio(item: Item, size: int | Goal, channels: int) -> Tensor | ValueError:
    """The whole picture: its shorter side at most so long, or as large as an area says."""
    try:
        if not isinstance(size, int):
            return item.decode(size, channels)
        header = item.probe()
        share = min(1.0, size / min(header.height, header.width))
        return item.decode((max(1, round(header.height * share)), max(1, round(header.width * share))), channels)
    except ValueError as error:
        return error


def _read_part(place: Path, start: int, channels: int) -> list[tuple[int, int, str]] | None:
    """Height, width and failure of each image of a part; None if it isn't there whole."""
    if not _index(place, start).is_file() or not _pixels(place, start).is_file():
        return None
    rows: Any = read_json(_index(place, start))
    try:
        rows = [(int(height), int(width), str(failure)) for height, width, failure in rows]
    except (TypeError, ValueError):
        return None
    total = channels * sum(height * width for height, width, _ in rows)
    return rows if total == _pixels(place, start).stat().st_size and min(min(row[:2]) for row in rows) >= 0 else None


def _pixels(place: Path, start: int) -> Path:
    return place / f"{start // PER_FILE:06}.pixels"


def _index(place: Path, start: int) -> Path:
    return place / f"{start // PER_FILE:06}.json"


def _n_bytes(item: Item) -> int:
    try:
        return item.n_bytes()
    except (OSError, ValueError):
        return -1
