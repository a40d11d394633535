"""Every request that was answered, as a line of a log and as a number: who, what, how it ended, how long it took."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.serve.callers import Callers
from pellucid.serve.metrics import Counters
from pellucid.serve.problems import shorten

log = logging.getLogger("pellucid.serve")

FILES = 4  # that the log is kept in: one is written to, three are older
TOLD = 1.0  # seconds in which refusals of one kind are one line
Line = dict[str, Any]


class Access:
    """ASGI middleware around everything else, the guard too."""

    def __init__(self, app: ASGIApp, *, callers: Callers, metrics: Counters, write: Callable[[Line], None] | None):
        self.app, self.callers, self.metrics, self.write = app, callers, metrics, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, size = time.monotonic(), None, 0

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            seconds, queued = time.monotonic() - begun, scope.get("state", {}).get("queued")
            self.metrics.add_request(route_of(scope), status, seconds, queued)
            if self.write is not None:
                self.write(
                    {
                        "time": f"{datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z",
                        "address": self.callers.caller(scope),
                        "method": shorten(scope["method"], quote=str),
                        "path": shorten(scope["path"], quote=str),
                        "status": status,
                        "bytes": size,
                        "seconds": round(seconds, 3),
                        "queue": None if queued is None else round(queued, 3),
                    }
                )


def route_of(scope: Scope) -> str:
    """The address that was asked, with names of parameters for their values; "none" if nothing is there."""
    route = scope.get("route")
    if route is None:
        return "none"
    own = route.path_format.format(**scope["path_params"])  # without the prefix that its router has
    return scope["path"].removesuffix(own) + route.path_format


class AccessLog:
    """A file of JSON lines that never grows beyond so many bytes, together with the older ones beside it.

    Refusals of one kind within a second are one line, with their number: a flood of them tells no more than that.
    """

    def __init__(self, path: Path, most: int):
        try:
            self.file = _File(path, maxBytes=most // FILES, backupCount=FILES - 1, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"can't write the log {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
        self.refusals: dict[tuple[Any, ...], Line] = {}

    def write(self, line: Line) -> None:
        if line["status"] is None or line["status"] < 400:
            self._emit(line)
            return
        key = tuple(line[name] for name in ("address", "method", "path", "status"))
        if key in self.refusals:
            self.refusals[key]["times"] += 1
            return
        if not self.refusals:
            asyncio.get_running_loop().call_later(TOLD, self.tell)
        self.refusals[key] = line | {"times": 1}

    def tell(self) -> None:
        """Write what was gathered."""
        lines, self.refusals = self.refusals, {}
        for line in lines.values():
            self._emit(line)

    def close(self) -> None:
        self.tell()
        self.file.close()

    def _emit(self, line: Line) -> None:
        text = json.dumps(line, separators=(",", ":"))
        self.file.emit(logging.LogRecord("access", logging.INFO, "", 0, text, None, None))


class _File(RotatingFileHandler):
    """What can't be written is told once in a while, and nothing waits for it."""

    def handleError(self, record: logging.LogRecord) -> None:
        log.exception("the access log can't be written")


class Calm(logging.Filter):
    """Lets the same complaint through once in so many seconds, and says then how often it was heard."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self.seconds, self.clock = seconds, clock
        self.heard: dict[tuple[Any, ...], tuple[float, int]] = {}  # when it was told last, and how often not since

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = _kind(record), self.clock()
        last, times = self.heard.get(key, (-float("inf"), 0))
        if now - last < self.seconds:
            self.heard[key] = (last, times + 1)
            return False
        if len(self.heard) >= 1000:
            self.heard.clear()
        self.heard[key] = (now, 0)
        if times:
            record.msg, record.args = f"{record.getMessage()} (and {times:,} times since it was last told)", None
        return True


def _kind(record: logging.LogRecord) -> tuple[Any, ...]:
    """What makes two complaints the same: where the error was raised, or the sentence without what fills it."""
    if not record.exc_info or record.exc_info[2] is None:
        return record.name, record.levelno, str(record.msg)
    trace = record.exc_info[2]
    while trace.tb_next is not None:
        trace = trace.tb_next
    return record.name, record.exc_info[0], trace.tb_frame.f_code.co_filename, trace.tb_lineno
