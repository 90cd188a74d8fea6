"""Where the environment says that kernels come from: a cast, or a compiler at run time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernels.cast import check
from kernels.cast.errors import CastError
from kernels.context import CastSummary

CAST = "INGOT_CAST"  # a cast's folder: the engine is sealed
JIT = "INGOT_JIT"  # 1: on a GPU the engine compiles what it needs, sealed or not


def may_compile(environ: Mapping[str, str]) -> bool:
    """Whether somebody asked for it, with `--jit` or in the environment. Only a plain yes is one: whatever else the
    variable says, a sealed engine stays sealed."""
    return environ.get(JIT, "").strip().lower() in ("1", "true", "yes", "on")


def cast_folder(environ: Mapping[str, str]) -> Path | None:
    """The cast that a sealed engine runs from; None where none is named, or compiling was asked for instead."""
    named = environ.get(CAST)
    return Path(named).absolute() if named and not may_compile(environ) else None


def cast_summary(environ: Mapping[str, str]) -> CastSummary | None:
    """What the cast of a sealed engine holds, if it is good enough to be judged; what is wrong with another one is for
    preflight's check to say."""
    folder = cast_folder(environ)
    try:
        return check.read(folder).summary() if folder else None
    except CastError:
        return None
