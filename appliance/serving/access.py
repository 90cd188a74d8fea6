"""Who may ask: API keys and the console's token, re-read whenever they change, and no web page of another site."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from appliance.address import LOOPBACK_NAMES
from appliance.home import Home
from appliance.serving.errors import ApiError

Connection = ASGIConnection[Any, Any, Any, Any]

CONSOLE = "the console"  # in place of a key's id: its token is no key
_KEY = "api_key_id"


class Key(msgspec.Struct, frozen=True):
    """A key is 32 random bytes, so its plain hash gives nothing away."""

    id: str
    name: str
    sha256: str


class KeyFile(msgspec.Struct, frozen=True):
    keys: list[Key] = []


class Watched:
    """A small file that is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: tuple[int, ...] | None = None
        self._content: bytes | None = None

    def read(self) -> bytes | None:
        """None where there is no such file."""
        try:
            status = self._path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if signature != self._signature:
                self._content = self._path.read_bytes()
                self._signature = signature
        except FileNotFoundError:
            self._signature = self._content = None
        return self._content


class Access:
    """Guards and their files: `active/keys.json` and `active/console-token.sha256`."""

    def __init__(self, home: Home) -> None:
        self._keys = Watched(home.api_keys)
        self._token_digest = Watched(home.front_door_digest)

    def require_key(self, connection: Connection, _handler: BaseRouteHandler | None) -> None:
        """A guard: a key or the console's token, where there are keys; otherwise anyone but foreign web pages."""
        shown = _bearer(connection)
        keys = self._ids()
        if shown is not None:
            key_id = CONSOLE if self._is_token(shown) else keys.get(_digest(shown))
            if key_id is not None:
                connection.scope.setdefault("state", {})[_KEY] = key_id
                return
        if keys:
            raise _unauthorized(
                "This key is not valid." if shown else "Give an API key as `Authorization: Bearer KEY`."
            )
        self.refuse_foreign_page(connection)

    def require_token(self, connection: Connection, _handler: BaseRouteHandler) -> None:
        """A guard: the console's token, always."""
        shown = _bearer(connection)
        if shown is None or not self._is_token(shown):
            raise _unauthorized("This path is the console's: it shows its token as `Authorization: Bearer`.")

    def refuse_foreign_page(self, connection: Connection) -> None:
        """A web page that somebody here looks at must not use an API that asks for no key; not even under a name of
        its own that it lets point to this machine."""
        origin = connection.headers.get("origin")
        site = connection.headers.get("sec-fetch-site")
        if origin is None and site is None:
            return  # not a browser
        host = connection.headers.get("host", "")
        foreign = site in ("cross-site", "same-site") or (origin is not None and urlsplit(origin).netloc != host)
        if foreign or _may_be_rebound(host):
            message = "A web page of another site asked, and this API has no keys to tell friend from foe: make one."
            raise ApiError(403, message, code="foreign_origin")

    def _ids(self) -> dict[str, str]:
        """By the hash of each key."""
        content = self._keys.read()
        if content is None:
            return {}
        try:
            return {key.sha256: key.id for key in msgspec.json.decode(content, type=KeyFile).keys}
        except msgspec.DecodeError:
            # Open to nobody rather than to everybody.
            raise ApiError(500, "active/keys.json cannot be read: save the keys again in the console.") from None

    def _is_token(self, shown: str) -> bool:
        known = (self._token_digest.read() or b"").strip()
        return bool(known) and hmac.compare_digest(_digest(shown).encode(), known)


def key_of(connection: Connection) -> str:
    """The id of the API key that `require_key` accepted; "" where none was given."""
    return str(connection.scope.get("state", {}).get(_KEY, ""))


def _may_be_rebound(host: str) -> bool:
    """A name whose owner can let it point to this machine. No page is served here, so a browser that asks under such
    a name was sent by somebody else's page."""
    name = urlsplit(f"//{host}").hostname or ""
    if name in LOOPBACK_NAMES:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _bearer(connection: Connection) -> str | None:
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
