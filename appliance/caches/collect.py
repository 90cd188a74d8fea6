"""Make a pack of the caches that a launch has filled."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.bundle.lock import only_one
from appliance.home import sync_below, sync_folder
from appliance.vllm.cache_packs.facts import Facts
from appliance.vllm.cache_packs.pack import (
    MANIFEST,
    NAME,
    OBJECTS,
    PACKED,
    SIGNATURE,
    SIGNER,
    Pack,
    PackError,
    PackFile,
    PackFolder,
    encode,
    is_path,
    open_to_readers,
    read_pack,
)

if TYPE_CHECKING:
    from appliance.bundle.signature import Key

# What compilers leave beside their results: locks, and files that were never finished. Hidden files count: FlashInfer
# has its modules below `.cache`, and ninja its log beside them.
_SCRATCH_ENDS: Final = (".lock", ".tmp", ".partial")
_SCRATCH_START: Final = "tmp."
_SCRATCH_FOLDERS: Final = frozenset({"locks", "__pycache__"})


def make_pack(
    caches: Path, out: Path, *, profile: str, cold_s: float, facts: Facts, key: Key | None = None
) -> PackFolder:
    """Copy the compiled code in `caches` to the new folder `out`, which is there once it is whole.

    Raises:
        BundleError: another pack is being made beside it.
        PackError: there is nothing compiled, a file changes while it is read, or `out` exists or cannot be made.
    """
    if not NAME.fullmatch(out.name):
        raise PackError("name", f"{out.name!r} is no name for a pack; use letters, digits, '.', '_' and '-'")
    if os.path.lexists(out):
        raise PackError("file-exists", f"{out} already exists; remove it, or choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackError("out", f"{out.parent} cannot be made: {error.strerror}; choose another --out") from error
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise PackError("out", f"{out.parent} cannot be written to; choose another --out")
    with only_one(out.parent):
        _write(caches, out, profile=profile, cold_s=cold_s, facts=facts, key=key)
    return read_pack(out)


def _write(caches: Path, out: Path, *, profile: str, cold_s: float, facts: Facts, key: Key | None) -> None:
    partial = out.with_name(f".partial-{out.name}")
    shutil.rmtree(partial, ignore_errors=True)  # of one that was cut off
    try:
        (partial / OBJECTS).mkdir(parents=True)
        files = tuple(_copy(caches, path, partial / OBJECTS) for path in _compiled(caches))
        if not files:
            raise PackError("nothing-compiled", f"{caches} holds no compiled code; start the profile first")
        pack = Pack(
            name=out.name, profile=profile, created=int(time.time()), cold_s=round(cold_s, 1), facts=facts, files=files
        )
        raw = encode(pack)
        if key is not None:
            (partial / SIGNATURE).write_bytes(key.sign(raw, f"ingot cache pack {pack.name} timestamp:{pack.created}"))
            (partial / SIGNER).write_bytes(str(key.public).encode())
        (partial / MANIFEST).write_bytes(raw)
        open_to_readers(partial)
        sync_below(partial)
        os.rename(partial, out)
        sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _compiled(caches: Path) -> Iterator[str]:
    """The paths of everything below `caches` that a launch elsewhere could use."""
    for name in PACKED:
        for folder, folders, files in os.walk(caches / name):
            folders[:] = sorted(name for name in folders if not _is_scratch(name) and name not in _SCRATCH_FOLDERS)
            for file in sorted(files):
                path = Path(folder, file)
                relative = path.relative_to(caches).as_posix()
                if not _is_scratch(file) and _is_within(path, caches) and is_path(relative):
                    yield relative


def _is_scratch(name: str) -> bool:
    return name.endswith(_SCRATCH_ENDS) or name.startswith(_SCRATCH_START)


def _is_within(path: Path, caches: Path) -> bool:
    """A file, or a link to one of the caches' own."""
    resolved = path.resolve()
    return resolved.is_file() and resolved.is_relative_to(caches.resolve())


def _copy(caches: Path, path: str, objects: Path) -> PackFile:
    source = caches / path
    with source.open("rb") as opened:
        before = os.fstat(opened.fileno())
        content = opened.read()
        after = os.fstat(opened.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or not stat.S_ISREG(after.st_mode):
        raise PackError("changed", f"{source} changed while it was read; make the pack once the engine is ready")
    file = PackFile(path, len(content), hashlib.sha256(content).hexdigest(), after.st_mtime_ns)
    (objects / file.sha256).write_bytes(content)
    return file
