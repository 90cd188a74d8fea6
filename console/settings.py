"""What the console is told at its start. Each setting is a row: environment name, default, help; `ingot up` has a
flag for those that change from day to day."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.home import Home


@dataclass(frozen=True)
class Setting:
    name: str
    default: str
    help: str


SETTINGS = (
    Setting("INGOT_CONSOLE_HOST", "127.0.0.1", "The address that the console listens on."),
    Setting("INGOT_CONSOLE_PORT", "8080", "The console's port."),
    Setting("INGOT_CONSOLE_NAMES", "", "More names, separated by commas, by which browsers may call the console."),
    Setting("INGOT_ENGINE_HOST", "127.0.0.1", "The address of the engine's front door."),
    Setting("INGOT_ENGINE_PORT", "8000", "The port of the engine's front door."),
    Setting("INGOT_ENGINE_CONTROL", "process", "Who runs the engine: process, docker, or none."),
    Setting("INGOT_ENGINE_CONTAINER", "ingot-engine", "The engine's container, where docker runs it."),
    Setting("INGOT_CONSOLE_URL", "", "The console's address for people, where it is published under another one."),
    Setting("INGOT_ENGINE_URL", "", "The API's address for people, where it is published under another one."),
    Setting("INGOT_SESSION_HOURS", "168", "After how many hours without use a browser has to sign in again."),
    Setting(
        "INGOT_COOKIE_SECURE", "", "1 where the console is reached through HTTPS: cookies are then sent only there."
    ),
    Setting("INGOT_CONSOLE_PROXY", "", "The name of the proxy in front, whose word counts for where a browser is."),
    Setting("INGOT_ADMIN", "admin", "The administrator's name, where INGOT_ADMIN_PASSWORD_FILE makes the account."),
    Setting("INGOT_ADMIN_PASSWORD_FILE", "", "A file with the administrator's password, for a start without a person."),
    Setting("INGOT_API_KEY_FILE", "", "A file with an API key that `/v1` is to take."),
    Setting("INGOT_MEDIA", "/media", "The folder under which sticks and disks with models to import are mounted."),
)

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
REQUEST_BODY_LIMIT = 4 * 1024 * 1024
"""Bytes. The largest thing a page sends is a profile to import."""


class SettingError(ValueError):
    """A setting has a value that cannot be used; the text names it and says what is allowed."""


@dataclass(frozen=True)
class ConsoleConfig:
    """The console's settings, checked."""

    home: Home
    host: str = "127.0.0.1"
    port: int = 8080
    names: frozenset[str] = field(default_factory=frozenset)
    engine_host: str = "127.0.0.1"
    engine_port: int = 8000
    engine_control: str = "process"
    engine_container: str = "ingot-engine"
    console_url: str = ""
    published_engine_url: str = ""
    session_hours: int = 168
    cookie_secure: bool = False
    proxy: str = ""
    admin: str = "admin"
    admin_password_file: Path | None = None
    api_key_file: Path | None = None
    media: Path = Path("/media")

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
        values = {row.name: environ.get(row.name) or row.default for row in SETTINGS}
        control = values["INGOT_ENGINE_CONTROL"]
        if environ.get("INGOT_ADMIN_PASSWORD"):
            raise SettingError(
                "INGOT_ADMIN_PASSWORD is set: whoever may inspect the process reads it there. Put the password into a "
                "file and name that in INGOT_ADMIN_PASSWORD_FILE."
            )
        if control not in ("process", "docker", "none"):
            raise SettingError(f"INGOT_ENGINE_CONTROL is {control!r}: use process, docker or none.")
        return cls(
            home=home,
            host=values["INGOT_CONSOLE_HOST"],
            port=_whole_number("INGOT_CONSOLE_PORT", values, 0, 65535),
            names=frozenset(name.strip().lower() for name in values["INGOT_CONSOLE_NAMES"].split(",") if name.strip()),
            engine_host=values["INGOT_ENGINE_HOST"],
            engine_port=_whole_number("INGOT_ENGINE_PORT", values, 1, 65535),
            engine_control=control,
            engine_container=values["INGOT_ENGINE_CONTAINER"],
            console_url=values["INGOT_CONSOLE_URL"].rstrip("/"),
            published_engine_url=values["INGOT_ENGINE_URL"].rstrip("/"),
            session_hours=_whole_number("INGOT_SESSION_HOURS", values, 1, 24 * 365),
            cookie_secure=values["INGOT_COOKIE_SECURE"] == "1",
            proxy=values["INGOT_CONSOLE_PROXY"].strip(),
            admin=values["INGOT_ADMIN"].strip(),
            admin_password_file=_path("INGOT_ADMIN_PASSWORD_FILE", values),
            api_key_file=_path("INGOT_API_KEY_FILE", values),
            media=Path(values["INGOT_MEDIA"]).expanduser().absolute(),
        )


def _path(name: str, values: Mapping[str, str]) -> Path | None:
    return Path(values[name]) if values[name] else None


def _whole_number(name: str, values: Mapping[str, str], low: int, high: int) -> int:
    try:
        number = int(values[name])
    except ValueError:
        raise SettingError(f"{name} is {values[name]!r}: it has to be a whole number.") from None
    if not low <= number <= high:
        raise SettingError(f"{name} is {number}: it has to be from {low} to {high}.")
    return number
