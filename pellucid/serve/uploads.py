"""From the body of a request to bytes in memory: bounded while they arrive, by file, number, time and altogether."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fastapi import Request

from pellucid.serve.callers import Callers, household
from pellucid.serve.doors import FULL
from pellucid.serve.limits import Limits
from pellucid.serve.problems import Problem


class Uploads:
    """The pictures that are on their way. They take no room's slots: who sends slowly keeps nobody else out."""

    def __init__(self, limits: Limits, callers: Callers):
        self.limits, self.callers = limits, callers
        self.arriving: Counter[str] = Counter()  # by caller
        self.held = 0  # bytes

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """The bytes of the request's picture, which count as held for as long as they are used."""
        said = request.headers.get("content-length", "")
        if said.isdecimal() and int(said) > self.limits.bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            with self._counted(self.callers.caller(request.scope)):
                try:
                    async with asyncio.timeout(self.limits.upload):
                        async for part in request.stream():
                            size += len(part)
                            self.held += len(part)
                            parts.append(part)
                            if size > self.limits.bytes:
                                raise self._too_large()
                            if self.held > self.limits.held:
                                raise Problem(503, FULL)
                except TimeoutError:
                    raise self._too_slow() from None
            yield b"".join(parts)
        finally:
            self.held -= size

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        """The time in which it arrives."""
        caller = household(address)
        many = self.callers.is_bounded(address) and self.arriving[caller] >= self.limits.uploads_each
        if many or self.arriving.total() >= self.limits.uploads:
            raise Problem(503, FULL)
        self.arriving[caller] += 1
        try:
            yield
        finally:
            self.arriving[caller] -= 1
            if not self.arriving[caller]:
                del self.arriving[caller]

    def _too_large(self) -> Problem:
        return Problem(413, f"the picture's file is larger than the limit of {self.limits.bytes:,} bytes; shrink it")

    def _too_slow(self) -> Problem:
        return Problem(503, f"the picture took longer than {self.limits.upload:g} s to arrive; try again")
