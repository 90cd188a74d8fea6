"""Addresses: the one that the front door or the console listens on, and those of its clients."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

# The names that only this machine itself can be reached by.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

BACKLOG = 2048
NOT_IN_HOST = re.compile(r"[\s/?#@\\]")
"""With these, urlsplit would take a part of the header for its host."""


def is_loopback(host: str) -> bool:
    """Whether only this machine itself can reach a port at this address or name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in LOOPBACK_NAMES


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """The name or address in a Host header, without its port; "" if the header is malformed."""
    if NOT_IN_HOST.search(header):
        return ""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises if it is no port
        return parts.hostname or ""
    except ValueError:
        return ""


def is_own_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host of the same request's Host header."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Bound and listening: who asks from now on waits for an answer instead of being turned away. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the /64, since whoever has one address there has all of them."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
