"""Connections before and beneath any request: how many there may be, and how long each may keep us waiting."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pellucid.serve.callers import Callers, household
from pellucid.serve.doors import FULL
from pellucid.serve.limits import Limits
from pellucid.serve.metrics import Counters
from pellucid.serve.problems import RETRY_AFTER

log = logging.getLogger("pellucid.serve")

RESERVED = 80  # open files that are left for everything but connections
AT_ONCE = 16  # connections accepted before others are listened to; fewer than what is reserved
REFUSED = 16  # connections that are kept for a second, so that those who are refused can read why
PAUSE = 0.5  # seconds in which nobody is let in after the system had no descriptor left
GRACE = 5.0  # seconds for the last bytes of an answer, or beyond what an upload is told to take
NO_ROOM = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(FULL) + 12}\r\n"
    f'Retry-After: {RETRY_AFTER}\r\nConnection: close\r\n\r\n{{"error":"{FULL}"}}'
).encode()


class Connection(H11Protocol):
    """uvicorn's, with a time limit on each thing that it waits for: a head, a body, a reader who reads."""

    def __init__(self, acceptor: "Acceptor", limits: Limits, **of_uvicorn: Any):
        super().__init__(**of_uvicorn)
        self.acceptor, self.limits = acceptor, limits
        self.has_asked = False
        self.expected: Any = None  # what is waited for, as h11 calls the state of the other side
        self.due: asyncio.TimerHandle | None = None  # by when it must have come
        self.stalled: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request, or for the rest of its head."""
        return self.transport is not None and self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(h11.IDLE, self.limits.head)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():  # it made no sense, and was told so
            self._hang_up_soon()
        self._watch(arriving=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._hang_up_soon()
        self._watch(arriving=False)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._hang_up_soon()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled = self.loop.call_later(self.limits.stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel("stalled")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel("stalled")
        self._cancel("due")
        self.acceptor.forget(self)

    def _watch(self, arriving: bool) -> None:
        """Set the time for what is expected now. More of the same, byte by byte, gives it no more time."""
        state = self.conn.their_state
        if state is h11.IDLE:
            if not arriving:  # between two requests uvicorn's own timer runs
                self._expect(h11.IDLE, None)
            elif self.expected is not h11.IDLE or self.due is None:  # the first bytes of a head
                self._expect(h11.IDLE, self.limits.head)
        elif state is h11.SEND_BODY:
            self.has_asked = True
            if self.expected is not h11.SEND_BODY:
                self._expect(h11.SEND_BODY, self.limits.upload + GRACE)
        else:
            self.has_asked = True
            self._expect(state, None)

    def _expect(self, state: Any, seconds: float | None) -> None:
        self._cancel("due")
        self.expected = state
        if seconds is not None:
            self.due = self.loop.call_later(seconds, self.transport.abort)

    def _hang_up_soon(self) -> None:
        """A transport that is closed still waits for its last bytes to be read, for ever."""
        self.loop.call_later(GRACE, self.transport.abort)

    def _cancel(self, timer: str) -> None:
        handle: asyncio.TimerHandle | None = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)


class Acceptor:
    """Lets connections in, as `asyncio.Server` does, but no more than there is room for.

    When it is full, the oldest that has never asked for anything makes room, then the oldest that asks for nothing now.
    If there is none, who comes is told to come again.
    """

    def __init__(
        self, listening: socket.socket, make: Callable[["Acceptor"], Connection], most: int, each: int,
        callers: Callers, metrics: Counters,
    ):  # fmt: skip
        self.listening, self.make, self.most, self.each = listening, make, most, each
        self.callers, self.metrics = callers, metrics
        self.open: dict[Connection, str] = {}  # with their callers, the oldest first
        self.by_caller: Counter[str] = Counter()
        self.refused: deque[socket.socket] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.loop = asyncio.get_running_loop()
        self.paused: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        if self.paused is not None:
            self.paused.cancel()
        self.loop.remove_reader(self.listening)
        while self.refused:
            self.refused.pop().close()

    async def wait_closed(self) -> None:
        """Nobody is let in after `close`; uvicorn waits for the connections itself."""

    def forget(self, connection: Connection) -> None:
        caller = self.open.pop(connection, None)
        if caller is not None:
            self.by_caller[caller] -= 1
            if not self.by_caller[caller]:
                del self.by_caller[caller]

    def _listen(self) -> None:
        self.paused = None
        self.loop.add_reader(self.listening, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if self.tasks and len(self.open) >= self.most:  # of those on their way in nobody knows yet who is silent
                return
            try:
                connection, (address, *_) = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: asking again at once would only burn the processor
                log.warning("no connection can be accepted for %g s: %s", PAUSE, error)
                self.metrics.refused["system"] += 1
                self.loop.remove_reader(self.listening)
                self.paused = self.loop.call_later(PAUSE, self._listen)
                return
            self._admit(connection, address)

    def _admit(self, connection: socket.socket, address: str) -> None:
        caller = household(address)
        if self.callers.is_bounded(address) and self.by_caller[caller] >= self.each:
            self._refuse(connection, "caller")
        elif len(self.open) >= self.most and not self._make_room():
            self._refuse(connection, "full")
        else:
            protocol = self.make(self)
            self.open[protocol] = caller
            self.by_caller[caller] += 1
            task = self.loop.create_task(self._connect(protocol, connection))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self, protocol: Connection, connection: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # it has gone already
            connection.close()
            self.forget(protocol)

    def _make_room(self) -> bool:
        """End a connection that keeps others out for nothing."""
        idle = [connection for connection in self.open if connection.is_idle]
        oldest = next((each for each in idle if not each.has_asked), None) or next(iter(idle), None)
        if oldest is None:
            return False
        self.metrics.refused["idle"] += 1
        self.forget(oldest)
        oldest.transport.abort()
        return True

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        """Say so, and hang up a second later: what they still send to a closed socket would take the answer with it."""
        self.metrics.refused[reason] += 1
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(NO_ROOM)
            connection.shutdown(socket.SHUT_WR)
        if len(self.refused) >= REFUSED:
            self.refused.popleft().close()
        self.refused.append(connection)
        self.loop.call_later(1.0, connection.close)


def most_connections(limits: Limits) -> int:
    """How many connections there may be: the limit, or what the system lets this process open, if that is less."""
    try:
        import resource
    except ImportError:  # Windows
        return limits.connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.connections
    return min(limits.connections, max(files - RESERVED, files // 4))
