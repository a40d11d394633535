"""From the body of a request to bytes in memory: bounded while they arrive, by file, by number and altogether."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request

from pellucid.serve.limits import Limits
from pellucid.serve.problems import Problem

T = TypeVar("T")
DECODERS = 2  # pictures decoded at a time: each may take several times its pixels' memory
FULL = "the server is full; try again in a moment"


class Door:
    """Lets in as many requests as there is room for, each for a limited time."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.inside = 0
        self.held = 0
        self.decoders = ThreadPoolExecutor(DECODERS, "pellucid pictures")

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """The time of one request inside; refused when the house is full or the time is over."""
        if self.inside >= self.limits.requests:
            raise Problem(503, FULL)
        self.inside += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except TimeoutError:
            raise Problem(503, f"the answer took longer than {self.limits.seconds:g} s; try again") from None
        finally:
            self.inside -= 1

    async def picture(self, request: Request, read: Callable[[bytes], T]) -> T:
        """The picture in the request's body, as `read` makes it out; its bytes are let go with that."""
        said = request.headers.get("content-length", "")
        if said.isdecimal() and int(said) > self.limits.bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                self.held += len(part)
                parts.append(part)
                if size > self.limits.bytes:
                    raise self._too_large()
                if self.held > self.limits.held:
                    raise Problem(503, FULL)
            return await self._decoded(b"".join(parts), read)
        finally:
            self.held -= size

    async def _decoded(self, data: bytes, read: Callable[[bytes], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.decoders, read, data)
        except ValueError as error:
            raise Problem(415, str(error)) from None

    def _too_large(self) -> Problem:
        return Problem(413, f"the picture's file is larger than the limit of {self.limits.bytes:,} bytes; shrink it")

    def close(self) -> None:
        self.decoders.shutdown(wait=True, cancel_futures=True)
