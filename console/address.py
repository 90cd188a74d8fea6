"""Where the running console is, for programs on this machine: `console.json` in the state folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from appliance.home import Home, write_atomically


class Address(msgspec.Struct, frozen=True):
    url: str


def _path(home: Home) -> Path:
    return home.root / "console.json"


def url(host: str, port: int) -> str:
    """Where a server that listens there can be reached from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def recorded(home: Home, host: str, port: int) -> Iterator[None]:
    """Say where the console is, for as long as it runs."""
    write_atomically(_path(home), msgspec.json.encode(Address(url(host, port))))
    try:
        yield
    finally:
        _path(home).unlink(missing_ok=True)


def find(home: Home) -> str | None:
    """Where the console said that it is. One that was killed has left its address: nobody answers there."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.json.decode(_path(home).read_bytes(), type=Address).url
    return None
