"""What a launch writes down of what it compiles, so that a pack can be made of it later, whatever has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from appliance.home import read_file
from appliance.launches.folder import LaunchFolder
from appliance.vllm.cache_packs.facts import Facts

MAX_BYTES: Final = 1 << 20


class Compiled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`caches` names the folder below the state folder's `caches` in which the launch found and kept compiled code."""

    caches: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    facts: Facts


def write(folder: LaunchFolder, caches: Path, facts: Facts) -> None:
    """Raises OSError where the disk is full."""
    compiled = Compiled(caches=caches.name, facts=facts)
    folder.write_compiled(msgspec.json.format(msgspec.json.encode(compiled)).decode())


def read(folder: LaunchFolder) -> Compiled | None:
    """None where the launch wrote nothing down, or not so that this Ingot reads it."""
    try:
        return msgspec.json.decode(read_file(folder.compiled, MAX_BYTES), type=Compiled)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
