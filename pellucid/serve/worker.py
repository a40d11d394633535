"""One thread that owns the models. Requests for the same thing go through a model together."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

BatchFunction = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, eq=False)
class Job:
    """One picture and what is to be done with it. Jobs of the same key can be done by one call of any one's `run`."""

    key: Hashable
    run: BatchFunction
    item: Any
    together: int
    done: Future[Any] = field(default_factory=Future)


class Worker:
    """Takes the oldest job, waits a moment for others of its key, and runs them as one batch. count: is told its size.

    >>> worker = Worker(gather=0.0)
    >>> worker.submit("double", lambda xs: [2 * x for x in xs], 21, together=8).result()
    42
    >>> worker.close()
    """

    def __init__(self, gather: float, count: Callable[[int], None] = lambda _: None):
        self.gather, self.count = gather, count
        self.row: list[Job] = []
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self._work, name="pellucid models", daemon=True)
        self.thread.start()

    def submit(self, key: Hashable, run: BatchFunction, item: Any, *, together: int = 1) -> Future[Any]:
        """run: gets a list of up to `together` items and returns as many results. Who no longer waits, cancels."""
        job = Job(key, run, item, together)
        with self.changed:
            if self.closed:
                raise RuntimeError("the worker is closed")
            self.row.append(job)
            self.changed.notify()
        return job.done

    def close(self) -> None:
        """Finish what is there, and end."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def _work(self) -> None:
        while batch := self._next():
            wanted = [job for job in batch if job.done.set_running_or_notify_cancel()]
            if not wanted:
                continue
            self.count(len(wanted))
            try:
                results = list(zip(wanted, wanted[0].run([job.item for job in wanted]), strict=True))
            except Exception as error:  # told to those who asked; the thread lives on
                for job in wanted:
                    job.done.set_exception(error)
            else:
                for job, result in results:
                    job.done.set_result(result)

    def _next(self) -> list[Job]:
        """The next batch; empty when there is nothing left to do and never will be."""
        with self.changed:
            while not self.row and not self.closed:
                self.changed.wait()
            if not self.row:
                return []
            first, until = self.row[0], time.monotonic() + self.gather
            while len(self._like(first)) < first.together and not self.closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
            batch = self._like(first)[: first.together]
            taken = set(map(id, batch))
            self.row = [job for job in self.row if id(job) not in taken]
            return batch

    def _like(self, first: Job) -> list[Job]:
        return [job for job in self.row if job.key == first.key]
