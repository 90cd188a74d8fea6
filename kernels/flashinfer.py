"""FlashInfer as Ingot runs it: imported in one place, and shut in with a cast's modules where the engine is sealed.

While it is imported, FlashInfer reads its environment and makes folders; so all of that is settled before.
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

from kernels.seal import NotCast


class _Sealed(NamedTuple):
    modules: Path
    architecture: str
    workspace: tempfile.TemporaryDirectory[str]


_sealed: _Sealed | None = None


def seal(cast: Path, architecture: str, spelling: str) -> None:
    """Load modules from `cast`/flashinfer alone, from now on. `spelling` is FlashInfer's own for `architecture`."""
    global _sealed
    assert "flashinfer" not in sys.modules, "FlashInfer has read its environment already"
    # It writes generated sources before it looks for their library, and the package's folder may be read-only.
    workspace = tempfile.TemporaryDirectory(prefix="ingot-flashinfer-")
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    os.environ["FLASHINFER_WORKSPACE_BASE"] = workspace.name
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = spelling  # else it asks on sm_120 which nvcc is there
    _sealed = _Sealed(cast / "flashinfer", architecture, workspace)


@functools.cache
def library() -> ModuleType:
    """The package `flashinfer`."""
    # Its newer norms are in CuTe's language, which is compiled when first called, whether compiling is disabled or not.
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    import flashinfer
    from flashinfer.jit import env

    if _sealed is not None:
        env.FLASHINFER_AOT_DIR = _sealed.modules
    imported: ModuleType = flashinfer
    return imported


@contextmanager
def loading(op: str) -> Iterator[None]:
    """Raises NotCast where FlashInfer, sealed, would have to build a module for `op`."""
    library()  # imported as above, before a part of it is
    from flashinfer.jit.core import MissingJITCacheError

    try:
        yield
    except MissingJITCacheError as error:
        if _sealed is None or error.spec is None:
            raise
        folder = _sealed.modules.parent
        raise NotCast(
            f"{op} needs FlashInfer's module {error.spec.name} on {_sealed.architecture}, and the cast in {folder} "
            f"does not hold it. Cast it: ingot cast --arch {_sealed.architecture} --out {folder}"
        ) from error
