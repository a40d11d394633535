"""Weights that `torch.save` wrote, in either of its formats: read as tables of tensors, and nothing in them is called.

PyTorch's own reader, even when it is asked for weights only, makes what a file asks for: deflated members of any size,
arrays of any length, tensors larger than their memory.
"""

import io
import math
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pellucid.data.metered import Metered
from pellucid.data.pickles import Shell, unpickle
from pellucid.data.sentences import one_line, reason

MAX_PICKLE = 1 << 26  # bytes of names and shapes
MAX_SECONDS = 300.0  # of the processor, for files of many GB
MAGIC = 0x1950A86A20F9469CFC6C  # what the older format begins with
DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
TENSOR, PARAMETER, DICT = "_rebuild_tensor_v2", "_rebuild_parameter", ("collections", "OrderedDict")
ALLOWED = frozenset(
    [DICT, ("torch", "Size"), ("torch._utils", TENSOR), ("torch._utils", PARAMETER)]
    + [("torch", name) for name in DTYPES]
)


@dataclass
class Storage:
    """The numbers that tensors are views of; their bytes once they are read."""

    dtype: torch.dtype
    length: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def size(self) -> int:
        return self.length * self.dtype.itemsize


FillStorage = Callable[[str, Storage], None]  # reads the bytes of the storage that has this key


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The state dict in the file, or in the checkpoint that the file is; one sentence if there is none."""
    try:
        with path.open("rb") as file:
            storages = Storages()
            content, fill = (_read_zip if zipfile.is_zipfile(file) else _read_older)(file, storages)
            for inner in ("model", "state_dict"):  # a training script's checkpoint
                if isinstance(content, dict) and isinstance(content.get(inner), dict):
                    content = content[inner]
            if not isinstance(content, dict) or not content or not all(isinstance(name, str) for name in content):
                raise ValueError("it holds no state dict; expected names with tensors")
            limit = 2 * path.stat().st_size  # twice, for weights that have two names
            return {name: storages.tensor(value, fill, limit) for name, value in content.items()}
    except Exception as error:  # a broken pickle raises anything
        raise ValueError(one_line(f"{path} can't be read: {reason(error)}")) from error


class Storages:
    """Those that the pickle names, and the tensors that lie in them."""

    def __init__(self) -> None:
        self.by_key: dict[str, Storage] = {}
        self.bytes = 0  # of all tensors that were asked for

    def named(self, name: Any) -> str:
        """The key of the storage that a pickle names: ("storage", type, key, device, length, a view or nothing)."""
        match name:
            case ("storage", type() as kind, str() as key, _, int() as length, *view) if (
                kind.__name__ in DTYPES and length >= 0 and view in ([], [None])
            ):
                storage = self.by_key.setdefault(key, Storage(DTYPES[kind.__name__], length))
                if (storage.dtype, storage.length) == (DTYPES[kind.__name__], length):
                    return key
        raise ValueError("it names a storage of a kind that isn't read here; save a state dict of plain tensors")

    def tensor(self, shell: Any, fill: FillStorage, limit: int) -> Tensor:
        """The tensor that a shell stands for: a view of a storage that lies inside it, and is no larger."""
        if isinstance(shell, Shell) and type(shell).__name__ == PARAMETER and shell.given:
            shell = shell.given[0]
        if not (isinstance(shell, Shell) and type(shell).__name__ == TENSOR and len(shell.given) >= 4):
            raise ValueError("it holds no state dict; expected names with tensors")
        key, offset, shape, strides = shell.given[:4]
        storage = self.by_key[key]
        if not (_whole(offset, *shape, *strides) and len(shape) == len(strides) <= 8):
            raise ValueError("it holds a tensor whose shape is no list of whole numbers")
        count = math.prod(shape)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        self.bytes += count * storage.dtype.itemsize
        if count > storage.length or (count and last >= storage.length) or self.bytes > limit:
            raise ValueError(f"it holds a tensor of {'×'.join(map(str, shape))} numbers, more than it has for it")
        if not count:
            return torch.empty(shape, dtype=storage.dtype)
        if not storage.data:
            fill(key, storage)
            if not storage.data:
                raise ValueError("it names a storage that it doesn't hold")
        return torch.frombuffer(storage.data, dtype=storage.dtype).as_strided(shape, strides, offset)


def _read_zip(file: BinaryIO, storages: Storages) -> tuple[Any, FillStorage]:
    """A zip with data.pkl, and a member for each storage; all of them stored as they are."""
    archive = zipfile.ZipFile(file)
    members = {each.filename: each for each in archive.infolist()}
    if any(each.compress_type != zipfile.ZIP_STORED or each.flag_bits & 1 for each in members.values()):
        raise ValueError("its members are compressed; torch.save leaves them as they are")
    if sum(each.file_size for each in archive.infolist()) > file.seek(0, os.SEEK_END):
        raise ValueError("its members claim more bytes than it has")
    (folder,) = {name.removesuffix("data.pkl") for name in members if name.split("/")[1:] == ["data.pkl"]} or {""}
    if f"{folder}data.pkl" not in members or members[f"{folder}data.pkl"].file_size > MAX_PICKLE:
        raise ValueError("it holds no data.pkl, or one that is too large; expected a file of torch.save")
    if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != sys.byteorder.encode():
        raise ValueError(f"its numbers are not {sys.byteorder}-endian, as this machine's are")

    def fill(key: str, storage: Storage) -> None:
        storage.data = _whole_data(archive.read(members[f"{folder}data/{key}"]), storage)

    return unpickle(io.BytesIO(archive.read(f"{folder}data.pkl")), ALLOWED, storages.named), fill


def _read_older(file: BinaryIO, storages: Storages) -> tuple[Any, FillStorage]:
    """Pickles in a row: a number, a version, the machine, the object, the keys of its storages; then these."""
    if file.seek(0) or file.read(2) != b"\x80\x02" or file.seek(0):
        raise ValueError("it is no file of torch.save")
    magic, version, machine = (unpickle(file, frozenset()) for _ in range(3))
    if (magic, version) != (MAGIC, 1001) or not isinstance(machine, dict):
        raise ValueError("it is no file of torch.save")
    if machine.get("little_endian") is not (sys.byteorder == "little"):
        raise ValueError(f"its numbers are not {sys.byteorder}-endian, as this machine's are")
    content, keys = unpickle(file, ALLOWED, storages.named), unpickle(file, frozenset())
    rest = Metered(file, seconds=MAX_SECONDS, reads=2 * len(keys) + 1)
    for key in keys:
        storage = storages.by_key[key]
        if struct.unpack("<q", rest.read(8)) != (storage.length,):
            raise ValueError("it is cut short, or its storages are not as long as it says")
        storage.data = _whole_data(rest.read(storage.size), storage)
    return content, lambda key, storage: None


def _whole_data(data: bytes, storage: Storage) -> bytearray:
    if len(data) != storage.size:
        raise ValueError(f"a storage of it has {len(data):,} bytes; expected {storage.size:,}")
    return bytearray(data)


def _whole(*numbers: Any) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)
