"""Files from elsewhere: fetched under a temporary name, checked, and unpacked into nothing but the folder meant."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.request import Request, urlopen

from pellucid.data.sentences import one_line, reason
from pellucid.data.tars import BROKEN, FILES, MAX_BYTES, ByteStream, open_archive, read_entries
from pellucid.files import make_folder, sync, sync_named

MAX_MEMBERS = 10_000
DEEPEST = 16  # folders
BLOCK_BYTES = 1 << 20


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
        with atomic_path(target) as folder, open_archive(archive, max_bytes) as stream:
            folder.mkdir()
            _extract(stream, folder, max_members)
    except BROKEN as error:
        raise ValueError(one_line(f"{archive} can't be unpacked: {reason(error)}")) from error


def _extract(stream: ByteStream, folder: Path, max_members: int) -> None:
    for count, entry in enumerate(read_entries(stream), start=1):
        if count > max_members:
            raise ValueError(f"it holds more than {max_members:,} members")
        path = folder / _inside(entry.name)
        if entry.kind == tarfile.DIRTYPE:
            path.mkdir(parents=True, exist_ok=True)
        elif entry.kind in FILES:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                for block in stream.blocks(entry.size):
                    out.write(block)
        else:
            raise ValueError(f"its member {entry.name!r} is a link or a device; only files and folders are unpacked")


def _inside(name: str) -> PurePosixPath:
    """The member's path, if it can only lie inside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or any(character in name for character in "\\:\0"):
        raise ValueError(f"its member {name!r} would lie outside the folder")
    if len(path.parts) > DEEPEST:
        raise ValueError(f"its member {name[:80]!r} lies {len(path.parts):,} folders deep; expected {DEEPEST} at most")
    return path
