"""A disk that forgets what was not synced: what recorder.c wrote down is done again until power fails.

What is sure: a file's content as it was when the file was last synced, a folder's names as they were when the folder
was. Of everything since, any part may have reached the disk: of names some changes and others not (or the first few, in
order, as a journal keeps them), of a file any of its sectors at any age, and any of its sizes. A rename is one change.
"""

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

SECTOR = 512  # bytes that a disk writes whole or not at all


class Operation(NamedTuple):
    letter: str
    path: str
    data: bytes
    number: int
    inode: int


def read_operations(log: Path) -> Iterator[Operation]:
    content, place = log.read_bytes(), 0
    while place < len(content):
        letter = chr(content[place])
        first, second, number, inode = struct.unpack_from("<4Q", content, place + 1)
        place += 33
        path, data = content[place : place + first].decode(), content[place + first : place + first + second]
        place += first + second
        yield Operation(letter, path, data, number, inode)


@dataclass(eq=False)
class File:
    """sure: the content on the disk; since: writes (place, bytes) and cuts (size) that may have reached it."""

    sure: bytes = b""
    since: list[tuple[int, bytes] | int] = field(default_factory=list)

    def content(self, generator: random.Random | None = None) -> bytes:
        """Now; or, with a generator, after a power cut."""
        age = self._ages(generator)
        content, size = bytearray(self.sure), len(self.sure)
        for i, change in enumerate(self.since):
            if isinstance(change, int):
                content[change:] = bytes(max(0, len(content) - change))
                size = change if i < age(-1) else size
                continue
            place, data = change
            content.extend(bytes(max(0, place + len(data) - len(content))))
            for start in range(place - place % SECTOR, place + len(data), SECTOR):
                if i < age(start // SECTOR):
                    low, high = max(start, place), min(start + SECTOR, place + len(data))
                    content[low:high] = data[low - place : high - place]
            size = max(size, place + len(data)) if i < age(-1) else size
        return bytes(content[:size]) + bytes(max(0, size - len(content)))

    def _ages(self, generator: random.Random | None):
        """How many of the changes each sector has seen; sector −1 is the size."""
        most = len(self.since)
        how = generator.choice(("none", "all", "some")) if generator else "all"
        if generator is None or how != "some":
            return lambda _: 0 if how == "none" else most
        ages: dict[int, int] = {}
        return lambda sector: ages.setdefault(sector, generator.choice((0, most, generator.randint(0, most))))

    def sync(self) -> None:
        self.sure, self.since = self.content(), []


@dataclass(eq=False)
class Folder:
    """names: now; sure: on the disk."""

    names: dict[str, "File | Folder"] = field(default_factory=dict)
    sure: dict[str, "File | Folder"] = field(default_factory=dict)


Change = list[tuple[Folder, str, "File | Folder | None"]]  # of names, all at once


class Disk:
    """forgetful: how it fails to keep what it was told to, so that a test can see that this would be noticed."""

    def __init__(self, root: Path, forgetful: Literal["", "folders", "files"] = ""):
        self.root, self.forgetful = root, forgetful
        self.top, self.changes = Folder(), list[Change]()
        self.by_inode: dict[int, tuple[Folder, str]] = {}

    def do(self, operation: Operation) -> None:
        letter, path, data, number, inode = operation
        folder, name = self._find(path)
        before = self.by_inode.get(inode)
        if letter in "WTS" and before and before != (folder, name):  # renamed past the recorder
            self._change([(folder, name, before[0].names[before[1]]), (*before, None)])
        if inode:
            self.by_inode[inode] = self._find(data.decode()) if letter == "R" else (folder, name)
        if letter == "C":
            there = folder.names.get(name)
            if isinstance(there, File):
                there.since.append(0)
            else:
                self._change([(folder, name, File())])
        elif letter in "WT":
            file = folder.names[name]
            assert isinstance(file, File)
            file.since.append((number, data) if letter == "W" else number)
        elif letter == "R":
            other, new = self._find(data.decode())
            self._change([(other, new, folder.names[name]), (folder, name, None)])
        elif letter in "UD":
            self._change([(folder, name, None)])
        elif letter == "M":
            self._change([(folder, name, Folder())])
        elif letter == "S":
            self._sync(self.top if Path(path) == self.root else folder.names[name])
        else:
            raise AssertionError(f"{path} was called, which is not replayed")

    def _find(self, path: str) -> tuple[Folder, str]:
        *parents, name = Path(path).relative_to(self.root).parts or ("",)
        folder = self.top
        for parent in parents:
            inner = folder.names[parent]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def _change(self, change: Change) -> None:
        for folder, name, what in change:
            _enter(folder.names, name, what)
        self.changes.append(change)

    def _sync(self, what: File | Folder) -> None:
        if isinstance(what, File):
            if self.forgetful != "files":
                what.sync()
            return
        if self.forgetful == "folders":
            return
        for change in [each for each in self.changes if any(folder is what for folder, *_ in each)]:
            for folder, name, entry in change:
                _enter(folder.sure, name, entry)
            self.changes.remove(change)

    def after_power_cut(self, target: Path, generator: random.Random) -> None:
        """Write what the disk may hold then into a new folder."""
        names: dict[int, dict[str, File | Folder]] = {}
        share = generator.random()
        kept = [generator.random() < share for _ in self.changes]
        if generator.random() < 0.5:  # a journal keeps the first ones
            kept = sorted(kept, reverse=True)
        for change in [change for change, keep in zip(self.changes, kept, strict=True) if keep]:
            for folder, name, what in change:
                _enter(names.setdefault(id(folder), dict(folder.sure)), name, what)
        _write(self.top, target, lambda folder: names.get(id(folder), folder.sure), generator)

    def now(self, target: Path) -> None:
        """Write what a program sees that reads now."""
        _write(self.top, target, lambda folder: folder.names, None)


def _enter(names: dict[str, File | Folder], name: str, what: File | Folder | None) -> None:
    if what is None:
        names.pop(name, None)
    else:
        names[name] = what


def _write(folder: Folder, target: Path, names, generator: random.Random | None) -> None:
    target.mkdir()
    for name, what in names(folder).items():
        if isinstance(what, Folder):
            _write(what, target / name, names, generator)
        else:
            (target / name).write_bytes(what.content(generator))


def read_promises(operations: list[Operation], root: Path) -> list[tuple[int, dict]]:
    """What was said to be saved, and after how many operations."""
    said = [(i, op) for i, op in enumerate(operations) if op.letter == "W" and op.path == str(root / "said.jsonl")]
    return [(i + 1, json.loads(op.data)) for i, op in said]
