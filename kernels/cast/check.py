"""Judges a cast without a GPU: is it whole, is it what was written, does it fit here. Imports neither torch nor
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
            "cast-unreadable", f"{path} cannot be read: {error.strerror}.", "Let this user read the cast's folder."
        ) from None
    if (folder / JOURNAL).exists():
        head, entries = read_journal(folder)
        raise CastError(
            "cast-unfinished",
            f"The cast in {folder} was interrupted: {len(entries)} of its {head.planned} variants are there.",
            "Cast again into the same folder: what is there is kept.",
            commands.cast(head.architecture, folder, head.profiles, triton_only=head.triton_only),
        )
    raise CastError("cast-absent", f"There is no cast in {folder}: it has no {manifest.NAME}.", "Name a cast's folder.")


def against_architecture(found: Manifest, folder: Path, architecture: str) -> Iterator[CastError]:
    if found.architecture != architecture:
        yield CastError(
            "cast-architecture",
            f"The cast in {folder} is for {found.architecture}, and this GPU is {architecture}.",
            f"Cast for {architecture} into another folder, and set INGOT_CAST to it.",
            commands.cast(architecture, folder.parent / architecture),
        )


def against_this_environment(found: Manifest, environ: Mapping[str, str]) -> Iterator[CastError]:
    """What of this process differs from what the cast was made with."""
    here = Versions(
        ingot=found.versions.ingot,
        triton=environment.installed("triton") or "none",
        triton_build=environment.triton_build(),
        python=environment.python_tag(),
        ptxas=found.versions.ptxas,
        libc=found.versions.libc,
    )
    flashinfer = environment.installed("flashinfer-python")  # without it, its modules are merely not used
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
                f"The cast was made with {name} {there}, and here is {now}.",
                f"Run it with {name} {there}, or cast again here.",
            )
    if flashinfer and not libstdcxx.serves(found.versions.libstdcxx or "", libstdcxx.here()):
        yield CastError(
            "cast-libstdcxx",
            f"The cast's FlashInfer modules need GLIBCXX_{found.versions.libstdcxx} of libstdc++, and here it ends "
            f"with {libstdcxx.here() or 'none'}.",
            "Run it on a newer system, or cast again on one that is no newer than this.",
        )
    if here.triton != "none" and environment.triton_folder() is None:
        yield environment.triton_is_gone()
    elif found.versions.triton == here.triton and found.versions.triton_build != here.triton_build:
        yield CastError(
            "cast-triton",
            f"The cast was made with another build of Triton {here.triton} than is installed here.",
            "Install the same build, or cast again here.",
        )
    if found.source != environment.kernel_source():
        yield CastError(
            "cast-source",
            f"The cast was made from the kernels of another Ingot ({found.versions.ingot}): their source differs.",
            "Take the cast that belongs to this Ingot, or cast again: what has not changed is kept.",
        )
    odd = environment.conflicts(environ)
    if odd:
        yield CastError(
            "cast-environment",
            f"The environment asks for kernels that are compiled or found in another way: {', '.join(odd)}.",
            "Unset it: a sealed engine runs its kernels as they were cast.",
            commands.unset([name.partition("=")[0] for name in odd]),
        )


def against_needs(
    found: Manifest, folder: Path, selection: Iterable[Explanation], context: Context
) -> Iterator[CastError]:
    """Kernels that are not in the cast, so that an op of this model would be left to plain torch, or to nothing. Where
    only the best backend's are missing, the next one serves."""
    summary = found.summary()
    held = summary.variants | summary.modules
    needed = {name: explained.op.name for explained in selection for name in _needed(explained, context)}
    missing = [name for name in needed if name not in held]
    if missing:
        first = "; ".join(f"{needed[name]} {name}" for name in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        limits = f" It was made for {', '.join(found.models)}." if found.models else ""
        yield CastError(
            "cast-variant-missing",
            f"The cast in {folder} lacks {len(missing)} of the {len(needed)} kernels that this model needs: "
            f"{first}{more}.{limits}",
            "Cast again into the same folder: what is there is kept.",
            commands.cast(found.architecture, folder),
        )


def _needed(explained: Explanation, context: Context) -> tuple[str, ...]:
    """The kernels of the backend that an op gets; if that has none, of the first that it would get were they cast. A
    cast may be made without FlashInfer's modules, so that the kernels of Triton are asked for before them."""
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
    """What is wrong with which file, of those whose path begins with `within`; and libraries that do not belong to the
    cast, which FlashInfer would load all the same."""
    for file in found.files:
        if not file.path.startswith(within):
            continue
        try:
            content = files.read(folder, file.path)
        except OSError as error:
            yield f"{file.path} cannot be read: {error.strerror}"
            continue
        if len(content) != file.size:
            yield f"{file.path} has {len(content)} bytes instead of {file.size}"
        elif hashlib.sha256(content).hexdigest() != file.sha256:
            yield f"{file.path} has another content (SHA-256)"
    listed = {file.path for file in found.files}
    for path in files.libraries(folder):
        if path not in listed:
            yield f"{path} is not named in {manifest.NAME}"


def against_files(found: Manifest, folder: Path, within: str = "") -> Iterator[CastError]:
    changed = list(changed_files(found, folder, within))
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        yield CastError(
            "cast-changed",
            f"The cast in {folder} is not what was cast: {'; '.join(changed[:_SHOWN])}{more}.",
            "Cast again into the same folder: what is unchanged is kept.",
            commands.cast(found.architecture, folder),
        )
