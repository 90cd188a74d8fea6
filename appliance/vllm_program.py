"""Which vLLM this installation would start."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

PROGRAM: Final = "INGOT_VLLM"
"""Names the `vllm` command, where it is neither beside Ingot's Python nor on PATH."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The `vllm` command, and the Python that it runs in."""

    path: Path
    python: Path


def find_program(environ: Mapping[str, str]) -> Program | None:
    """Looks at files only. A path that INGOT_VLLM names is believed: where it is wrong, the check of the engine says
    so, rather than that another vLLM is started."""
    named = environ.get(PROGRAM)
    if named:
        path: Path | None = Path(named)
    else:
        beside = Path(sys.executable).with_name("vllm")
        found = beside if beside.exists() else shutil.which("vllm", path=environ.get("PATH", ""))
        path = Path(found) if found else None
    return Program(path=path, python=_python_of(path)) if path is not None else None


def _python_of(path: Path) -> Path:
    """The one that the command's first line names; beside it where that cannot be read."""
    try:
        with path.open("rb") as script:
            first = script.readline(512)
    except OSError:
        first = b""
    interpreter = first.removeprefix(b"#!").strip().decode(errors="replace") if first.startswith(b"#!") else ""
    named = Path(interpreter)
    return named if named.is_absolute() and named.name.startswith("python") else path.parent / "python"
