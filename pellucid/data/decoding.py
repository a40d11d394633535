"""Many pictures decoded at once, by threads of this process or by processes beside it.

Decoders release Python's lock, but opening a file and looking at its header doesn't: from some cores on, threads wait
for each other and training waits for them. A process has a lock of its own. It is told which pictures, and sends back
their bytes, which are received straight into the batch; so it needs no memory that is shared, and ends when it is told
nothing more.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import IO, Any, Protocol

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from pellucid.data.aspect import Goal, put
from pellucid.data.images import ImageHeader, View

AT_ONCE = 8  # pictures that a thread or process is given at most: so many that asking costs little beside decoding
IN_HAND = 2  # times that; a process that had to wait for its next ones would wait for Python's lock here
MOST_THREADS = 4  # cores up to which threads don't wait for each other
PIPE = 1 << 20  # bytes that a pipe holds, where the system lets us say so

Failures = list[ValueError | None]  # for each picture, why it can't be read


class Item(Protocol):
    """One image that can be decoded on its own; `name` is the same on every machine."""

    @property
    def name(self) -> str: ...
    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor: ...
    def probe(self) -> ImageHeader: ...
    def n_bytes(self) -> int: ...


def decode_into(
    out: np.ndarray, items: Sequence[Item], views: Sequence[View | None], size: Goal, channels: int
) -> Failures:
    """Fill `out` (b c y x) with the pictures, each brought to this size."""
    failures: Failures = []
    for row, item, view in zip(out, items, views, strict=True):
        try:
            put(row, item.decode(size, channels, view).numpy())
            failures.append(None)
        except ValueError as error:
            failures.append(error)
    return failures


class Decoders:
    """Those that decode. processes: how many beside this one; with none, threads do it.

    >>> cores() >= 1
    True
    """

    def __init__(self, threads: int | None = None, processes: int = 0):
        self.workers = processes or threads or cores()
        threads = self.workers * (IN_HAND if processes else 1)
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="pellucid-decode")
        self.processes, self.mine, self.taken, self.starting = processes, threading.local(), count(), threading.Lock()
        self.started: list[_Process] = []
        self.close = weakref.finalize(self, _end, self.pool, self.started)

    def begin(
        self,
        out: UInt8[Tensor, "b c y x"],
        items: Sequence[Item],
        views: Sequence[View | None],
        size: Goal,
        channels: int,
    ) -> list[Future[Failures]]:
        """Have `out` filled with these pictures; what comes later are the failures, a few pictures at a time."""
        rows, n = out.numpy(), min(AT_ONCE, max(1, len(items) // self.workers))  # of few, each its share
        blocks = (slice(i, i + n) for i in range(0, len(items), n))
        return [self.pool.submit(self._decode, rows[at], items[at], views[at], size, channels) for at in blocks]

    def _decode(
        self, out: np.ndarray, items: Sequence[Item], views: Sequence[View | None], size: Goal, channels: int
    ) -> Failures:
        if not self.processes:
            return decode_into(out, items, views, size, channels)
        if not hasattr(self.mine, "process"):
            self.mine.process = self._take_process()
        return self.mine.process.decode_into(out, items, views, size, channels)

    def _take_process(self) -> "_Process":
        """The one that a thread asks from now on: each is begun by the first of its threads."""
        with self.starting:
            if len(self.started) < self.processes:
                self.started.append(_Process())
                return self.started[-1]
            return self.started[next(self.taken) % self.processes]


def _end(pool: ThreadPoolExecutor, started: list["_Process"]) -> None:
    """Begin nothing more, and end the processes."""
    pool.shutdown(wait=False, cancel_futures=True)
    for process in started:
        process.close()


def cores() -> int:
    """Processors for this process's decoders, of those that the processes of one machine share."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, there // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def usual_processes() -> int:
    """Of how many processes decoding gains: none on few cores, else one for each core but the one that trains."""
    return 0 if cores() <= MOST_THREADS else cores() - 1


class _Process:
    """A process that decodes for a few threads of this one, in the order in which they ask."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", f"import sys; sys.path[:] = {json.dumps(sys.path)}; {ENTRY}"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.stdin: Any = self.process.stdin
        self.stdout: Any = self.process.stdout
        _widen(self.stdout)
        self.asking, self.turns = threading.Lock(), threading.Condition()
        self.asked = self.answered = 0

    def decode_into(
        self, out: np.ndarray, items: Sequence[Item], views: Sequence[View | None], size: Goal, channels: int
    ) -> Failures:
        question = pickle.dumps((out.shape, [_detached(item) for item in items], views, size, channels))
        try:
            with self.asking:
                _send(self.stdin, question)
                turn, self.asked = self.asked, self.asked + 1
            with self.turns:
                self.turns.wait_for(lambda: self.answered == turn)
            try:
                length = int.from_bytes(_receive(self.stdout, bytearray(8)))
                failures = pickle.loads(_receive(self.stdout, bytearray(length)))
                _receive(self.stdout, out.reshape(-1))
            finally:  # whoever is next meets the same end
                with self.turns:
                    self.answered += 1
                    self.turns.notify_all()
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(
                "a process that decodes images has ended, perhaps for want of memory; go on with fewer (data.workers)"
            ) from error
        return [None if failure is None else ValueError(failure) for failure in failures]

    def close(self) -> None:
        """It ends when there is nothing more to read; one that is still at work, at once."""
        self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


@dataclass(frozen=True)
class _Unreadable:
    """An image that can't even be sent."""

    name: str
    error: str

    def decode(self, size: Goal | None, channels: int, view: View | None = None) -> Tensor:
        raise ValueError(self.error)


def _detached(item: Any) -> Any:
    """The item as it can be sent: without the table that it stands in."""
    try:
        return item.detached() if hasattr(item, "detached") else item
    except ValueError as error:
        return _Unreadable(item.name, str(error))


ENTRY = "from pellucid.data.decoding import serve; serve()"


def serve() -> None:
    """The process's whole life: pictures are named on its standard input, their bytes leave on its output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that trains
    torch.set_num_threads(1)  # as many for each process as there are cores wait for each other eight times as long
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a decoder prints must not stand between the bytes
    questions = os.fdopen(0, "rb", buffering=0)
    while True:
        try:
            shape, *asked = pickle.loads(
                _receive(questions, bytearray(int.from_bytes(_receive(questions, bytearray(8)))))
            )
            out = np.empty(shape, dtype=np.uint8)
            failures = [failure and str(failure) for failure in decode_into(out, *asked)]
            _send(answers, pickle.dumps(failures))
            _write(answers, out.reshape(-1).data)
        except (EOFError, BrokenPipeError):
            return


def _send(file: IO[bytes], data: bytes) -> None:
    _write(file, memoryview(len(data).to_bytes(8) + data))


def _write(file: IO[bytes], data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


def _receive(file: Any, into: Any) -> Any:
    """Fill these bytes with what comes next."""
    rest = memoryview(into)
    while len(rest):
        count = file.readinto(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return into


def _widen(pipe: IO[bytes]) -> None:
    """A pipe that holds a few pictures: with its usual 64 KB, its two ends wake each other for every tenth of one."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
        except OSError:  # more than this system grants
            return
