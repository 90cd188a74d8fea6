"""`active/profile.yaml`: the profile of the next launch, with its launch id and revision; replaced as a whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.home import Home, write_atomically
from appliance.profile import text
from appliance.profile.document import parse, write
from appliance.profile.schema import Problem, ProfileError

_BUNDLED_PROFILE: Final = Path(__file__).parents[1] / "selftest" / "profile.yaml"


class ActiveProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`launch` is the id that the next launch is to take; None leaves it to the supervisor."""

    launch: str | None
    revision: str
    document: dict[str, Any]


def read_active(home: Home) -> ActiveProfile | None:
    """None where no profile is active. Raises ProfileError when the file is there and cannot be read."""
    path = home.active_profile
    try:
        data = text.read(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(home, error.strerror or str(error)) from error
    except ProfileError as error:
        raise _unreadable(home, error.problems[0].message) from error
    launch, revision, document = data.get("launch"), data.get("revision", ""), data.get("profile")
    if not isinstance(document, dict):
        raise _unreadable(home, "It has no `profile`.")
    if not isinstance(launch, str | None) or not isinstance(revision, str):
        raise _unreadable(home, "`launch` and `revision` must be text.")
    return ActiveProfile(launch=launch, revision=revision, document=document)


def make_room(home: Home) -> None:
    """Anything in the file's place that is not a file cannot be replaced by one: it is moved aside. Raises OSError."""
    path = home.active_profile
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.aside-{time.time_ns()}"))


def write_active(home: Home, active: ActiveProfile) -> None:
    """Make `active` the profile of the next launch. Raises OSError when the state folder cannot be written."""
    make_room(home)
    content = {"launch": active.launch, "revision": active.revision, "profile": active.document}
    write_atomically(home.active_profile, write(content))


def bundled_profile() -> dict[str, Any]:
    """What runs where nobody has chosen yet: a new installation answers, too."""
    return parse(_BUNDLED_PROFILE.read_bytes())


def _unreadable(home: Home, why: str) -> ProfileError:
    return ProfileError(
        [
            Problem(
                field="",
                value=str(home.active_profile),
                message=f"The active profile cannot be read: {why}",
                remedy="Activate a profile again to replace the file.",
            )
        ]
    )
