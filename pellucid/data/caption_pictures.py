"""The images of a caption set: found by the names that captions give them, and read whole."""

import os
import posixpath
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pellucid.data.aspect import Goal
from pellucid.data.images import ImageHeader, View, decode, probe
from pellucid.data.listings import some
from pellucid.data.opener import SUFFIXES
from pellucid.data.sentences import one_line
from pellucid.data.shards import Member, members

DEPTH = 5  # folders below the captions in which images are looked for


@dataclass(frozen=True, slots=True)
class PictureFile:
    """An image of a caption set. It is brought to a size whole: the caption speaks of all of it."""

    name: str
    file: Path | Member

    def content(self) -> Path | bytes:
        return self.file.content() if isinstance(self.file, Member) else self.file

    def label(self) -> str:
        return self.file.name if isinstance(self.file, Member) else str(self.file)

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        return decode(self.content(), size, channels, name=self.label(), fit="stretch", view=view)

    def probe(self) -> ImageHeader:
        return probe(self.content(), name=self.label())

    def n_bytes(self) -> int:
        return self.file.length if isinstance(self.file, Member) else self.file.stat().st_size


class PictureFiles:
    """The images below a folder, or in a tar, found by the names that captions give them.

    Names are not trusted: one that leads out of `folder` is refused, and nothing is opened but what was found inside.
    """

    def __init__(self, folder: Path, images: Path | None = None) -> None:
        self.roots = [Path(os.path.abspath(each)) for each in (folder, images) if each is not None]
        self.by_name: dict[str, list[tuple[tuple[str, ...], Path | Member]]] = defaultdict(list)
        self.by_stem: dict[str, list[tuple[tuple[str, ...], Path | Member]]] = defaultdict(list)
        self.folders: set[tuple[str, ...]] = set()
        if images is not None and not images.exists():
            raise ValueError(one_line(f"the images {str(images)!r} are not there; give a folder or a .tar"))
        within = images or folder
        if within.is_file():
            self._add_tar(within)
        else:
            self._add_folder(within)
            tars = [within / "images.tar"] if (within / "images.tar").is_file() else sorted(within.glob("*.tar"))
            for tar in tars:
                self._add_tar(tar)
        if not self.by_name:
            hint = "expected image files, there or in folders below, or images.tar; or say where (images)"
            raise ValueError(one_line(f"no images are in {str(within)!r}; {hint}"))

    def find(self, name: str, hint: str = "") -> Path | Member | None:
        """The file that a name means; None if there is none. A sentence if it lies outside, or if it could be two."""
        parts = self._inside(name)
        there = self.by_name.get(parts[-1]) or self.by_stem.get(parts[-1], []) if parts else []  # tables of ids
        exact = [file for each, file in there if each == parts]
        if exact:
            return exact[0]
        matching = [(each, file) for each, file in there if self._match(parts, each)]
        if len(matching) > 1:
            longest = max(_tail(parts, each) for each, _ in matching)
            matching = [pair for pair in matching if _tail(parts, pair[0]) == longest]
        if len(matching) > 1 and hint:
            matching = [pair for pair in matching if hint in pair[0]] or matching
        if len(matching) > 1:
            places = some(tuple("/".join(each) for each, _ in matching), 2)
            raise ValueError(one_line(f"the image {quote(name)} could be {places}; say where the images are (images)"))
        return matching[0][1] if matching else None

    def _match(self, parts: tuple[str, ...], there: tuple[str, ...]) -> bool:
        """Whether one path ends as the other; folders don't count where all images lie in one."""
        return len(self.folders) == 1 or _tail(parts, there) == min(len(parts), len(there))

    def _inside(self, name: str) -> tuple[str, ...]:
        """The parts of a name below one of the folders."""
        plain = name.replace("\\", "/")
        absolute = plain.startswith("/") or re.match("[A-Za-z]:/", plain)
        if not absolute and ".." not in plain.split("/"):
            return tuple(part for part in plain.split("/") if part not in ("", "."))
        for root in self.roots:
            path = posixpath.normpath(plain if absolute else posixpath.join(root.as_posix(), plain))
            if path.startswith(root.as_posix().rstrip("/") + "/"):
                return tuple(path[len(root.as_posix().rstrip("/")) + 1 :].split("/"))
        raise ValueError(one_line(f"the image {quote(name)} lies outside {str(self.roots[-1])!r}; it is not opened"))

    def _add_folder(self, folder: Path) -> None:
        for parts, path in files_below(folder):
            if path.name.lower().endswith(SUFFIXES):
                self._add(parts, path)

    def _add_tar(self, tar: Path) -> None:
        known = set(self.by_name)  # files that were unpacked beside their tar are not meant twice
        for name, member in members(tar):
            parts = tuple(part for part in name.split("/") if part not in ("", ".", ".."))
            if parts and name.lower().endswith(SUFFIXES) and parts[-1] not in known:
                self._add(parts, member)

    def _add(self, parts: tuple[str, ...], file: Path | Member) -> None:
        self.by_name[parts[-1]].append((parts, file))
        stem = parts[-1].rpartition(".")[0]
        self.by_stem[stem].append(((*parts[:-1], stem), file))
        self.folders.add(parts[:-1])


def shorten(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def quote(text: str) -> str:
    return repr(shorten(text))


def files_below(folder: Path) -> list[tuple[tuple[str, ...], Path]]:
    """Every file with its path below the folder in parts, sorted; hidden ones left out, links followed once."""
    files: list[tuple[tuple[str, ...], Path]] = []
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        parts = Path(parent).relative_to(folder).parts
        real = os.path.realpath(parent)
        if real in seen or len(parts) > DEPTH:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__MACOSX")))
        files += [((*parts, name), Path(parent, name)) for name in names if not name.startswith(".")]
    return sorted(files)


def _tail(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """How many parts at the end are the same."""
    count = 0
    for a, b in zip(reversed(first), reversed(second), strict=False):
        if a != b:
            break
        count += 1
    return count
