"""Pickles from elsewhere, read and not obeyed. A pickle can call anything; here it calls nothing."""

import pickle
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

from pellucid.data.metered import Metered

MAX_SECONDS = 30.0  # of the processor
MAX_READS = 3 << 19  # two or three for each object: half a million of them, as CIFAR-100's names and labels are


class Shell:
    """Stands for each object that isn't built. It remembers what it was given, and calls nothing."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class ShellOfDict(dict[Any, Any]):
    """Stands for an OrderedDict, which is made empty and then filled."""

    def __init__(self) -> None:
        """Without anything: a copy of another one can be asked for with a byte, a million times."""

    def __setstate__(self, state: Any) -> None:
        """What is remembered beside the items is left out: in PyTorch's state dicts, the versions of modules."""


def unpickle(
    file: BinaryIO, allowed: frozenset[tuple[str, str]], persistent: Callable[[Any], Any] | None = None
) -> Any:
    """The next object in the file: lists, dictionaries, numbers, strings, and shells of what is allowed by its name.

    persistent: what stands for the objects that the pickle only names.

    >>> import io
    >>> unpickle(io.BytesIO(pickle.dumps({"a": [1, 2]})), frozenset())
    {'a': [1, 2]}
    >>> unpickle(io.BytesIO(pickle.dumps(print)), frozenset())
    Traceback (most recent call last):
    ValueError: it asks for builtins.print, which is refused; only arrays, lists and strings are read
    """
    return _Unpickler(Metered(file, seconds=MAX_SECONDS, reads=MAX_READS), allowed, persistent).load()


class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """The unpickler written in Python, because the one in C takes as much memory as a file asks for.

    Frames are passed over, so that every read is counted: they only say how much may be read at once. A bytearray would
    be made as large as it claims to be.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,  # pyright: ignore[reportAttributeAccessIssue]
        pickle.FRAME[0]: lambda self: self.read(8),
        pickle.BYTEARRAY8[0]: lambda self: self.find_class("builtins", "bytearray"),
    }

    def __init__(
        self, file: Metered, allowed: frozenset[tuple[str, str]], persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(file, encoding="bytes")
        self.allowed, self.persistent = allowed, persistent
        self.shells: dict[str, type] = {}

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in self.allowed:
            refused = f"{module}.{name}"[:80]
            raise ValueError(f"it asks for {refused}, which is refused; only arrays, lists and strings are read")
        if (module, name) == ("collections", "OrderedDict"):
            return ShellOfDict
        return self.shells.setdefault(name, type(name, (Shell,), {}))

    def persistent_load(self, pid: Any) -> Any:
        if self.persistent is None:
            raise ValueError("it names objects that are not in it")
        return self.persistent(pid)
