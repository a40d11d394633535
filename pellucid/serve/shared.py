"""Answers that take long: computed once for all who want them, kept, and given up when nobody wants them any more."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from pellucid.serve.problems import Problem

T = TypeVar("T")
KEPT = 64  # answers
STOPPING = "the server is stopping; try again when it is back"


class SharedAnswer(Generic[T]):
    """One answer that is being computed, and how many wait for it."""

    def __init__(self, work: Coroutine[Any, Any, T]):
        self.task = asyncio.create_task(work)
        self.readers = 0

    def end_if_unwanted(self) -> None:
        if not self.readers:
            self.task.cancel()


class Shared(Generic[T]):
    """Answers by what they answer. linger: seconds that one is still computed after the last reader has left."""

    def __init__(self, linger: float):
        self.linger = linger
        self.kept: dict[Hashable, T] = {}  # the oldest first
        self.jobs: dict[Hashable, SharedAnswer[T]] = {}
        self.closed = False

    async def get(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer: as it is kept, as it is being computed already, or as the work gives it."""
        if key in self.kept:
            self.kept[key] = self.kept.pop(key)
            return self.kept[key]
        if self.closed:
            raise Problem(503, STOPPING)
        job = self.jobs.get(key) or self._begin(key, work)
        job.readers += 1
        try:
            return await asyncio.shield(job.task)
        except asyncio.CancelledError:
            if job.task.cancelled():  # and not who waits for it
                raise Problem(503, STOPPING) from None
            raise
        finally:
            job.readers -= 1
            if not job.readers and not job.task.done():
                asyncio.get_running_loop().call_later(self.linger, job.end_if_unwanted)

    def close(self) -> None:
        """End what is being computed, and begin nothing more."""
        self.closed = True
        for job in self.jobs.values():
            job.task.cancel()

    def _begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> SharedAnswer[T]:
        job = self.jobs[key] = SharedAnswer(work())

        def ended(task: asyncio.Task[T]) -> None:
            del self.jobs[key]
            if not task.cancelled() and task.exception() is None:
                self.kept[key] = task.result()
                if len(self.kept) > KEPT:
                    del self.kept[next(iter(self.kept))]

        job.task.add_done_callback(ended)
        return job
