"""Pictures that a command was given: which files are meant, and reading them without one bad file ending all."""

import glob
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jaxtyping import UInt8
from torch import Tensor

from pellucid.data.decoding import Item, cores
from pellucid.data.opener import SUFFIXES
from pellucid.data.sources import DataConfig, list_images
from pellucid.ready import ReadyModel

T = TypeVar("T")
R = TypeVar("R")


class Read(NamedTuple):
    """A picture that could be read, with its place among all that were named, from one on."""

    number: int
    path: Any  # its file, or what a source has of it
    pixels: UInt8[Tensor, "c y x"]


def find_pictures(names: Sequence[str | Path]) -> list[Path]:
    """The files that are meant: themselves, the pictures in a folder and those in it, or those that fit a pattern."""
    if not names:
        raise ValueError("no pictures are given; name one or more files, folders or patterns")
    paths: list[Path] = []
    for name in map(str, names):
        path = Path(name).expanduser()
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES and each.is_file())
            inside = [each for each in inside if not is_hidden(each.relative_to(path))]
            if not inside:
                raise ValueError(f"the folder {name!r} holds no pictures")
            paths += inside
        elif not path.exists() and glob.has_magic(name):
            fitting = sorted(Path(each) for each in glob.glob(str(path), recursive=True) if Path(each).is_file())
            if not fitting:
                raise ValueError(f"no file fits the pattern {name!r}")
            paths += fitting
        else:
            paths.append(path)
    return paths


def is_hidden(path: Path) -> bool:
    """As ._photo.jpg, which a Mac leaves beside photo.jpg."""
    return any(part.startswith(".") for part in path.parts)


def find_images(names: Sequence[str]) -> list[Path | Item]:
    """As `find_pictures`, and the images of sources that hold many in a file: wds:SHARDS, hf:NAME."""
    images: list[Path | Item] = []
    for name in names or ("",):
        if name.startswith(("wds:", "hf:")):
            listing = list_images(DataConfig(name))
            assert listing is not None, "these sources are listed"
            images += [item for entries in listing.splits.values() for item, _ in entries]
        else:
            images += find_pictures([name] if name else [])
    return images


def name_of(image: Path | Item) -> str:
    """What an image is called in answers."""
    return str(image) if isinstance(image, Path) else image.name


def read_pictures(
    paths: Sequence[Path | Item], model: ReadyModel, batch: int = 1, complain: Callable[[str], None] | None = None
) -> Iterator[list[Read]]:
    """Some at a time. One that can't be read gets a sentence, or raises it if it is alone; or `complain` is told."""
    reader = model.reader

    def attempt(path: Path | Item) -> Tensor | ValueError:
        try:
            return reader.read(path) if isinstance(path, Path) else path.decode(reader.goal, reader.channels)
        except ValueError as error:
            return error

    for start in range(0, len(paths), batch):
        part, read = paths[start : start + batch], []
        for number, path, pixels in zip(count(start + 1), part, read_together(attempt, part), strict=False):
            if isinstance(pixels, Tensor):
                read.append(Read(number, path, pixels))
            elif complain is None and len(paths) == 1:
                raise pixels
            else:
                (complain or say)(str(pixels))
        if read:
            yield read


def read_together(attempt: Callable[[T], R], part: Sequence[T]) -> list[R]:
    """What comes of each, by as many threads as there are cores."""
    if len(part) < 2:
        return [attempt(each) for each in part]
    with ThreadPoolExecutor(min(cores(), len(part)), thread_name_prefix="pellucid-decode") as pool:
        return list(pool.map(attempt, part))


def say(error: str) -> None:
    """On the way, without an end to the others."""
    print(f"pellucid: {error}", file=sys.stderr)


def number_file(path: Path, number: int, count: int) -> Path:
    """Where the figure of one of several pictures goes."""
    return path if count == 1 else path.with_stem(f"{path.stem}-{number}")


def check_all_read(read: int, paths: Sequence[Any]) -> None:
    """After what could be done is done: exit code 2 if a picture could not be read."""
    if read < len(paths):
        raise ValueError(f"{len(paths) - read} of {len(paths)} pictures could not be read")
