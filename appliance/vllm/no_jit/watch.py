"""Our side of `jit: forbid`: gives a launch the hook, hears what it refused, and sees compilers that it cannot."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Final

from appliance.engine_process.process_tree import command_of, descendants
from appliance.profile.schema import Profile
from appliance.vllm.no_jit import hook

_FOLDER: Final = "python"
_REPORT: Final = "compilations"
_SHOWN: Final = 300


class CompilationForbiddenError(Exception):
    """Something was about to be compiled, or was, in a launch that forbids it."""


def variables(profile: Profile, folder: Path) -> dict[str, str]:
    """What a launch's environment says for the hook that `install` puts into `folder`, which is the launch's own."""
    if not profile.forbids_jit:
        return {}
    return {"PYTHONPATH": str(folder / _FOLDER), hook.REPORT: str(folder / _REPORT)}


def install(profile: Profile, folder: Path) -> None:
    """Raises OSError where the disk is full."""
    if not profile.forbids_jit:
        return
    (folder / _FOLDER).mkdir(mode=0o700)
    shutil.copyfile(hook.__file__, folder / _FOLDER / "sitecustomize.py")
    (folder / _REPORT).touch(mode=0o600)


def unheard(folder: Path, guard: int) -> CompilationForbiddenError | None:
    """Why a launch cannot promise what its profile forbids: below its `guard`, a Python of ours, none has the hook."""
    place = folder / f"{_REPORT}{hook.LOADED}"
    if place.exists() and set(place.read_text().split()) - {str(guard)}:
        return None
    return CompilationForbiddenError("vLLM's Python did not load what refuses to compile: it ignores PYTHONPATH")


def compiled(folder: Path, pid: int) -> CompilationForbiddenError | None:
    """What has been compiled or refused below the process `pid`. Blocking, for milliseconds."""
    said = (folder / _REPORT).read_text(encoding="utf-8", errors="replace")
    if "\n" in said:
        return CompilationForbiddenError(said.partition("\n")[0])
    for process in descendants(pid):
        found = hook.tool_of(command := command_of(process))
        if found is not None and found[0] in hook.COMPILERS and hook.compiles(*found):
            return CompilationForbiddenError(f"{found[0]} runs as process {process}: {shlex.join(command)[:_SHOWN]}")
    return None
