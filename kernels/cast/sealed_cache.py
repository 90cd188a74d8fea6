"""Triton's cache in a sealed engine: it may be read-only and in any folder, and a miss is an error."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NoReturn

from triton.runtime.cache import CacheManager

from kernels.cast import commands, files
from kernels.cast.errors import CastError
from kernels.cast.files import TRITON
from kernels.cast.manifest import File
from kernels.seal import NotCast


class CacheMissError(NotCast):
    """The cast has no file of this name under this key. `kernels.launch` adds the variant; for a kernel launched in any
    other way only its name is known."""


class SealedCache(CacheManager):  # type: ignore[misc]  # Triton has no types
    """Provides the files of one key. Each is read once per process, and refused if its hash is not the manifest's."""

    folder: ClassVar[Path]
    files: ClassVar[Mapping[str, File]]

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key

    def get_file(self, filename: str) -> str:
        return self._checked(f"{TRITON}/{self._key}/{filename}")

    def get_group(self, filename: str) -> dict[str, str]:
        """A kernel's files; `filename` is the name of its metadata file."""
        prefix = f"{TRITON}/{self._key}/"
        if prefix + filename not in self.files:
            self._miss(filename)
        names = [path.removeprefix(prefix) for path in self.files if path.startswith(prefix)]
        return {name: self.get_file(name) for name in names}

    def put(self, data: object, filename: str, binary: bool = True) -> NoReturn:
        self._miss(filename)

    def put_group(self, filename: str, group: object) -> NoReturn:
        self._miss(filename)

    def _checked(self, path: str) -> str:
        file = self.files.get(path)
        if file is None:
            self._miss(path)
        place = self.folder / path
        try:
            content = files.read(self.folder, path)
        except OSError as error:
            raise _damaged(f"Cannot read {place}: {error.strerror}.", self.folder) from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise _damaged(f"{place} has changed since it was cast.", self.folder)
        return str(place)

    def _miss(self, filename: str) -> NoReturn:
        raise CacheMissError(
            f"The cast in {self.folder} has no {Path(filename).name} for the key {self._key} (a kernel or host stub). "
            "A sealed engine compiles nothing."
        )


def _damaged(message: str, folder: Path) -> CastError:
    return CastError("cast-changed", message, "Restore the original, or cast again.", commands.verify(folder))
