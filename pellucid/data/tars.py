"""The one place where archives are opened: tars, plain or compressed, alone or in a Debian package.

Nothing in them is believed. A tar is read forward, header by header; what a header claims takes no memory, because
names are bounded and contents come in blocks; and what comes out of a compressed file is counted as it comes.
"""

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pellucid.data.metered import Metered

MAX_BYTES = 1 << 30  # unpacked; the largest set that is known by name has 185 MB
MOST_RATIO, MIN_BYTES = 20, 1 << 26  # pictures shrink by 5 at most; what unpacks to less than 64 MB may shrink by more
MAX_NAME = 1 << 13  # bytes of a header that holds a name; systems take paths of up to 4 KB
MAX_NAMES = 8  # such headers before one member
MAX_WINDOW = 1 << 28  # bytes of memory that an xz file may ask for
MAX_SECONDS = 60.0  # of the processor
BLOCK = 512  # bytes of a header; contents are padded to it
AT_ONCE = 1 << 18  # bytes that are read together
BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, MemoryError, zlib.error, lzma.LZMAError)

NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE)
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


@dataclass(frozen=True)
class TarEntry:
    """A member of a tar as its headers tell it; `offset` is where its content begins."""

    name: str
    kind: bytes
    size: int
    offset: int


class ByteStream:
    """Bytes that are read forward and counted; more than `most` of them are an error."""

    def __init__(self, source: Any, most: int) -> None:
        self.source, self.most, self.place = source, most, 0

    def header(self) -> bytes:
        """The next block, or less where the tar ends."""
        return self._count(self.source.read(BLOCK))

    def read(self, size: int) -> bytes:
        return b"".join(self.blocks(size))

    def blocks(self, size: int) -> Iterator[bytes]:
        """So many bytes, piece by piece; if some are missing, an error."""
        while size:
            data = self._count(self.source.read(min(size, AT_ONCE)))
            if not data:
                raise EOFError("it is cut short")
            size -= len(data)
            yield data

    def skip_to(self, place: int) -> None:
        for _ in self.blocks(place - self.place):
            pass

    def _count(self, data: bytes) -> bytes:
        self.place += len(data)
        if self.place > self.most:
            raise ValueError(f"it holds more than {self.most:,} bytes")
        return data


class PlainStream(ByteStream):
    """A tar on disk, in which contents are passed over unread."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, os.fstat(file.fileno()).st_size)

    def skip_to(self, place: int) -> None:
        if place > self.most:
            raise EOFError("it is cut short")
        self.place = self.source.seek(place)


@contextmanager
def open_archive(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[ByteStream]:
    """The bytes of the tar that the file is, or that it holds."""
    with path.open("rb") as file:
        size = _find_debian_data(file) if file.read(8) == b"!<arch>\n" else file.seek(0, os.SEEK_END) + file.seek(0)
        source = Metered(file, seconds=MAX_SECONDS, size=size)
        magic = source.read(6)
        source.seek(0)
        inside: Any = source
        if magic.startswith(b"\x1f\x8b"):
            inside = gzip.GzipFile(fileobj=source)  # pyright: ignore[reportArgumentType]
        elif magic.startswith(b"BZh"):
            inside = bz2.BZ2File(source)  # pyright: ignore[reportArgumentType, reportCallIssue]
        elif magic == b"\xfd7zXZ\0":
            inside = _Unxz(source)
        yield ByteStream(inside, min(max_bytes, max(MIN_BYTES, MOST_RATIO * source.size)))


def read_entries(stream: ByteStream) -> Iterator[TarEntry]:
    """The members in their order. Before the next is asked for, a member's content may be read.

    A name of more than 100 characters comes in a header of its own before the member's: GNU's, or POSIX's (pax).
    """
    name, size, names = None, None, 0
    while (block := stream.header()).strip(b"\0") or not stream.place:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if header.type in (*NAMES, *PAX):
            names += 1
            if not 0 <= header.size <= MAX_NAME or names > MAX_NAMES:
                claim = f"{names} names for one member, the last of {header.size:,} bytes"
                raise ValueError(f"its headers claim {claim}; expected up to {MAX_NAMES}, of up to {MAX_NAME:,}")
            content = stream.read(header.size)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type in PAX:
                fields = _pax_fields(content)
                name, size = fields.get("path", name), fields.get("size", size)
            stream.skip_to(stream.place + -stream.place % BLOCK)
            continue
        name, length = header.name if name is None else name.rstrip("/"), header.size if size is None else _whole(size)
        if header.type == tarfile.GNUTYPE_SPARSE or length < 0:
            raise ValueError(f"its member {name!r} is sparse or has no size; expected plain files")
        if header.type in tarfile.SUPPORTED_TYPES and not header.isreg():
            length = 0  # a folder, a link or a device has no content, whatever its header says
        offset = stream.place
        yield TarEntry(name, header.type, length, offset)
        stream.skip_to(offset + length + -length % BLOCK)
        name, size, names = None, None, 0


def _pax_fields(content: bytes) -> dict[str, str]:
    """Lines of "length key=value", the length in decimal digits and of the whole line."""
    fields: dict[str, str] = {}
    while content.strip(b"\0"):
        digits = content[:6].partition(b" ")[0]
        line, content = content[: _whole(digits.decode("latin1"))], content[_whole(digits.decode("latin1")) :]
        key, equals, value = line[len(digits) + 1 :].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise ValueError("one of its headers is no list of fields")
        if key.startswith(b"GNU.sparse"):
            raise ValueError("one of its members is sparse; expected plain files")
        fields[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
    return fields


def _whole(digits: str) -> int:
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        raise ValueError(f"one of its headers has {digits[:20]!r} for a size")
    return int(digits)


def _find_debian_data(file: BinaryIO) -> int:
    """The size of the compressed tar inside a .deb, and the file left where it begins.

    A package is an `ar` archive: after eight bytes, which are read already, 60-byte headers at even offsets.
    """
    for _ in range(16):
        header = file.read(60)
        name, size, end = header[:16].strip().rstrip(b"/"), header[48:58].strip(), header[58:]
        if header and (end != b"`\n" or not size.isdigit()):
            raise ValueError("it is no Debian package")
        if not header:
            break
        if name.startswith(b"data.tar"):
            if name.endswith(b".zst"):
                raise ValueError("its data is compressed with zstd; install it with apt-get instead")
            return int(size)
        file.seek(int(size) + int(size) % 2, os.SEEK_CUR)
    raise ValueError("it is a Debian package without data")


class _Unxz:
    """What an xz file holds. Python's own class would take the memory that the file asks for, up to 4 GB."""

    def __init__(self, source: Metered) -> None:
        self.source, self.engine = source, self._begin()

    def _begin(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_WINDOW)

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            if self.engine.eof:  # another may follow
                data = (self.engine.unused_data + self.source.read(AT_ONCE)).lstrip(b"\0")
                if not data:
                    break
                self.engine = self._begin()
            else:
                data = self.source.read(AT_ONCE) if self.engine.needs_input else b""
                if self.engine.needs_input and not data:
                    raise EOFError("it is cut short")
            parts.append(self.engine.decompress(data, size))
            size -= len(parts[-1])
        return b"".join(parts)
