"""How one of a model's files comes back from where its folder came from."""

from __future__ import annotations

import shlex
from pathlib import Path

SNAPSHOTS = "snapshots"
IN_CACHE = "models--"


def restoring_command(folder: Path, file: str) -> str | None:
    """Of a clone, git's; of a folder in the hub's cache, the hub's own, which needs a network. None where it does not
    show where the folder came from."""
    name = shlex.quote(file)
    if (folder / ".git").exists():
        git = f"git -C {shlex.quote(str(folder))}"
        return f"{git} checkout -- {name} && {git} lfs pull --include {name}"
    cached = folder.parent.parent
    if folder.parent.name != SNAPSHOTS or not cached.name.startswith(IN_CACHE):
        return None
    repository = shlex.quote(cached.name.removeprefix(IN_CACHE).replace("--", "/"))
    cache = shlex.quote(str(cached.parent))
    return f"hf download {repository} {name} --revision {shlex.quote(folder.name)} --cache-dir {cache} --force-download"
