"""Where a picture is handed in: received, let into a room, decoded, looked at by a model, and answered."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from pellucid.data.images import decode
from pellucid.ready import ReadyModel
from pellucid.serve.doors import Door, while_there
from pellucid.serve.limits import Limits
from pellucid.serve.problems import Problem
from pellucid.serve.uploads import Uploads
from pellucid.serve.worker import BatchFunction, Worker

T = TypeVar("T")
DECODERS = 2  # pictures decoded at a time: each may take several times its pixels' memory
WHOLE = 4  # pictures in their own size, decoded and not yet looked at: 100 MB each


@dataclass(frozen=True)
class Desk:
    """What rooms share that take pictures: how these are received and decoded, and the worker that holds the models."""

    uploads: Uploads
    worker: Worker
    limits: Limits
    decoders: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, DECODERS, "pellucid pictures"))
    wholes: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, WHOLE))

    async def answer(self, request: Request, door: Door, look: Callable[[bytes], Awaitable[T]]) -> T:
        """What `look` makes of the request's picture, in one of the door's slots."""
        async with self.uploads.received(request) as data:
            return await while_there(request, door.through(request, partial(look, data)), self.limits.seconds)

    async def decode(self, model: ReadyModel, data: bytes) -> Any:
        """The picture as the model reads it."""
        read = partial(model.reader.read, max_pixels=self.limits.pixels, name="the picture")
        try:
            return await asyncio.get_running_loop().run_in_executor(self.decoders, read, data)
        except ValueError as error:
            raise Problem(415, str(error)) from None

    @asynccontextmanager
    async def whole(self, data: bytes) -> AsyncIterator[Any]:
        """The picture in its own size, for a model that another library reads for; few at a time, until it is read."""
        read = partial(decode, data, max_pixels=self.limits.pixels, name="the picture")
        async with self.wholes:
            try:
                picture = await asyncio.get_running_loop().run_in_executor(self.decoders, read)
            except ValueError as error:
                raise Problem(415, str(error)) from None
            yield picture

    async def ask(
        self, model: ReadyModel, way: tuple[Any, ...], run: BatchFunction, item: Any, together: int = 1
    ) -> Any:
        """What `run` makes of the item, in one batch with others that go the same way through the same model."""
        return await asyncio.wrap_future(self.worker.submit((id(model), *way), run, item, together=together))

    def close(self) -> None:
        self.worker.close()
        self.decoders.shutdown(wait=True, cancel_futures=True)
