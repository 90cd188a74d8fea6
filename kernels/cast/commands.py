"""Commands offered as remedies, quoted for a shell because a path may contain spaces."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def cast(architecture: str, folder: Path, profiles: Sequence[str] = (), *, triton_only: bool = False) -> str:
    limits = [word for profile in profiles for word in ("--profile", profile)] + ["--triton-only"] * triton_only
    return shlex.join(("ingot", "cast", "--arch", architecture, "--out", str(folder), *limits))


def verify(folder: Path) -> str:
    return shlex.join(("ingot", "verify", "--cast", str(folder)))


def unset(names: list[str]) -> str:
    return shlex.join(("unset", *names))
