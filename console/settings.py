"""The console's settings, read from the environment at its start. Each is one field of `ConsoleConfig`: environment
name, default, help, and how its text is read. `ingot up` has a flag for those that change from day to day."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from appliance.home import Home

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
REQUEST_BODY_LIMIT = 4 * 1024 * 1024
"""Bytes. The largest thing a page sends is a profile to import."""


class SettingError(ValueError):
    """A setting has a value that cannot be used; the text names it and says what is allowed."""


@dataclass(frozen=True)
class Setting:
    """`default` is the text that the environment would hold. `read` makes the value of a text, and raises ValueError
    with what is allowed; an empty text leaves the default."""

    name: str
    default: str
    help: str
    read: Callable[[str], Any]


def _setting(name: str, default: str, help: str, read: Callable[[str], Any] = str) -> Any:
    """A field of ConsoleConfig, with its default as the environment would spell it."""
    return field(default=read(default), metadata={"setting": Setting(name, default, help, read)})


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"write a whole number from {low:,} to {high:,}")
        return int(text)

    return read


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"choose one of {', '.join(choices)}")
        return text

    return read


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in text.split(",") if name.strip())


def _file(text: str) -> Path | None:
    return Path(text) if text else None


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _address(text: str) -> str:
    return text.rstrip("/")


def _yes(text: str) -> bool:
    return text == "1"


@dataclass(frozen=True)
class ConsoleConfig:
    """The console's settings, checked."""

    home: Home
    host: str = _setting("INGOT_CONSOLE_HOST", "127.0.0.1", "The address that the console listens on.")
    port: int = _setting("INGOT_CONSOLE_PORT", "8080", "The console's port.", _whole_number(0, 65535))
    names: frozenset[str] = _setting(
        "INGOT_CONSOLE_NAMES", "", "More host names for the console, separated by commas.", _names
    )
    engine_host: str = _setting("INGOT_ENGINE_HOST", "127.0.0.1", "The address of the engine's front door.")
    engine_port: int = _setting(
        "INGOT_ENGINE_PORT", "8000", "The port of the engine's front door.", _whole_number(1, 65535)
    )
    engine_control: str = _setting(
        "INGOT_ENGINE_CONTROL",
        "process",
        "How the engine is run: process, docker or none.",
        _one_of("process", "docker", "none"),
    )
    engine_container: str = _setting(
        "INGOT_ENGINE_CONTAINER", "ingot-engine", "The engine's container, if Docker runs it."
    )
    console_url: str = _setting("INGOT_CONSOLE_URL", "", "The console's public address, if it differs.", _address)
    published_engine_url: str = _setting("INGOT_ENGINE_URL", "", "The API's public address, if it differs.", _address)
    session_hours: int = _setting(
        "INGOT_SESSION_HOURS",
        "168",
        "Hours of inactivity after which a browser must sign in again.",
        _whole_number(1, 24 * 365),
    )
    cookie_secure: bool = _setting(
        "INGOT_COOKIE_SECURE",
        "",
        "Set to 1 if the console is reached through HTTPS: cookies and browsers are then limited to HTTPS.",
        _yes,
    )
    proxy: str = _setting(
        "INGOT_CONSOLE_PROXY",
        "",
        "The host name of a reverse proxy, which is trusted to report client addresses.",
        str.strip,
    )
    admin: str = _setting(
        "INGOT_ADMIN",
        "admin",
        "The administrator's name, if INGOT_ADMIN_PASSWORD_FILE creates the account.",
        str.strip,
    )
    admin_password_file: Path | None = _setting(  # noqa: RUF009
        "INGOT_ADMIN_PASSWORD_FILE", "", "A file with the administrator's password, for an unattended start.", _file
    )
    api_key_file: Path | None = _setting(  # noqa: RUF009
        "INGOT_API_KEY_FILE", "", "A file with an API key. The API then requires a key.", _file
    )
    media: Path = _setting(  # noqa: RUF009
        "INGOT_MEDIA", "/media", "The folder under which USB drives and disks with models are mounted.", _folder
    )

    @property
    def engine_url(self) -> str:
        host = f"[{self.engine_host}]" if ":" in self.engine_host else self.engine_host
        return f"http://{host}:{self.engine_port}"

    @property
    def allowed_names(self) -> frozenset[str]:
        """The names that a Host header may carry, besides bare addresses. Where others than this machine may connect,
        its own name is one of them."""
        if self.host in LOOPBACK_NAMES:
            return LOOPBACK_NAMES | self.names
        return LOOPBACK_NAMES | self.names | {socket.gethostname().lower(), self.host.lower()}

    @classmethod
    def from_environment(cls, home: Home, environ: Mapping[str, str] = os.environ) -> ConsoleConfig:
        """Raises SettingError."""
        if environ.get("INGOT_ADMIN_PASSWORD"):
            raise SettingError(
                "INGOT_ADMIN_PASSWORD is set, which exposes the password to anyone who can inspect the process. Put it "
                "into a file and set INGOT_ADMIN_PASSWORD_FILE to its path."
            )
        values = {}
        for name, row in _rows().items():
            if text := environ.get(row.name):
                try:
                    values[name] = row.read(text)
                except ValueError as error:
                    raise SettingError(f"{row.name} is {text}: {error}.") from None
        return cls(home=home, **values)


def _rows() -> dict[str, Setting]:
    """Each setting by the field that it fills."""
    return {row.name: row.metadata["setting"] for row in fields(ConsoleConfig) if "setting" in row.metadata}


SETTINGS = tuple(_rows().values())
