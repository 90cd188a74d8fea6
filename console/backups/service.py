"""Copies of `ingot.db` in `backups/`: profiles, revisions, users, keys' hashes, the index of launches. Launch folders
and models are files of their own and are not in it."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import msgspec

from appliance.home import Home
from console.db import schema
from console.errors import Refusal

NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}\.db")


class Backup(msgspec.Struct, frozen=True):
    name: str
    size: int
    made: float


def folder(home: Home) -> Path:
    return home.root / "backups"


def list_backups(home: Home) -> list[Backup]:
    """Newest first."""
    found = [Backup(path.name, path.stat().st_size, path.stat().st_mtime) for path in folder(home).glob("*.db")]
    return sorted(found, key=lambda backup: backup.made, reverse=True)


async def make_backup(home: Home) -> Backup:
    """A consistent copy of the database as it is now, whatever is written meanwhile."""
    target = folder(home) / f"ingot-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.db"
    try:
        await asyncio.to_thread(schema.copy, home.database, target)
    except OSError as error:
        raise Refusal(
            507 if error.errno == 28 else 503,
            f"The backup {target} could not be written: {error.strerror}.",
            f"Give {target.parent} disk space and make it writable, then try again.",
        ) from error
    return Backup(target.name, target.stat().st_size, target.stat().st_mtime)


def find(home: Home, name: str) -> Path:
    path = folder(home) / name
    if not NAME.fullmatch(name) or not path.is_file():
        raise Refusal(404, f"There is no backup named {name!r}.", "The list of backups has their names.")
    return path
