"""Verify a bundle, and install what it holds: as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from appliance.bundle.manifest import NAME, BundledFile, BundleError, Manifest, copy_hashed, decode

MAX_MANIFEST_BYTES = 16 << 20

Report = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """For callers that show no progress."""


def verify(path: Path, report: Report = _silent) -> Manifest:
    """Check every file of the bundle against its manifest; the manifest if all is right.

    Raises:
        BundleError: it is not a bundle, or a file is missing, damaged or not in the manifest.
    """
    return _read(path, lambda file: contextlib.nullcontext(lambda chunk: None), report)


def install(path: Path, models: Path, report: Report = _silent) -> Path:
    """Copy the model into the folder `models`, checking it on the way; where it now lies.

    Raises:
        BundleError: as `verify`; or a model of that name is there already, or the disk is too small.
    """
    with _opened(path) as bundle:
        manifest = _manifest(bundle, path)
    target = models / manifest.name
    if target.exists():
        raise BundleError(f"a model named {manifest.name} is already in {models}; rename or remove it first")
    free = shutil.disk_usage(models).free
    if free < manifest.total_bytes:
        need, have = manifest.total_bytes / 2**30, free / 2**30
        raise BundleError(f"{models} has {have:.1f} GiB free, and {manifest.name} needs {need:.1f} GiB; make room")
    incoming = Path(tempfile.mkdtemp(prefix=f".incoming-{manifest.name}-", dir=models))

    @contextlib.contextmanager
    def into(file: BundledFile) -> Iterator[Callable[[bytes], object]]:
        destination = incoming / file.path
        destination.parent.mkdir(parents=True, exist_ok=True)
        with destination.open("wb") as out:
            yield out.write
            out.flush()
            os.fsync(out.fileno())

    try:
        _read(path, into, report)
        for copied in [incoming, *incoming.rglob("*")]:  # a model is no secret, and an engine may run as somebody else
            copied.chmod(0o755 if copied.is_dir() else 0o644)
        os.rename(incoming, target)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    return target


def _read(
    path: Path,
    into: Callable[[BundledFile], contextlib.AbstractContextManager[Callable[[bytes], object]]],
    report: Report,
) -> Manifest:
    """Pass each file's bytes to what `into` opens for it, and compare its checksum."""
    with _opened(path) as bundle:
        manifest = _manifest(bundle, path)
        expected = {f"{manifest.name}/{file.path}": file for file in manifest.files}
        done = 0
        while (member := bundle.next()) is not None:
            file = expected.pop(member.name, None)
            source = bundle.extractfile(member) if member.isreg() else None
            if file is None or source is None or member.size != file.size:
                raise BundleError(f"{path.name} holds {member.name!r}, which its manifest does not; do not use it")
            with source, into(file) as write:
                sha256 = copy_hashed(source, write)
            if sha256 != file.sha256:
                raise BundleError(
                    f"{file.path} in {path.name} is damaged (its checksum differs); copy the bundle again"
                )
            done += file.size
            report(done, manifest.total_bytes)
        if expected:
            raise BundleError(f"{path.name} ends before {min(expected)}; copy the bundle again")
    return manifest


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as bundle:
            yield bundle
    except FileNotFoundError as error:
        raise BundleError(f"{path} does not exist; check the path") from error
    except (tarfile.TarError, EOFError) as error:
        raise BundleError(f"{path.name} is not a whole bundle ({error}); copy it again") from error


def _manifest(bundle: tarfile.TarFile, path: Path) -> Manifest:
    member = bundle.next()
    source: IO[bytes] | None = None
    if member is not None and member.name == NAME and member.isreg() and member.size <= MAX_MANIFEST_BYTES:
        source = bundle.extractfile(member)
    if source is None:
        raise BundleError(f"{path.name} does not begin with a manifest; it is not an Ingot bundle")
    with source:
        return decode(source.read())
