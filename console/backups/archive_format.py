"""The format of a backup: a gzipped tar that begins with `backup.json` (a summary, so that listing backups need not
read all of them) and ends with `manifest.json` (the summary and the SHA-256 of every file)."""

from __future__ import annotations

import re
import time

import msgspec

FORMAT = 1
KIND = "ingot-backup"

SQLITE_MAGIC = b"SQLite format 3\0"
"""How a copy of the database alone begins."""

SUMMARY = "backup.json"
MANIFEST = "manifest.json"
DATABASE = "ingot.db"
ACTIVE = "active"
LAUNCHES = "launches"
SELFTEST = "selftest"
TRUSTED_KEYS = "trusted-keys"

MOST_JSON_BYTES = 64 << 20
MOST_FILES = 200_000
LATEST = 253402300800.0
"""Seconds to the year 10000: times from there on cannot be shown."""
SLACK_BYTES = 16 << 20
"""By how much the files may outgrow the sum in the summary: small ones may be replaced by longer ones while they are
copied. Nothing grows with the gzip's ratio."""

_NAME = r"[0-9A-Za-z_][0-9A-Za-z._+-]{0,127}"
_ALLOWED = re.compile(
    rf"{DATABASE}|{ACTIVE}/(profile\.yaml|keys\.json)|{LAUNCHES}/[0-9A-Za-z][0-9A-Za-z._-]{{0,99}}/{_NAME}"
    rf"|({SELFTEST}|{TRUSTED_KEYS})/{_NAME}"
)

FILE_NAME = re.compile(r"ingot-backup-\d{8}-\d{6}(-\d{1,4})?\.tar\.gz")
DATABASE_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}\.db")
"""Copies of the database alone: what is made before a migration."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a state contains, so that people recognise it. `launches` is how many are in the file."""

    accounts: list[str] = []
    profiles: int = 0
    revisions: int = 0
    active: str = ""
    api_keys: int = 0
    launches: int = 0
    trusted_keys: list[str] = []


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes` is the sum of the files, unpacked. `schema` is the database's, which may be newer than this Ingot's."""

    kind: str
    format: int
    ingot: str
    schema: str
    made: float
    with_launches: bool
    bytes: int
    contents: Contents


class BackedUpFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Manifest(Summary, frozen=True, kw_only=True):
    files: list[BackedUpFile]


def file_name(made: float, number: int = 1) -> str:
    """`number` distinguishes backups made in the same second."""
    again = f"-{number}" if number > 1 else ""
    return f"ingot-backup-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(made))}{again}.tar.gz"


def is_allowed(path: str) -> bool:
    """Whether a file of this name can be part of a backup: none of them leads out of the state folder."""
    return _ALLOWED.fullmatch(path) is not None
