"""The token of this console: it opens the console to programs of its user, and what the front door is shown is made
from it. Kept apart from the keys, which need the database: it is made before anything else, so that the engine can be
started first."""

from __future__ import annotations

import secrets

from appliance.front_door_token import digest, front_door_token
from appliance.home import Home, write_atomically


def ensure_console_token(home: Home) -> None:
    """Made once for a state folder; the front door gets its digest."""
    if not home.console_token.exists():
        write_atomically(home.console_token, secrets.token_urlsafe(32), mode=0o600)
    shown = front_door_token(home)
    if shown is not None:
        write_atomically(home.front_door_digest, digest(shown))
    # Up to version 0.1.0 the engine could read the token, which lay here.
    (home.active / "console-token").unlink(missing_ok=True)


def token_header(home: Home) -> dict[str, str]:
    """The headers for each request to the front door; empty if there is no token yet."""
    shown = front_door_token(home)
    return {} if shown is None else {"Authorization": f"Bearer {shown}"}


def program_header(home: Home) -> dict[str, str]:
    """The headers for a program's requests to the console; empty if there is no token yet."""
    try:
        return {"Authorization": f"Bearer {home.console_token.read_text().strip()}"}
    except FileNotFoundError:
        return {}
