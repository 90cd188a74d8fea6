"""How one of a model's files comes back from where its folder came from."""

from __future__ import annotations

import shlex
from pathlib import Path

from appliance.diagnosis.shell_words import is_operand

SNAPSHOTS = "snapshots"
IN_CACHE = "models--"


def restoring_command(folder: Path, file: str) -> str | None:
    """Of a clone, git's; of a folder in the hub's cache, the hub's own, which needs a network. None where it does not
    show where the folder came from, or where a name in it would be taken for an option."""
    if not is_operand(file):
        return None
    name = shlex.quote(file)
    if (folder / ".git").exists():
        git = f"git -C {shlex.quote(str(folder))}"
        return f"{git} checkout -- {name} && {git} lfs pull --include {name}"
    cached = folder.parent.parent
    if folder.parent.name != SNAPSHOTS or not cached.name.startswith(IN_CACHE):
        return None
    repository, revision = cached.name.removeprefix(IN_CACHE).replace("--", "/"), folder.name
    if not (is_operand(repository) and is_operand(revision)):
        return None
    where = ("--revision", revision, "--cache-dir", str(cached.parent))
    return shlex.join(("hf", "download", repository, file, *where, "--force-download"))
