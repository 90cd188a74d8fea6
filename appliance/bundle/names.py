"""What may lie in a bundle, under which name and in which order: names so plain that no tar, shell or file system reads
one in another way than we do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

INSTALLER: Final = "install.sh"
CHECKSUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.minisig"
SIGNER: Final = "signer.pub"
MANIFEST: Final = "manifest.json"
FACTS: Final = "bundle.env"
ROLES: Final = ("gate", "console", "engine")  # in the order in which a bundle holds them: the gate has `minisign`

_PART = r"[A-Za-z0-9_+@=][A-Za-z0-9._+@=-]*"  # neither empty, nor hidden, nor "..", nor read as an option
_PATH: Final = re.compile(rf"{_PART}(/{_PART})*")
RELEASE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # what Docker allows in a tag
MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ARCHITECTURE: Final = re.compile(r"sm_[0-9]{2,3}[a-z]?")
PACK: Final = MODEL  # what a cache pack may be called
# What may follow the head, in this order.
CONTENT: Final = (
    *(re.compile(rf"images/{role}\.tar\.zst") for role in ROLES),
    re.compile(r"compose/[A-Za-z0-9_-][A-Za-z0-9._-]*"),
    re.compile(rf"sbom/({'|'.join(ROLES)})\.cdx\.json"),
    re.compile(rf"licences/({'|'.join(ROLES)})/.+"),
    re.compile(rf"casts/{ARCHITECTURE.pattern}/.+"),
    re.compile(rf"packs/{PACK.pattern}/(pack\.json(\.minisig)?|signer\.pub|objects/[0-9a-f]{{64}})"),
    re.compile(rf"models/{MODEL.pattern}/.+"),
)


def is_path(path: str) -> bool:
    """Whether a member may be named so: relative, of plain parts, and short enough for a tar header."""
    return _PATH.fullmatch(path) is not None and split(path) is not None


def split(path: str) -> tuple[str, str] | None:
    """`path` as the two fields that a tar header has for it, of at most 155 and 100 bytes; None if it is too long."""
    if len(path) <= 100:
        return "", path
    cut = path.rfind("/", 0, 156)
    return (path[:cut], path[cut + 1 :]) if cut > 0 and len(path) - cut - 1 <= 100 else None


def place(path: str) -> int | None:
    """The row of `CONTENT` that a member's name matches; None if there is none."""
    return next((row for row, pattern in enumerate(CONTENT) if pattern.fullmatch(path)), None)


def clash(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two of the names that are the same, or would be where upper and lower case are, or of which one would be the
    other's folder; None if there are none."""
    folders: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if (file := files.get(folder.casefold())) is not None:
                return file, path
            if (known := folders.setdefault(folder.casefold(), folder)) != folder:
                return known, path
        if (other := folders.get(path.casefold()) or files.get(path.casefold())) is not None:
            return other, path
        files[path.casefold()] = path
    return None
