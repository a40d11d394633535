"""The way into a room: so many requests are worked on at a time, so many wait in line, and the others come again."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from pellucid.serve.callers import Callers, household
from pellucid.serve.limits import Limits, Room
from pellucid.serve.problems import Problem

T = TypeVar("T")
FULL = "the server is full; try again in a moment"


class Door:
    """One room's. Who comes in has all that it takes with them: a picture has arrived before it gets a slot.

    One caller has half of the room at most, so that nobody fills it alone.
    """

    def __init__(self, room: Room, callers: Callers):
        self.room, self.callers = room, callers
        self.each = max(1, (room.slots + room.queue) // 2)
        self.by_caller: Counter[str] = Counter()
        self.slots = asyncio.Semaphore(room.slots)
        self.waiting = 0
        self.inside = 0

    async def through(self, request: Request, work: Callable[[], Awaitable[T]]) -> T:
        """What the work gives, once there is a slot for it; refused if the line is full."""
        if self.slots.locked() and self.waiting >= self.room.queue:
            raise Problem(503, FULL)
        with self._counted(self.callers.caller(request.scope)):
            begun = time.monotonic()
            self.waiting += 1
            try:
                await self.slots.acquire()
            finally:
                self.waiting -= 1
            request.state.queued = time.monotonic() - begun
            self.inside += 1
            try:
                return await work()
            finally:
                self.inside -= 1
                self.slots.release()

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        """The time in which a caller waits or is inside."""
        caller = household(address)
        if self.callers.is_bounded(address) and self.by_caller[caller] >= self.each:
            raise Problem(503, FULL)
        self.by_caller[caller] += 1
        try:
            yield
        finally:
            self.by_caller[caller] -= 1
            if not self.by_caller[caller]:
                del self.by_caller[caller]


class Doors:
    """Those of all rooms."""

    def __init__(self, limits: Limits, callers: Callers):
        self.look, self.runs = Door(limits.look, callers), Door(limits.runs, callers)
        self.drawings, self.lab = Door(limits.drawings, callers), Door(limits.lab, callers)


async def while_there(request: Request, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """What the work gives. It ends with the reader's patience or with ours: when they leave, or the time is over."""
    task, leaving = asyncio.create_task(work), asyncio.create_task(_leaves(request))
    try:
        await asyncio.wait({task, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if leaving.done():
            raise ClientDisconnect
        raise Problem(503, f"the answer took longer than {seconds:g} s; try again")
    finally:
        for each in (task, leaving):
            each.cancel()
            each.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    """What comes of a task that nobody waits for any more; asyncio would complain that nobody asked."""
    if not task.cancelled():
        task.exception()


async def _leaves(request: Request) -> None:
    """Returns when the one who asked has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
