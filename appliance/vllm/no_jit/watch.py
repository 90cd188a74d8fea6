"""Our side of `jit: forbid`: gives a launch the hook, hears what it refused, and sees compilers that it cannot."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple

from appliance.engine_process.process_tree import command_of, descendants
from appliance.profile.schema import Profile
from appliance.vllm.no_jit import hook

_FOLDER: Final = "python"
_REPORT: Final = "compilations"
_SHOWN: Final = 300
PATIENCE_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.1


class CompilationForbiddenError(Exception):
    """Something was about to be compiled, or was, in a launch that forbids it."""


class Compiler(NamedTuple):
    """One that runs, and its command as a shell would have it."""

    tool: str
    command: str


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


def unheard(folder: Path, guard: int, patience_s: float = PATIENCE_S) -> CompilationForbiddenError | None:
    """Why a launch cannot promise what its profile forbids: of the Pythons below its `guard`, one has not the hook, or
    there are none. Blocking: one that has just started is waited for, for `patience_s` at most."""
    loaded = folder / f"{_REPORT}{hook.LOADED}"
    until = time.monotonic() + patience_s
    while True:
        pythons = [pid for pid in descendants(guard) if _is_python(pid)]
        without = [pid for pid in pythons if not _holds(pid, loaded)]
        if pythons and not without:
            return None
        if time.monotonic() > until:
            break
        time.sleep(_LOOK_AGAIN_S)
    which = f"vLLM's Python in process {without[0]}" if without else "vLLM's Python"
    return CompilationForbiddenError(f"{which} did not load what refuses to compile: it ignores PYTHONPATH")


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2].startswith(("python", "pypy"))
    return False


def _holds(pid: int, path: Path) -> bool:
    """Whether the process has the file open. By its inode: links, and mounts of the process's own, give it other
    paths."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for handle in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(handle.path), wanted):
                    return True
    return False


def compiled(folder: Path, pid: int) -> CompilationForbiddenError | None:
    """What has been compiled or refused below the process `pid`. Blocking, for milliseconds."""
    said = (folder / _REPORT).read_text(encoding="utf-8", errors="replace")
    if "\n" in said:
        return CompilationForbiddenError(said.partition("\n")[0])
    for process in descendants(pid):
        if (found := compiler_at(process)) is not None:
            return CompilationForbiddenError(f"{found.tool} runs as process {process}: {found.command[:_SHOWN]}")
    return None


def compiler_at(pid: int) -> Compiler | None:
    """The compiler that a process is or runs, where it is given something to compile."""
    found = hook.tool_of(command := command_of(pid))
    if found is None or found[0] not in hook.COMPILERS or not hook.compiles(found[1]):
        return None
    return Compiler(found[0], shlex.join(command))
