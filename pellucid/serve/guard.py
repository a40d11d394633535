"""Who may ask, what every answer carries, and the last resort when something breaks."""

import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.serve.callers import is_address
from pellucid.serve.problems import UNEXPECTED, refused, shorten

log = logging.getLogger("pellucid.serve")

COOKIE = "pellucid"
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")  # what fits into an address and a cookie as it is, and is no easy guess
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN = "/healthz"
ELSEWHERE = ("cross-site", "same-site")  # the latter are other ports and subdomains
PAGE = "/"
LOCKED = "this page needs its token: open the address that pellucid serve has printed"


class Guard:
    """ASGI middleware around everything else.

    Host: an address in numbers, or one of `names`. A page elsewhere that gives its name our address (DNS rebinding)
    still sends its own name. Origin: our own, where a browser says it. Sec-Fetch-Site: other sites may lead to the
    page, and ask for nothing else. Token: where there is one, it is asked for, everywhere but at OPEN. HEAD is
    answered as GET is, without what would follow the headers.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = (), token: str | None = None):
        self.app, self.token = app, token
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no sockets here: only the beginning and the end of the server
            await self.app(scope, receive, send)
            return
        begun, method = False, scope["method"]

        async def dressed(message: Message) -> None:
            nonlocal begun
            scope["method"] = method
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            scope["method"] = "GET" if method == "HEAD" else method
            await (self._answer(scope) or self.app)(scope, receive, dressed)
        except ClientDisconnect:  # nobody is left to be answered
            pass
        except Exception:
            log.exception("%s %s", shorten(method, quote=str), shorten(scope["path"]))
            if not begun:
                await refused(500, UNEXPECTED)(scope, receive, dressed)

    def _answer(self, scope: Scope) -> Response | None:
        """What is said to those who may not pass."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            return refused(400, "the Host header names a host that this server is not; open it by its own address")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return refused(403, "requests from pages of another origin are refused")
        at_the_door = scope["path"] == PAGE and scope["method"] == "GET"
        if headers.get("sec-fetch-site") in ELSEWHERE and not (at_the_door and _is_navigation(headers)):
            return refused(403, "requests from pages of another site are refused")
        if self.token is None or scope["path"] == OPEN:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if at_the_door and self._is_token(given):
            entered = RedirectResponse("/", 303)  # the token leaves the address, and with it the history
            entered.set_cookie(COOKIE, given, httponly=True, samesite="strict")
            return entered
        if self._knows(headers):
            return None
        if at_the_door:
            return Response(f"<!doctype html><title>pellucid</title><p>{LOCKED}", 401, media_type="text/html")
        return refused(401, "a token is needed: send the header Authorization: Bearer TOKEN")

    def _is_ours(self, host: str) -> bool:
        match = HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].lower()
        return name in self.names or is_address(name.strip("[]"))

    def _knows(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        return self._is_token(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


def own_names(host: str) -> set[str]:
    """What others may call a server that is bound to this address: its name, and the machine's if it takes all."""
    if is_loopback(host):
        return set()
    return {host, socket.gethostname(), socket.getfqdn()}


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def check_token(token: str | None, host: str) -> None:
    """A server that others can reach has a token; or a sentence."""
    if token is None and not is_loopback(host):
        raise ValueError(
            f"bound to {host}, others can reach the server: give it a --token, or set PELLUCID_TOKEN "
            "(16 letters, digits, - or _ at least)"
        )
    if token is not None and not TOKEN.fullmatch(token):
        raise ValueError("the token is too short or has other characters; expected 16…200 letters, digits, - or _")


def _is_navigation(headers: Headers) -> bool:
    """Whether a person follows a link, in a window of its own: no frame, image or script."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
