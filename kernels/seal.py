"""Seals a process: from then on it launches only what a cast holds, and compiles nothing.

Call `seal` before anything imports a kernel. A launch the cast cannot serve raises `NotCast`, and so does anything else
that would compile (`kernels/compilers.py`). Imports torch and Triton only when it is called.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kernels.cast import check, commands
from kernels.cast.architectures import ARCHITECTURES
from kernels.cast.environment import PINNED
from kernels.cast.errors import CastError
from kernels.cast.files import FLASHINFER
from kernels.cast.manifest import Manifest
from kernels.variants import Variant

_ALIGNMENT = 16  # bytes, of what is passed to a kernel
_INT32 = range(-(2**31), 2**31)

_sealed_from: Path | None = None
_manifest: Manifest | None = None


class NotCast(RuntimeError):
    """A sealed engine needed a kernel that its cast does not hold, or was about to compile something."""


def seal(folder: Path, *, source_checked: bool = False) -> Manifest:
    """Run from the cast in `folder` from now on. `source_checked`: preflight has compared the kernels' source with the
    cast's, which takes a tenth of a second; a kernel that differs is refused when it is launched in any case.

    Raises:
        CastError: the cast is incomplete or was made with a different Triton or Python, or the environment changes how
            kernels are compiled.
    """
    global _sealed_from, _manifest
    manifest = check.read(folder)
    # FlashInfer loads its modules itself, so they are checked now; Triton's kernels are checked when they are loaded.
    changed = check.against_files(manifest, folder, within=f"{FLASHINFER}/")
    odd = check.against_this_environment(manifest, os.environ, source=not source_checked)
    for problem in (*odd, *changed):
        raise problem
    os.environ.update(PINNED)
    # Where Triton looks for the driver's library when it links. It no longer links, but would still run ldconfig.
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)

    _import_torch()

    from kernels import compilers, flashinfer
    from kernels.cast import pinning
    from kernels.cast.sealed_cache import SealedCache

    flashinfer.seal(folder, ARCHITECTURES[manifest.architecture])
    SealedCache.folder, SealedCache.files = folder, {file.path: file for file in manifest.files}
    pinning.pin(SealedCache, _refuse_to_compile)
    pinning.pin_ptxas(manifest.versions.ptxas)
    compilers.refuse()
    _sealed_from, _manifest = folder, manifest
    return manifest


def _import_torch() -> None:
    """Its build for CUDA brings a library that looks for the C library's `dl` by running ldconfig, and then gcc. Told
    that there is none, it takes the usual name."""
    find = ctypes.util.find_library
    ctypes.util.find_library = lambda name: None
    try:
        import torch  # noqa: F401
    finally:
        ctypes.util.find_library = find


def not_cast(variant: Variant, parameters: Sequence[Any], arguments: Sequence[Any]) -> NotCast:
    """The error for a `variant` not found for these arguments; `parameters` are Triton's, of the kernel."""
    assert _manifest is not None
    assert _sealed_from is not None
    architecture = _manifest.architecture
    what = f"{variant.op} needs the kernel {variant.name} on {architecture}"
    odd = list(_odd_arguments(parameters, arguments))
    if odd:
        return NotCast(f"{what}, with arguments no kernel is cast for: {'; '.join(odd)}. This is a bug in Ingot.")
    if variant.name in {cast.name for cast in _manifest.variants}:
        why = f"which the cast in {_sealed_from} holds, but compiled from different source"
    else:
        limits = f", which was made only for {', '.join(_manifest.models)}" if _manifest.models else ""
        why = f"which is not in the cast in {_sealed_from}{limits}"
    return NotCast(f"{what}, {why}. Cast it: {commands.cast(architecture, _sealed_from)}")


def _odd_arguments(parameters: Sequence[Any], arguments: Sequence[Any]) -> Iterator[str]:
    for parameter, argument in zip(parameters, arguments, strict=False):
        name = parameter.name
        if hasattr(argument, "data_ptr"):
            if argument.data_ptr() % _ALIGNMENT and not parameter.do_not_specialize_on_alignment:
                yield f"{name} is a misaligned pointer (not a multiple of {_ALIGNMENT} bytes)"
        elif isinstance(argument, int) and argument not in _INT32:
            yield f"{name} is {argument}, which needs 64 bits; kernels are cast for 32-bit numbers"


def _refuse_to_compile(name: str, *_: object) -> NoReturn:
    raise CastError(
        "cast-stub-unusable",
        f"{name} of the cast in {_sealed_from} is missing or cannot be loaded, and a sealed engine compiles nothing.",
        "Cast again on a system whose C library is not newer than this one's.",
    )
