"""The server as a process: its socket, its log, and its end."""

import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from pellucid.serve.limits import Limits


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


def run(app: FastAPI, listening: socket.socket, limits: Limits, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what is in flight and return. A second Ctrl-C ends it at once."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=int(limits.seconds) + 5,
    )
    before = {number: signal.signal(number, _nothing) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _Server(config, ready).run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def _nothing(*_: object) -> None:
    """Having drained, uvicorn raises the signal that it caught once more; the end was orderly, and that is all."""
