"""A file that nobody trusts, read within bounds."""

import os
import time
from typing import BinaryIO

MAX_READS = 1 << 20  # of a picture: two for each run of a compressed BMP, three for each marker of a JPEG
READ_OVER = 4  # how many times its own bytes a file may be read


class Metered:
    """A file, from where it stands on, that can be read for some time and a few times over, and then no more.

    Decoders read as they go: so one that is led in circles, or to do a lot for a few bytes, is stopped here. What a
    file claims to hold takes no memory: no more is read than is there.

    seconds: of the processor, by this thread. reads: how many. size: bytes that count, if not all to the file's end.
    """

    def __init__(self, file: BinaryIO, *, seconds: float, reads: int = MAX_READS, size: int | None = None) -> None:
        self.file, self.start = file, file.tell()
        rest = file.seek(0, os.SEEK_END) - self.start
        file.seek(self.start)
        self.place = 0
        self.size = rest if size is None else min(size, rest)
        self.bytes_left, self.reads_left = READ_OVER * self.size + (1 << 16), reads
        self.until = time.thread_time() + seconds

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(self.size - self.place, 0)
        return self._metered(self.file.read(rest if size is None or size < 0 else min(size, rest)))

    def readline(self) -> bytes:
        return self._metered(self.file.readline(max(self.size - self.place, 0)))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.size}[whence]
        self.place = self.file.seek(self.start + max(base + offset, 0)) - self.start
        return self.place

    def tell(self) -> int:
        return self.place

    def close(self) -> None:
        """The file belongs to whoever opened it."""

    def _metered(self, data: bytes) -> bytes:
        self.place += len(data)
        self.bytes_left -= len(data)
        self.reads_left -= 1
        if self.bytes_left < 0 or self.reads_left < 0 or time.thread_time() > self.until:
            raise ValueError("it takes too long to read for what it holds")
        return data
