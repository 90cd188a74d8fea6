"""What the console shows the front door as a bearer, and how the front door knows it.

It is made from the console's own token in one direction: an engine that was shown it cannot turn it into the token that
opens the console, and has only its digest on disk.
"""

from __future__ import annotations

import hashlib
import hmac

from appliance.home import Home


def front_door_token(home: Home) -> str | None:
    """None if there is no console token yet. Raises PermissionError if this user may not read it."""
    try:
        secret = home.console_token.read_bytes().strip()
    except FileNotFoundError:
        return None
    return hmac.digest(secret, b"front door", "sha256").hex() if secret else None


def digest(token: str) -> str:
    """The token is 32 random bytes, so its plain hash gives nothing away."""
    return hashlib.sha256(token.encode()).hexdigest()
