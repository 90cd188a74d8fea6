"""What a new state folder is given before the engine starts: the bundled model's profile as the active one. It needs no
database, so that the engine does not wait for one."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from appliance.home import Home
from appliance.profile import document as documents
from appliance.profile.active import ActiveProfile, write_active

FIRST_REVISION = "r1"


def bundled_profile() -> dict[str, Any]:
    return documents.parse((files("appliance.selftest") / "profile.yaml").read_text(encoding="utf-8"))


def seed_active(home: Home) -> None:
    """Make the bundled profile the next launch's, on a folder that has neither a database nor an active profile."""
    if not home.database.exists() and not home.active_profile.exists():
        write_active(home, ActiveProfile(launch=None, revision=FIRST_REVISION, document=bundled_profile()))
