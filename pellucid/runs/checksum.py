"""A checksum in a file, over all of its bytes with zeros in its own place: one flipped bit anywhere is noticed.

It is CRC-32, which keeps up with memory; by accident it fits something else once in 2³² times, and who wants to deceive
can make it fit. It stands where a file says what it is: in the header of a safetensors file, or in an object of JSON.
"""

import errno
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pellucid.config import one_line, parse_json

FIELD, EMPTY = "checksum", "0" * 8
PLACE = re.compile(rb'"checksum": ?"([0-9a-f]{8})"')  # where quotes are escaped, in text inside JSON, this is not found
EARLIER = {"facts", "step", "seconds", "best", "figures", "files"}  # all that checkpoints without a checksum say
BLOCK_BYTES = 1 << 20
HEAD_BYTES = 100_000_000  # of the largest header that safetensors reads


class Damaged(ValueError):
    """A checkpoint that isn't what was written."""

    def __init__(self, path: Path, why: Any):
        super().__init__(f"{path} is damaged or no checkpoint ({one_line(str(why))[:300]})")
        self.path, self.why = path, str(why)

    def __reduce__(self) -> tuple[type["Damaged"], tuple[Path, str]]:
        return type(self), (self.path, self.why)  # so that it can be raised in another process


def write_checksum(path: Path) -> None:
    """Into a file that says EMPTY where its checksum belongs."""
    with path.open("r+b") as file:
        place = PLACE.search(_read_head(file))
        assert place is not None
        checksum = _sum(file, place.start(1))
        file.seek(place.start(1))
        file.write(checksum)


def check_whole(path: Path) -> None:
    """Damaged if the file isn't what was written. One of before there were checksums is believed."""
    with path.open("rb") as file, _failing_disk(path):
        head = _read_head(file)
        place = PLACE.search(head)
        if place is not None and place[1] != _sum(file, place.start(1)):
            raise Damaged(path, "its checksum is not that of what it holds")
    if place is None and not _is_earlier(head):
        raise Damaged(path, "its checksum can't be read")


def sum_file(path: Path) -> str:
    """The checksum of a file that has none in it."""
    total = 0
    with path.open("rb") as file, _failing_disk(path):
        while block := file.read(BLOCK_BYTES):
            total = zlib.crc32(block, total)
    return f"{total:08x}"


@contextmanager
def _failing_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damaged(path, error.strerror) from None


def _read_head(file: BinaryIO) -> bytes:
    """What a safetensors file begins with: the size of its header, and the header; of other files, all there is."""
    size = file.seek(0, 2)
    file.seek(0)
    length = 8 + int.from_bytes(file.read(8), "little")
    file.seek(0)
    return file.read(min(length if length <= size else size, HEAD_BYTES))


def _sum(file: BinaryIO, place: int) -> bytes:
    """The checksum that belongs at the place."""
    file.seek(0)
    total = zlib.crc32(EMPTY.encode(), zlib.crc32(file.read(place)))
    file.seek(len(EMPTY), 1)
    while block := file.read(BLOCK_BYTES):
        total = zlib.crc32(block, total)
    return f"{total:08x}".encode()


def _is_earlier(head: bytes) -> bool:
    """Whether a file without a checksum never had one. If its head can't be read, whoever reads it says why."""
    try:
        if head.startswith(b"{"):
            facts = parse_json(head, "the head", allow_nan=True)
        else:
            facts = parse_json(head[8:], "the head", allow_nan=True).get("__metadata__", {})
        return facts.keys() <= EARLIER
    except (ValueError, AttributeError):
        return True
