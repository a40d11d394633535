"""Who is asking: the address of a connection, or the one that a reverse proxy speaks for."""

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import Scope

HOUSEHOLD = 64  # bits of an IPv6 address that are one caller's: the rest is theirs to choose


class Callers:
    """Tells callers apart. proxies: addresses or networks that are believed when they say whom they speak for.

    unbounded: networks that the bounds for one caller don't hold for; they don't for proxies either.
    """

    def __init__(self, unbounded: Iterable[str] = (), proxies: Iterable[str] = ()):
        self.proxies = [_network(each) for each in proxies]
        self.unbounded = [*(_network(each) for each in unbounded), *self.proxies]

    def is_bounded(self, address: str) -> bool:
        """Whether the bounds for one caller hold for this one; who has no address can't be told from others."""
        return is_address(address) and not _lies_in(address, self.unbounded)

    def caller(self, scope: Scope) -> str:
        """The address that asks. Of what a proxy forwards, the last one that is no proxy: others could be made up."""
        address = (scope.get("client") or ("unknown", 0))[0]
        if not _lies_in(address, self.proxies):
            return address
        lines = Headers(scope=scope).getlist("x-forwarded-for")
        forwarded = [each.strip() for each in ",".join(lines).split(",") if is_address(each.strip())]
        return next((each for each in reversed(forwarded) if not _lies_in(each, self.proxies)), address)


def household(address: str) -> str:
    """What counts as one caller.

    >>> household("192.168.1.5"), household("2001:db8:1:2:3:4:5:6")
    ('192.168.1.5', '2001:db8:1:2::/64')
    """
    if not is_address(address) or ipaddress.ip_address(address).version == 4:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], HOUSEHOLD), strict=False))


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no address or network: {error}; expected one like 10.0.0.2 or 10.0.0.0/24"
        ) from None


def _lies_in(text: str, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    if not is_address(text):
        return False
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in networks if network.version == address.version)
