"""Files from elsewhere: fetched under a temporary name, checked, and unpacked into nothing but the folder meant."""

import hashlib
import http.client
import io
import lzma
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.request import Request, urlopen

from pellucid.data.images import one_line, reason
from pellucid.files import make_folder, sync, sync_named

MAX_BYTES = 4 << 30
MAX_MEMBERS = 200_000
BLOCK_BYTES = 1 << 20
BROKEN_ARCHIVE = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError)


def download(url: str, target: Path, md5: str, *, timeout: float = 5.0, max_bytes: int = MAX_BYTES) -> None:
    """Fetch a file over https. It has its name only once it is whole and its checksum is the recorded one."""
    digest = hashlib.md5(usedforsecurity=False)  # what the makers publish; the arrays are then checked by SHA-256
    try:
        with (
            atomic_path(target, ".part") as part,
            urlopen(Request(url), timeout=timeout) as answer,
            part.open("wb") as out,
        ):
            if not (url.startswith("https://") and answer.url.startswith("https://")):
                raise ValueError("it is not served over https")
            received = 0
            while block := answer.read(BLOCK_BYTES):
                received += len(block)
                if received > max_bytes:
                    raise ValueError(f"it is larger than {max_bytes:,} bytes")
                digest.update(block)
                out.write(block)
            if digest.hexdigest() != md5:
                raise ValueError(f"its MD5 is {digest.hexdigest()} after {received:,} bytes; expected {md5}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)  # URLError wraps what happened
        raise ValueError(one_line(f"{url}: {reason(cause) if isinstance(cause, Exception) else cause}")) from error


@contextmanager
def atomic_path(target: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """A temporary path beside `target` that takes its name when the block ends well, and is removed when it doesn't."""
    make_folder(target.parent)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        temporary = folder / (target.name + suffix)
        yield temporary
        sync_named(temporary)
        temporary.replace(target)
        sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack_archive(archive: Path, target: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> None:
    """A tar (plain, gz, bz2, xz) or Debian package as the new folder `target`; all of it or nothing.

    Refused: names that lead out of the folder, links, devices, more bytes or members than the limits.
    """
    if target.exists():
        raise ValueError(f"{target} is there already; unpack somewhere else")
    try:
        with atomic_path(target) as folder, archive.open("rb") as file:
            folder.mkdir()
            source = _debian_data(file) if file.read(8) == b"!<arch>\n" else file
            source.seek(0)
            with tarfile.open(fileobj=source, mode="r:*") as tar:
                _extract(tar, folder, max_bytes, max_members)
    except BROKEN_ARCHIVE as error:
        raise ValueError(one_line(f"{archive} can't be unpacked: {reason(error)}")) from error


def _extract(tar: tarfile.TarFile, folder: Path, max_bytes: int, max_members: int) -> None:
    total = 0
    for count, member in enumerate(tar, start=1):
        total += member.size
        if count > max_members or total > max_bytes:
            raise ValueError(f"it holds more than {max_members:,} members or {max_bytes:,} bytes")
        path = folder / _inside(member.name)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg() and (content := tar.extractfile(member)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                shutil.copyfileobj(content, out, BLOCK_BYTES)
            if path.stat().st_size != member.size:
                raise ValueError(f"its member {member.name!r} is cut short")
        else:
            raise ValueError(f"its member {member.name!r} is a link or a device; only files and folders are unpacked")


def _inside(name: str) -> PurePosixPath:
    """The member's path, if it can only lie inside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(character in name for character in "\\:\0"):
        raise ValueError(f"its member {name!r} would lie outside the folder")
    return path


def _debian_data(file: BinaryIO) -> BinaryIO:
    """The compressed tar inside a .deb: an `ar` archive, whose members follow 60-byte headers at even offsets.

    `file` stands behind the eight bytes that every `ar` archive starts with.
    """
    while len(header := file.read(60)) == 60:
        name, size, end = header[:16].strip().rstrip(b"/"), header[48:58], header[58:]
        if end != b"`\n" or not size.strip().isdigit():
            raise ValueError("it is no Debian package")
        if name.startswith(b"data.tar"):
            if name.endswith(b".zst"):
                raise ValueError("its data is compressed with zstd; install it with apt-get instead")
            return io.BytesIO(file.read(int(size)))
        file.seek(int(size) + int(size) % 2, 1)
    raise ValueError("it is a Debian package without data")
