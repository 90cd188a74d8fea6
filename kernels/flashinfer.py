"""FlashInfer as Ingot runs it: imported in one place, and limited to a cast's modules if the engine is sealed.

On import FlashInfer reads its environment and creates folders, so the environment is set before.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kernels.cast import commands
from kernels.cast.architectures import Architecture
from kernels.cast.files import FLASHINFER
from kernels.seal import NotCast


class _Sealed(NamedTuple):
    cast: Path
    architecture: Architecture


_sealed: _Sealed | None = None


def seal(cast: Path, architecture: Architecture) -> None:
    """From now on load modules only from `cast`/flashinfer."""
    global _sealed
    assert "flashinfer" not in sys.modules, "FlashInfer has read its environment already"
    _sealed = _Sealed(cast, architecture)


@functools.cache
def library() -> ModuleType:
    """The package `flashinfer`."""
    # Its newer norms use CuTe's language, which compiles on the first call even if compiling is disabled.
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    if _sealed is not None:
        os.environ["FLASHINFER_DISABLE_JIT"] = "1"
        # It writes a module's sources before it looks for the library, and the home folder may be read-only.
        os.environ["FLASHINFER_WORKSPACE_BASE"] = _workspace().name
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = _sealed.architecture.flashinfer  # else it asks which nvcc is there
    import flashinfer
    from flashinfer.jit import env

    if _sealed is not None:
        env.FLASHINFER_AOT_DIR = _sealed.cast / FLASHINFER
    imported: ModuleType = flashinfer
    return imported


@functools.cache
def _workspace() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="ingot-flashinfer-")


@contextmanager
def loading(op: str) -> Iterator[None]:
    """Raises NotCast if a sealed FlashInfer would have to build a module for `op`."""
    library()  # imported as above, before a part of it is
    from flashinfer.jit.core import MissingJITCacheError

    try:
        yield
    except MissingJITCacheError as error:
        if _sealed is None or error.spec is None:
            raise
        architecture = _sealed.architecture.name
        raise NotCast(
            f"{op} needs FlashInfer's module {error.spec.name} on {architecture}, and the cast in {_sealed.cast} does "
            f"not hold it. Cast it: {commands.cast(architecture, _sealed.cast)}"
        ) from error
