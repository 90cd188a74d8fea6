"""The caches that a launch writes to when it uses a pack: a copy of the whole pack, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from appliance.home import sync_below
from appliance.vllm.cache_packs.pack import PackError, PackFolder, pieces

_PREFIX: Final = "vllm-pack-"
_PARTIAL: Final = ".partial-"


def place_of(folder: PackFolder, caches: Path) -> Path:
    """Where the copy of this pack is, or will be."""
    return caches / f"{_PREFIX}{folder.digest[:16]}"


def working_copy(folder: PackFolder, caches: Path) -> Path:
    """The caches of launches that use this pack, in a folder of `caches`; made at the first of them, every file
    compared with its hash on the way. What vLLM compiles besides is kept there too. Once it has its name it is whole,
    also after a power cut.

    Raises:
        PackError: a file of the pack is missing or damaged; nothing of it is used then.
        OSError: the disk is full, or cannot be written to.
    """
    target = place_of(folder, caches)
    if target.is_dir():
        return target
    partial = caches / f"{_PARTIAL}{target.name}"
    shutil.rmtree(partial, ignore_errors=True)  # of a launch that was cut off
    try:
        partial.mkdir(mode=0o700, parents=True)
        for file in folder.pack.files:
            place = partial / file.path
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with place.open("xb") as opened:
                opened.writelines(pieces(folder, file))
            place.chmod(0o700 if place.suffix == ".so" else 0o600)
            os.utime(place, ns=(file.modified_ns, file.modified_ns))
        sync_below(partial)
        os.rename(partial, target)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # a write names none
        raise
    return target


def clear_orphans(caches: Path, found: Iterable[PackFolder | PackError], used: PackFolder | None) -> None:
    """Remove the copies of packs that are not there any more, whole or cut off, but for the one that is `used`. None
    is, where a pack that is there cannot be read."""
    kept = set() if used is None else {place_of(used, caches)}
    for folder in found:
        if isinstance(folder, PackError):
            return
        kept.add(place_of(folder, caches))
    for old in (*caches.glob(f"{_PREFIX}*"), *caches.glob(f"{_PARTIAL}{_PREFIX}*")):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
