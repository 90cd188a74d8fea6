"""The first file of a bundle: what it holds, and the checksum of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import IO

import msgspec

NAME = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 1 << 20


class BundleError(Exception):
    """A bundle that cannot be made, read or installed; the text says what is wrong with which file and what to do."""


class BundledFile(msgspec.Struct, frozen=True):
    """A file by its path inside the bundle (with `/`), its size in bytes and the SHA-256 of its content in hex."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle holds. `name` is the folder that it becomes below the models folder."""

    format: int = FORMAT
    kind: str = "model"
    name: str
    ingot: str
    created: float
    files: tuple[BundledFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


def decode(raw: bytes) -> Manifest:
    """Read and check a manifest.

    Raises:
        BundleError: it is damaged, of a format we do not know, or names files outside its own folder.
    """
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"{NAME} cannot be read ({error}); copy the bundle again") from error
    if manifest.format != FORMAT:
        raise BundleError(f"the bundle has format {manifest.format}, and this Ingot reads {FORMAT}; update Ingot")
    for path in [manifest.name, *(file.path for file in manifest.files)]:
        if not is_plain(path):
            raise BundleError(f"the bundle names a file {path!r} outside its own folder; do not use it")
    if "/" in manifest.name:
        raise BundleError(f"the bundle's name is {manifest.name!r}; it must be a folder's name")
    return manifest


def is_plain(path: str) -> bool:
    """A relative path that stays where it is put."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path


def copy_hashed(source: IO[bytes], write: Callable[[bytes], object]) -> str:
    """Copy `source` to its end through `write`; the SHA-256 of what passed, in hex."""
    digest = hashlib.sha256()
    for chunk in chunks(source):
        digest.update(chunk)
        write(chunk)
    return digest.hexdigest()


def chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(CHUNK_BYTES):
        yield chunk
