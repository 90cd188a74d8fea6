"""Triton's cache in a worker of a cast: a key's folder appears atomically, complete, and without local paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

from triton.runtime.cache import CacheManager

# Of the files Triton writes for a kernel (its source in five stages), those that a launch reads.
_KEPT = (".cubin", ".json")
# The field of a kernel's metadata with this machine's paths of Triton.
_LOCAL = "extern_libs"


class CastingCache(CacheManager):  # type: ignore[misc]  # Triton has no types
    """Looks in `folder` first, so that what a cast already has is not compiled again. `touched` collects the requested
    keys."""

    folder: ClassVar[Path]
    scratch: ClassVar[Path]
    touched: ClassVar[dict[str, None]] = {}

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key
        self._place = self.folder / key
        self._scratch = self.scratch / key
        self.touched[key] = None

    def get_file(self, filename: str) -> str | None:
        path = self._place / filename
        return str(path) if path.exists() else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        if not (self._place / filename).exists():
            return None
        return {path.name: str(path) for path in self._place.iterdir() if path.is_file()}

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = self._scratch / filename
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        if filename.endswith(".so"):
            self._finish([path])
            return str(self._place / filename)
        return str(path)

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        self._finish([Path(path) for name, path in group.items() if name.endswith(_KEPT)])

    def _finish(self, paths: list[Path]) -> None:
        complete = self._scratch / "complete"
        complete.mkdir()
        for path in paths:
            if path.suffix == ".json":
                metadata = json.loads(path.read_bytes())
                metadata[_LOCAL] = []
                (complete / path.name).write_text(json.dumps(metadata, sort_keys=True))
            else:
                shutil.copy(path, complete)
        try:
            complete.rename(self._place)
        except OSError:
            if not self._place.exists():  # else another worker was first, with the same content
                raise
            shutil.rmtree(complete)
