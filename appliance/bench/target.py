"""The server under load: its address, and what every request to it carries."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """`base` is the path before `/v1`, as a proxy may have one; "" for none. `prefix` is "" for what stands beside
    `/v1`."""

    host: str
    port: int
    base: str = ""
    tls: ssl.SSLContext | None = None
    key: str = ""
    prefix: str = "/v1"

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.name}{self.base}"

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a request for `prefix` + `path`."""
        lines = [
            f"{method} {self.base}{self.prefix}{path} HTTP/1.1",
            f"host: {self.name}",
            "content-type: application/json",
            f"content-length: {length}",
        ]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode()


def read_url(url: str, key: str = "") -> Target:
    """Raises ValueError, which says what to write instead."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url} is not a valid address ({error}): write http://HOST:PORT") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{url} is not an address of a server: write http://HOST:PORT or https://HOST:PORT")
    if parts.query or parts.fragment or parts.username:
        raise ValueError(f"{url} has more than an address: write http://HOST:PORT, and the key in INGOT_API_KEY")
    if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
        raise ValueError(f"{url} has characters that no address has: write http://HOST:PORT")
    base = parts.path.rstrip("/").removesuffix("/v1")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(parts.hostname, port or PORTS[parts.scheme], base, tls, key)
