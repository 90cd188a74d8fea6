"""What a new state folder is given before the engine starts: the bundled model's profile as the active one. It needs no
database, so that the engine does not wait for one."""

from __future__ import annotations

from appliance.home import Home
from appliance.profile.active import ActiveProfile, bundled_profile, write_active

FIRST_REVISION = "r1"


def seed_active(home: Home) -> None:
    """Make the bundled profile the next launch's, on a folder that has neither a database nor an active profile."""
    if not home.database.exists() and not home.active_profile.exists():
        write_active(home, ActiveProfile(launch=None, revision=FIRST_REVISION, document=bundled_profile()))
