"""Where kernels come from, by the environment: a cast, or a compiler at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernels.cast import check
from kernels.cast.errors import CastError
from kernels.context import CastSummary

CAST = "INGOT_CAST"  # a cast's folder: the engine is sealed
JIT = "INGOT_JIT"  # 1: on a GPU the engine compiles what it needs, sealed or not


def may_compile(environ: Mapping[str, str]) -> bool:
    """Whether compiling was allowed with `--jit` or in the environment. Only an explicit yes counts: with any other
    value a sealed engine stays sealed."""
    return environ.get(JIT, "").strip().lower() in ("1", "true", "yes", "on")


def cast_folder(environ: Mapping[str, str]) -> Path | None:
    """The cast a sealed engine runs from; None if none is named or compiling is allowed."""
    named = environ.get(CAST)
    return Path(named).absolute() if named and not may_compile(environ) else None


def cast_summary(environ: Mapping[str, str]) -> CastSummary | None:
    """What the cast of a sealed engine holds; None if it cannot be read, which preflight's check reports."""
    folder = cast_folder(environ)
    try:
        return check.read(folder).summary() if folder else None
    except CastError:
        return None
