"""What was done about a failed launch: the console keeps it in the launch's folder, so that its page, and those of
similar failures, can show it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Literal

import msgspec

from appliance.home import Home, write_atomically

log = logging.getLogger(__name__)

FOLLOW_UP = "follow-up.json"
DISMISSED = "dismissed"

Kind = Literal["fix", "roll-back", "automatic-roll-back"]


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """`launch` is the one that was started instead, of `revision` ("r8") of `profile`."""

    kind: Kind
    launch: str
    profile: str
    revision: str
    time: float


def write_follow_up(home: Home, about: str, kind: Kind, *, launch: str, profile: str, revision: str) -> None:
    """Record it for the launch `about`. A full disk does not prevent the action itself."""
    done = FollowUp(kind=kind, launch=launch, profile=profile, revision=revision, time=time.time())
    try:
        write_atomically(home.launch(about) / FOLLOW_UP, msgspec.json.format(msgspec.json.encode(done)))
    except OSError as error:
        log.warning("The follow-up of launch %s could not be saved: %s", about, error)


def read_follow_up(folder: Path) -> FollowUp | None:
    """None where nothing was done, or where the file is damaged."""
    try:
        return msgspec.json.decode((folder / FOLLOW_UP).read_bytes(), type=FollowUp)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def dismiss(folder: Path) -> None:
    """Keep a refused attempt off the dashboard from now on; its own page stays. Raises OSError."""
    (folder / DISMISSED).touch()


def is_dismissed(folder: Path) -> bool:
    return (folder / DISMISSED).exists()
