"""Make a bundle of a model folder."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from appliance import __version__
from appliance.bundle.manifest import NAME, BundledFile, BundleError, Manifest, copy_hashed
from appliance.checkpoint.folder import require_files


def create(folder: Path, out: Path, report: Callable[[int, int], None] = lambda done, total: None) -> Manifest:
    """Write the model in `folder` to the bundle `out`, which appears only once it is whole.

    `report(done, total)` hears how many bytes have been hashed and written, of twice their number.

    Raises:
        BundleError: `out` exists already, or the folder is not a model.
    """
    if out.exists():
        raise BundleError(f"{out} exists already; remove it or choose another name")
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a folder; give the folder of a model")
    require_files(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    total = 2 * sum(path.stat().st_size for path in paths)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(done, total)

    files = []
    for path in paths:
        with path.open("rb") as source:
            sha256 = copy_hashed(source, lambda chunk: advance(len(chunk)))
        files.append(BundledFile(path.relative_to(folder).as_posix(), path.stat().st_size, sha256))
    manifest = Manifest(name=folder.name, ingot=__version__, created=time.time(), files=tuple(files))
    partial = out.with_name(out.name + ".partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as bundle:
            _add(bundle, NAME, io.BytesIO(raw := msgspec.json.encode(manifest)), len(raw))
            for path, file in zip(paths, files, strict=True):
                with path.open("rb") as source:
                    _add(bundle, f"{folder.name}/{file.path}", source, file.size)
                advance(file.size)
        os.replace(partial, out)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise
    return manifest


def _add(bundle: tarfile.TarFile, name: str, source: io.IOBase, size: int) -> None:
    """A member without this machine's owner, mode or time, so that equal content makes equal bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    bundle.addfile(member, source)
