"""A checkpoint that many processes wrote, each its part, through PyTorch's distributed checkpoints.

Their room takes a second to import: only those who need it wait. Nothing is unpickled.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from pellucid.config import read_json
from pellucid.models.pretrained import open_tensors
from pellucid.runs.checksum import FIELD, Damaged, check_whole, sum_file

FACTS = "facts.json"  # written last: without it the folder doesn't count


def read_facts(folder: Path) -> dict[str, Any]:
    """Where the run stood, and the parts with their sizes and checksums."""
    try:
        facts = read_json(folder / FACTS, allow_nan=True)
    except ValueError as error:
        raise Damaged(folder / FACTS, error) from None
    files, checksums = (facts.get(name, {}) if isinstance(facts, dict) else None for name in ("files", "checksums"))
    if not isinstance(files, dict) or not isinstance(checksums, dict):
        raise Damaged(folder / FACTS, "it names no files")
    if wrong := [name for name in files.keys() | checksums.keys() if name == ".." or Path(name).name != name]:
        raise Damaged(folder / FACTS, f"it names a file elsewhere, {min(wrong)[:80]!r}")
    return {name: value for name, value in facts.items() if name != FIELD}


def check_parts(folder: Path) -> None:
    """Damaged if the facts or a part aren't what was written."""
    check_whole(folder / FACTS)
    facts = read_facts(folder)
    check_sizes(folder, facts.get("files", {}))
    for name, checksum in facts.get("checksums", {}).items():
        if name not in facts.get("files", {}) or sum_file(folder / name) != checksum:
            raise Damaged(folder, f"the checksum of {name} is not that of what it holds")


def read_tensors(folder: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it, put together from all parts."""
    check_sizes(folder, read_facts(folder).get("files", {}))
    with translate_failures(partial(Damaged, folder)):
        reader, saved = open_parts(folder)
        tensors = {
            name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
            for name, tensor in saved.items()
            if name.startswith(prefix)
        }
        fill_tensors(tensors, reader, alone=True)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def read_shapes(folder: Path, prefix: str) -> dict[str, torch.Size]:
    """The shapes of the tensors whose names begin with the prefix, without it."""
    check_sizes(folder, read_facts(folder).get("files", {}))
    with translate_failures(lambda error: Damaged(folder, error)):
        saved = open_parts(folder)[1]
    return {name.removeprefix(prefix): each.size for name, each in saved.items() if name.startswith(prefix)}


def open_parts(folder: Path) -> tuple[Any, dict[str, Any]]:
    """PyTorch's reader of the folder, and the size and type of every tensor by its name."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    for part in folder.glob("*.safetensors"):
        with open_tensors(part):  # PyTorch's reader believes what a header says of its length
            pass
    reader = HuggingFaceStorageReader(str(folder))
    return reader, dict(reader.read_metadata().state_dict_metadata)


def fill_tensors(tensors: dict[str, Tensor], reader: Any, *, alone: bool) -> None:
    """Read the tensors of these names into them; of spread ones, each process its part. alone: by one process."""
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as was asked for
        load(tensors, storage_reader=reader, no_dist=alone)


def check_sizes(folder: Path, files: Mapping[str, int]) -> None:
    """Every part is there as it was written: PyTorch's reader takes no notice of one that isn't."""
    for name, size in files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise Damaged(folder, f"{name} is missing or was cut")


@contextmanager
def translate_failures(wrong: Callable[[Any], Exception]) -> Iterator[None]:
    """What went wrong in one of the processes, as an exception of ours; PyTorch's is a BaseException."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        raise wrong(next(iter(error.failures.values()))[0]) from None
    except SafetensorError as error:
        raise wrong(error) from None
