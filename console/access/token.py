"""The token by which this console is let into the front door's `/appliance`. Kept apart from the keys, which need the
database: it is made before anything else, so that the engine can be started first."""

from __future__ import annotations

import secrets

from appliance.home import Home, write_atomically


def ensure_console_token(home: Home) -> None:
    """Made once for a state folder."""
    if not home.console_token.exists():
        write_atomically(home.console_token, secrets.token_urlsafe(32))


def token_header(home: Home) -> dict[str, str]:
    """What to send with each request; nothing where there is no token yet."""
    try:
        return {"Authorization": f"Bearer {home.console_token.read_text().strip()}"}
    except FileNotFoundError:
        return {}
