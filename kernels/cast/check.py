"""Checks a cast without a GPU: whether it is complete, unchanged, and fits this machine. Imports neither torch nor
Triton."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kernels.cast import commands, environment, files, libstdcxx, manifest
from kernels.cast.errors import CastError
from kernels.cast.folder import JOURNAL, read_journal
from kernels.cast.manifest import Manifest, Versions
from kernels.context import Context
from kernels.selection import AUTO, Explanation

_SHOWN = 3


def read(folder: Path) -> Manifest:
    """The manifest of the cast in `folder`. Raises CastError."""
    path = folder / manifest.NAME
    try:
        return manifest.parse(path.read_bytes(), path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CastError(
            "cast-unreadable",
            f"Cannot read {path}: {error.strerror}.",
            "Give this user read access to the cast's folder.",
        ) from None
    if (folder / JOURNAL).exists():
        head, entries = read_journal(folder)
        raise CastError(
            "cast-unfinished",
            f"The cast in {folder} was interrupted after {len(entries):,} of {head.planned:,} kernels.",
            "Cast again into the same folder; finished kernels are kept.",
            commands.cast(head.architecture, folder, head.profiles, triton_only=head.triton_only),
        )
    raise CastError("cast-absent", f"{folder} is not a cast: it has no {manifest.NAME}.", "Name the folder of a cast.")


def against_architecture(found: Manifest, folder: Path, architecture: str) -> Iterator[CastError]:
    if found.architecture != architecture:
        yield CastError(
            "cast-architecture",
            f"The cast in {folder} is for {found.architecture}, but this GPU is {architecture}.",
            f"Cast for {architecture} into another folder, and set INGOT_CAST to it.",
            commands.cast(architecture, folder.parent / architecture),
        )


def against_this_environment(
    found: Manifest, environ: Mapping[str, str], *, source: bool = True
) -> Iterator[CastError]:
    """Differences between this process and what the cast was made with; in the kernels' `source` too unless that is
    False."""
    here = Versions(
        ingot=found.versions.ingot,
        triton=environment.installed("triton") or "none",
        triton_build=environment.triton_build(),
        python=environment.python_tag(),
        ptxas=found.versions.ptxas,
        libc=found.versions.libc,
    )
    flashinfer = environment.installed("flashinfer-python")  # without it, its modules are not used
    tvm_ffi = environment.installed(environment.TVM_FFI) if flashinfer else None
    for id, name, there, now in (
        ("cast-triton", "Triton", found.versions.triton, here.triton),
        ("cast-python", "Python", found.versions.python, here.python),
        (
            "cast-flashinfer", "FlashInfer",
            found.versions.flashinfer or flashinfer, flashinfer or found.versions.flashinfer,
        ),
        (
            "cast-tvm-ffi", "apache-tvm-ffi",
            found.versions.tvm_ffi or tvm_ffi, tvm_ffi or found.versions.tvm_ffi,
        ),
    ):  # fmt: skip
        if there != now:
            yield CastError(
                id,
                f"The cast was made with {name} {there}, but {now} is installed.",
                f"Install {name} {there}, or cast again on this machine.",
            )
    if flashinfer and not libstdcxx.serves(found.versions.libstdcxx or "", libstdcxx.here()):
        yield CastError(
            "cast-libstdcxx",
            f"The cast's FlashInfer modules need libstdc++ with GLIBCXX_{found.versions.libstdcxx}, but the newest "
            f"version here is {libstdcxx.here() or 'none'}.",
            "Run it on a newer system, or cast again on a system as old as this one.",
        )
    if here.triton != "none" and environment.triton_folder() is None:
        yield environment.triton_is_gone()
    elif found.versions.triton == here.triton and found.versions.triton_build != here.triton_build:
        yield CastError(
            "cast-triton",
            f"The cast was made with a different build of Triton {here.triton} from the one installed.",
            "Install the same build, or cast again on this machine.",
        )
    if source and found.source != environment.kernel_source():
        yield CastError(
            "cast-source",
            f"The cast was made from different kernel source, by Ingot {found.versions.ingot}.",
            "Use the cast that belongs to this Ingot, or cast again; unchanged kernels are kept.",
        )
    odd = environment.conflicts(environ)
    if odd:
        yield CastError(
            "cast-environment",
            f"Environment variables change how kernels are compiled or found: {', '.join(odd)}.",
            "Unset them: a sealed engine runs its kernels exactly as cast.",
            commands.unset([name.partition("=")[0] for name in odd]),
        )


def against_needs(
    found: Manifest, folder: Path, selection: Iterable[Explanation], context: Context
) -> Iterator[CastError]:
    """Kernels missing from the cast, where an op of this model would otherwise run in plain torch or not at all. If
    only the preferred backend's kernels are missing, the next backend runs and nothing is reported."""
    summary = found.summary()
    held = summary.variants | summary.modules
    needed = {name: explained.op.name for explained in selection for name in _needed(explained, context)}
    missing = [name for name in needed if name not in held]
    if missing:
        first = "; ".join(f"{needed[name]} {name}" for name in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        limits = f" It was made only for {', '.join(found.models)}." if found.models else ""
        yield CastError(
            "cast-variant-missing",
            f"The cast in {folder} lacks {len(missing):,} of the {len(needed):,} kernels this model needs: "
            f"{first}{more}.{limits}",
            "Cast again into the same folder; finished kernels are kept.",
            commands.cast(found.architecture, folder),
        )


def _needed(explained: Explanation, context: Context) -> tuple[str, ...]:
    """The kernels of the op's backend; if that backend is not compiled, those of the first compiled backend the op
    could use if they were cast. Triton's come before FlashInfer's, which a cast may be made without."""
    if explained.chosen is not None and explained.chosen.is_compiled:
        return (*explained.needs.variants, *explained.needs.modules)
    anywhere = replace(context, cast=None)
    able = (
        backend
        for backend in explained.op.in_order(context)
        if explained.requested in (AUTO, backend.name)
        and backend.is_compiled
        and next(backend.objections(anywhere), None) is None
    )
    best = min(able, key=lambda backend: bool(backend.modules), default=None)
    if best is None:
        return ()
    needs = best.needs_of_a_cast(context)
    return (*needs.variants, *needs.modules)


def changed_files(found: Manifest, folder: Path, within: str = "") -> Iterator[str]:
    """A problem for each changed file whose path begins with `within`, and for each library that does not belong to the
    cast, because FlashInfer would load it."""
    for file in found.files:
        if not file.path.startswith(within):
            continue
        try:
            content = files.read(folder, file.path)
        except OSError as error:
            yield f"cannot read {file.path}: {error.strerror}"
            continue
        if len(content) != file.size:
            yield f"{file.path} has {len(content):,} bytes instead of {file.size:,}"
        elif hashlib.sha256(content).hexdigest() != file.sha256:
            yield f"{file.path} has a different SHA-256"
    listed = {file.path for file in found.files}
    for path in files.libraries(folder):
        if path not in listed:
            yield f"{path} is not listed in {manifest.NAME}"


def against_files(found: Manifest, folder: Path, within: str = "") -> Iterator[CastError]:
    changed = list(changed_files(found, folder, within))
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield CastError(
            "cast-changed",
            f"The cast in {folder} has changed since it was made: {'; '.join(changed[:_SHOWN])}{more}.",
            "Cast again into the same folder; unchanged files are kept.",
            commands.cast(found.architecture, folder),
        )
