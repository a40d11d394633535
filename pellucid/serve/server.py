"""The server as a process: its socket, what it complains of, and its end."""

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from pellucid.serve import killable
from pellucid.serve.access import Calm
from pellucid.serve.connections import Acceptor, Connection, most_connections
from pellucid.serve.service import Service

COMPLAINTS = ("pellucid.serve", "uvicorn.error", "asyncio")  # loggers that anybody outside can make speak


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; one sentence if the address can't be had."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port is {port}; expected 0…65535, 0 for any that is free")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or "it is no address").partition(" (")[0]
        raise ValueError(
            f"can't listen on {host} port {port}: {why.lower()}; choose another --port or --host"
        ) from None


def run(app: FastAPI, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what is in flight and return. A second Ctrl-C ends it at once."""
    service: Service = app.state.service
    limits = service.limits
    config = uvicorn.Config(
        app,
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=int(limits.idle),
        timeout_graceful_shutdown=int(limits.upload + limits.seconds) + 5,
    )
    before = {number: signal.signal(number, _nothing) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _calm():
            killable.prepare()
            _Server(config, service, ready).run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """uvicorn's, with connections that are bounded. Says when it is ready, and ends first what takes long."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]):
        super().__init__(config)
        self.service, self.ready = service, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        await super().startup(sockets=[])  # all but listening
        service, limits = self.service, self.service.limits
        of_uvicorn = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}

        def make(acceptor: Acceptor) -> Connection:
            return Connection(acceptor, limits, **of_uvicorn)

        (listening,) = sockets
        most, each = most_connections(limits), limits.connections_each
        acceptor: Any = Acceptor(listening, make, most, each, service.callers, service.metrics)
        service.connections, self.servers = acceptor.open, [acceptor]
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.drain()
        await super().shutdown(sockets)


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """No complaint is told more often than once a minute: whoever causes it could fill the disk with it."""
    calm, loggers = Calm(), [logging.getLogger(name) for name in COMPLAINTS]
    for logger in loggers:
        logger.addFilter(calm)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(calm)


def _nothing(*_: object) -> None:
    """Having drained, uvicorn raises the signal that it caught once more; the end was orderly, and that is all."""
