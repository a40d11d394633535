"""Files that are there whole or not at all, and are still there after a power cut.

What a program has written lies in memory until the disk is made to take it: a file's content by syncing the file, its
name by syncing the folder that it lies in, and the name of a new folder by syncing the one above.
"""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], Any], aside: Path | None = None) -> None:
    """`write` fills a file beside `path`, which then takes its place at once; what was there survives any failure.

    aside: what was there is called that from then on.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        write(part)
        sync(part)
        if aside is not None:
            os.replace(path, aside)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    replace_file(path, lambda part: part.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=2) + "\n")


def make_folder(path: Path) -> None:
    """The folder and those above it, as far as they aren't there."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(new):
        sync(each.parent)


def sync_named(path: Path) -> None:
    """A file, or a folder with all that is in it, and its name in the folder that it lies in."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    if not path.is_dir():
        sync(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """When this returns, the disk has a file's content, or the names in a folder."""
    if path.is_dir() and os.name != "posix":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        sync_handle(handle)
    finally:
        os.close(handle)


def sync_handle(handle: int) -> None:
    try:
        if sys.platform == "darwin":  # where fsync leaves it in the disk's own memory
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a pipe; a folder of a file system that syncs none
            raise
