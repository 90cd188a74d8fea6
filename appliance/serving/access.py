"""Who may call the API: API keys and the console's token, re-read whenever they change, and no web page of another
site.

`active/keys.json` says whether a key is required. Whatever it says, a key is required where other machines can reach
the API, unless the site has opted out.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from appliance.address import LOOPBACK_NAMES, host_name, is_ip_address, is_loopback, is_own_origin
from appliance.home import Home
from appliance.key_file import KeyFile
from appliance.serving.errors import ApiError

Connection = ASGIConnection[Any, Any, Any, Any]

CONSOLE = "the console"  # in place of a key's id: its token is no key
NO_KEY = "no key"
UNKNOWN_KEY = "unknown key"
_KEY = "api_key_id"


class KnownKeys:
    """A key file, ready to be asked at each request: `ids` by hash."""

    def __init__(self, file: KeyFile) -> None:
        self.required = file.is_required
        self.ids = {key.sha256: key.id for key in file.keys}
        self.revoked = frozenset(file.revoked)


class WatchedFile:
    """A small file that is re-read when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: tuple[int, ...] | None = None
        self._content: bytes | None = None

    def read(self) -> bytes | None:
        """None if there is no such file. Raises OSError if it cannot be read."""
        try:
            status = self._path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if signature != self._signature:
                self._content = self._path.read_bytes()
                self._signature = signature
        except FileNotFoundError:
            self._signature = self._content = None
        return self._content


class KeyNames:
    """The names of the API keys by their ids, also of those that have been deleted since they were last used here."""

    def __init__(self, file: Path) -> None:
        self._file = WatchedFile(file)
        self._content: bytes | None = None
        self._names: dict[str, str] = {"": NO_KEY, CONSOLE: CONSOLE}

    def name(self, key_id: str) -> str:
        try:
            content = self._file.read()
            if content is not None and content is not self._content:
                self._names |= {key.id: key.name for key in msgspec.json.decode(content, type=KeyFile).keys}
                self._content = content
        except (OSError, msgspec.DecodeError):
            pass  # whoever has been let in by it is still known
        return self._names.get(key_id, UNKNOWN_KEY)


PUBLISHED_ADDRESS: Final = "INGOT_PUBLISHED_ADDRESS"
KEYLESS: Final = "INGOT_KEYLESS"
FORWARDED: Final = ("forwarded", "x-forwarded-for")
CREATE_ONE: Final = "create one on the console's Access page"


class Access:
    """Who is let in, and the files that say so: `active/keys.json` and `active/console-token.sha256`.

    `host` is the address that the front door listens on. In a container that says nothing, so
    `INGOT_PUBLISHED_ADDRESS` names the addresses, separated by commas, that its port and a proxy's are published on.
    With `INGOT_KEYLESS=1` the site has decided that other machines need no key."""

    def __init__(self, home: Home, host: str, environ: Mapping[str, str] = os.environ) -> None:
        self._keys = WatchedFile(home.api_keys)
        self._decoded: tuple[bytes | None, KnownKeys] = None, KnownKeys(KeyFile())
        self._token_digest = WatchedFile(home.front_door_digest)
        self._keyless = environ.get(KEYLESS) == "1"
        addresses = (environ.get(PUBLISHED_ADDRESS) or host).split(",")
        self._on_loopback = all(is_loopback(address.strip()) for address in addresses)

    def require_key(self, connection: Connection) -> None:
        """A key or the console's token if keys are required; otherwise anyone but other sites' pages and those who show
        a key that was revoked. Clients that need some key send a made-up one, which counts as none."""
        shown = _bearer(connection) or _anthropic_key(connection)
        if shown is not None:
            with contextlib.suppress(OSError):  # whoever has a key needs no token
                if self._is_token(shown):
                    _accept(connection, CONSOLE)
                    return
        known = self._known_keys()
        shown_digest = _digest(shown) if shown is not None else ""
        if (key_id := known.ids.get(shown_digest)) is not None:
            _accept(connection, key_id)
            return
        if shown_digest in known.revoked:
            raise _unauthorized(f"This API key was revoked. Use another one, or {CREATE_ONE}.")
        if known.required and not known.ids:
            raise _unauthorized(f"This API requires a key, but there is none: {CREATE_ONE}.", "no_api_keys")
        if known.required:
            raise _unauthorized(
                "This API key is not valid."
                if shown
                else "This API requires a key. Send it in the header `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        if not self._may_be_keyless(connection):
            raise _unauthorized(
                "Other machines can reach this API, so it requires a key. Send one in the header `Authorization: "
                f"Bearer KEY`; if you have none, {CREATE_ONE}. To answer without keys, start the engine with "
                f"{KEYLESS}=1."
            )
        self.refuse_foreign_page(connection)

    def require_token(self, connection: Connection) -> None:
        """The console's token, always."""
        shown = _bearer(connection)
        try:
            if shown is not None and self._is_token(shown):
                return
        except OSError as error:
            raise _unauthorized(
                f"active/console-token.sha256 cannot be read ({error.strerror}), so the console's token cannot be "
                "checked. Restart the console.",
                "token_unreadable",
            ) from None
        raise _unauthorized(
            "Only the console may call this. Send its token in the header `Authorization: Bearer TOKEN`."
        )

    def refuse_foreign_page(self, connection: Connection) -> None:
        """A web page open in somebody's browser here must not use an API that requires no key, not even under a name of
        its own that resolves to this machine (DNS rebinding)."""
        origin = connection.headers.get("origin")
        site = connection.headers.get("sec-fetch-site")
        if origin is None and site is None:
            return  # not a browser
        host = connection.headers.get("host", "")
        foreign = site in ("cross-site", "same-site") or (origin is not None and not is_own_origin(origin, host))
        if foreign or _may_be_rebound(host):
            message = f"This request came from a web page of another site, so it needs an API key: {CREATE_ONE}."
            raise ApiError(403, message, code="foreign_origin")

    def _may_be_keyless(self, connection: Connection) -> bool:
        """Whether the request can only come from this machine, or the site admits others as well. A proxy's header can
        only make this stricter, so it is accepted from anybody."""
        forwarded = any(name in connection.headers for name in FORWARDED)
        return self._keyless or (self._on_loopback and not forwarded)

    def _known_keys(self) -> KnownKeys:
        """Without a file, no console has written it yet. An unusable file admits nobody, rather than everybody."""
        try:
            content = self._keys.read()
            if content is not self._decoded[0]:
                file = KeyFile() if content is None else msgspec.json.decode(content, type=KeyFile)
                self._decoded = content, KnownKeys(file)
            return self._decoded[1]
        except (OSError, msgspec.DecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise _unauthorized(
                f"active/keys.json cannot be read ({why}), so keys cannot be checked. Restart the console.",
                "keys_unreadable",
            ) from None

    def _is_token(self, shown: str) -> bool:
        """Raises OSError if the token's file cannot be read."""
        known = (self._token_digest.read() or b"").strip()
        return bool(known) and hmac.compare_digest(_digest(shown).encode(), known)


def guard(require: Callable[[Connection], None]) -> Guard:
    """`require` as a route's guard. It is a coroutine because the framework runs any other in a thread: that takes ten
    times as long as looking at a key, and the files are watched by one thread only."""

    async def check(connection: Connection, _handler: BaseRouteHandler) -> None:
        require(connection)

    return check


def _accept(connection: Connection, key_id: str) -> None:
    connection.scope.setdefault("state", {})[_KEY] = key_id


def key_of(connection: Connection) -> str:
    """The id of the API key that `require_key` accepted; "" if none was given."""
    return str(connection.scope.get("state", {}).get(_KEY, ""))


def _may_be_rebound(host: str) -> bool:
    """A name whose owner can let it point to this machine. The page that is served here sends nothing, so a
    browser that asks under such a name was sent by somebody else's."""
    name = host_name(host)
    return name not in LOOPBACK_NAMES and not is_ip_address(name)


def _bearer(connection: Connection) -> str | None:
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def _anthropic_key(connection: Connection) -> str | None:
    """As Anthropic's clients send it."""
    return connection.headers.get("x-api-key", "").strip() or None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _unauthorized(message: str, code: str = "invalid_api_key") -> ApiError:
    return ApiError(401, message, code=code, headers={"WWW-Authenticate": "Bearer"})
