"""The command that fixes one of Ingot's own launches where its profile needs no change: something else on this machine
does, such as a package, a limit or the owner of a cache."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from appliance.diagnosis.shell_words import operand
from appliance.hardware.container import container
from appliance.home import Home
from appliance.home_lock import read_owner
from appliance.vllm_program import find_program

# The limit that a cause speaks of, and what prlimit calls it.
LIMITS: Final[Mapping[tuple[str, str], tuple[int, str]]] = {
    ("host", "too-many-open-files"): (resource.RLIMIT_NOFILE, "nofile"),
    ("host", "too-many-processes"): (resource.RLIMIT_NPROC, "nproc"),
    ("memory", "host-out-of-memory"): (resource.RLIMIT_AS, "as"),
    ("memory", "locked-memory"): (resource.RLIMIT_MEMLOCK, "memlock"),
}
LEAST_FILES: Final = 65_536
COMPILED: Final = ("vllm/torch_compile_cache", "inductor", "triton")


class Site(NamedTuple):
    """Where a launch ran: the state folder, the Python of its engine's packages, the front door that started it."""

    home: Path
    python: Path | None
    front_door: int | None
    in_container: bool

    @classmethod
    def here(cls) -> Site:
        home = Home.from_environment()
        program = find_program(os.environ)
        owner = read_owner(home.lock) if home.lock.is_file() else None
        return cls(
            home.root,
            program.python if program is not None else None,
            owner.pid if owner is not None else None,
            container(os.environ) is not None,
        )

    def with_package(self, package: str) -> str | None:
        """In a container the next start would be without it again."""
        if self.in_container or self.python is None or not _has_pip(self.python) or not os.access(self.python, os.X_OK):
            return None
        return shlex.join((str(self.python), "-m", "pip", "install", package))

    def with_program(self, package: str) -> str | None:
        if self.in_container or shutil.which("apt-get") is None:
            return None
        return f"sudo apt-get install -y {package}"

    def with_own_caches(self, path: str) -> str | None:
        """Of a path within the caches that Ingot gives to engines: they are the user's that this runs as."""
        caches = self.home / "caches"
        if not Path(path).is_relative_to(caches) or ".." in Path(path).parts:
            return None
        whole = operand(str(caches))
        return f"sudo chown -R {os.getuid()}:{os.getgid()} {whole}" if whole is not None else None

    def without_compiled(self) -> str | None:
        """The next start compiles again."""
        folders = [self.home / "caches" / "vllm" / name for name in COMPILED]
        there = [str(folder) for folder in folders if folder.is_dir()]
        return shlex.join(("rm", "-r", *there)) if there else None

    def with_limit(self, family: str, cause: str) -> str | None:
        """The front door's limit, which every engine that it starts inherits: to as much as is allowed, or further
        where that is reached. None where there is no limit."""
        kind, flag = LIMITS.get((family, cause), (None, ""))
        if kind is None or self.front_door is None:
            return None
        try:
            soft, hard = resource.prlimit(self.front_door, kind)
        except (OSError, ValueError):
            return None
        if soft == resource.RLIM_INFINITY:
            return None
        more = max(2 * soft, LEAST_FILES) if kind == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
        limit, root = (more, "sudo ") if hard == soft else (hard, "")
        told = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        return f"{root}prlimit --pid {self.front_door} --{flag}={told}{'' if root else ':'}"


def _has_pip(python: Path) -> bool:
    return any(python.parent.parent.glob("lib/python3*/site-packages/pip/__main__.py"))
