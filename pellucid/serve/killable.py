"""A process beside the server for what takes long on the processor. It can be ended at any moment.

Processes are forked from one that has imported everything (multiprocessing's fork server), so that a new one is there
in some hundredths of a second, and shares the memory of what was imported. One that has nothing to do is kept.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from pellucid.serve.problems import Problem

PRELOADED = ["pellucid.lab.ledger", "pellucid.serve.experiments", "pellucid.serve.confusion"]
NICE = 10  # pictures go first
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
if FORKS:
    CONTEXT.set_forkserver_preload(PRELOADED)


def prepare() -> None:
    """Begin to import, in the process that the others are forked from; returns at once."""
    if FORKS:
        forkserver.ensure_running()


class KillableWorker:
    """Calls functions of modules in a process of its own.

    >>> import math
    >>> worker = KillableWorker(longest=60.0)
    >>> asyncio.run(worker.run(math.hypot, 3.0, 4.0))
    5.0
    >>> worker.close()
    """

    def __init__(self, longest: float):
        self.longest = longest
        self.idle: list[_Process] = []

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function gives, or raises. Who cancels this ends the process that computes it; so does the time."""
        process = self.idle.pop() if self.idle else _Process()
        try:
            async with asyncio.timeout(self.longest):
                worked, answer = await asyncio.to_thread(process.call, function, arguments)
        except TimeoutError:
            process.kill()
            raise Problem(503, f"it was ended after {self.longest:g} s") from None
        except BaseException:
            process.kill()
            raise
        self.idle.append(process)
        if not worked:
            raise answer
        return answer

    def close(self) -> None:
        """End what has nothing to do; what has, is ended by who waits for it."""
        while self.idle:
            self.idle.pop().kill()


class _Process:
    """One process, started when it is first called. `call` runs in a thread, `kill` wherever it is wanted."""

    def __init__(self) -> None:
        self.killed = False
        self.process: Any = None
        self.connection: Connection | None = None

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether the function worked, and what it gave or raised."""
        try:
            if self.process is None or not self.process.is_alive():
                self._start()
            assert self.connection is not None
            self.connection.send((function, arguments))
            return self.connection.recv()
        except (EOFError, OSError):
            raise Problem(503, "the process that worked on it was ended; try again") from None

    def kill(self) -> None:
        self.killed = True
        if self.process is not None:
            self.process.kill()

    def _start(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        process = CONTEXT.Process(target=_work, args=(theirs, torch.get_num_threads()), daemon=True)
        process.start()
        theirs.close()
        self.process = process
        if self.killed:  # meanwhile
            process.kill()


def _work(connection: Connection, threads: int) -> None:
    """What the process does: it answers calls until nobody is left to make any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to understand
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE)
    torch.set_num_threads(threads)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = True, function(*arguments)
        except Exception as error:
            error.add_note(f"in the process that was asked:\n{traceback.format_exc()}")
            answer = False, error
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _end_with_the_server() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
