"""The document that a command was asked about: a profile's file, the active profile, or what runs without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.given_file import read_given
from appliance.home import Home
from appliance.profile import document
from appliance.profile.active import bundled_profile, read_active
from appliance.profile.text import MAX_BYTES


class NoSuchProfileError(ValueError):
    """`source` is neither a file nor the active profile's name."""


def chosen_document(source: str | None, home: Home) -> dict[str, Any]:
    """`source` is a file's path or the active profile's name; None stands for what the next launch would take.

    Raises:
        NoSuchProfileError: there is nothing of this name.
        ProfileError: it is not a document.
    """
    active = read_active(home) if source is None or not Path(source).exists() else None
    if source is None or (active is not None and active.document.get("name") == source):
        return active.document if active is not None else bundled_profile()
    try:
        return document.parse(read_given(Path(source), MAX_BYTES))
    except FileNotFoundError as error:
        active_name = f" The active profile is {active.document.get('name')}." if active else ""
        raise NoSuchProfileError(f"There is no profile {source}: give the path of a file.{active_name}") from error
    except OSError as error:
        raise NoSuchProfileError(f"{source} cannot be read: {error.strerror}.") from error
