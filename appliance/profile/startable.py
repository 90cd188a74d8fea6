"""`active/on-request.json`: the profiles that a request may start by naming their model, as the console writes them.

It exists only where there are such profiles. The active one is among them: it can always be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.home import Home, write_atomically
from appliance.profile import document as documents
from appliance.profile.on_request import OnRequest
from appliance.profile.schema import ProfileError


class Startable(msgspec.Struct, frozen=True, kw_only=True):
    """A revision to start. `model` is the name that requests send; `saved` is when the revision was."""

    model: str
    profile: str
    revision: str
    engine: str
    saved: float
    limits: OnRequest
    strict_requests: bool
    document: dict[str, Any]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One of them in the file. `active` marks the one that runs where nobody has asked for another."""

    revision: str
    saved: float
    document: dict[str, Any]
    active: bool = False


def write_startable(home: Home, profiles: Sequence[Written]) -> None:
    """Replace the file, or remove it where only the active profile, or none, would stand there. Raises OSError."""
    if all(profile.active for profile in profiles):
        home.startable.unlink(missing_ok=True)
    else:
        write_atomically(home.startable, msgspec.json.encode(profiles))


def read_startable(content: bytes) -> dict[str, Startable]:
    """By the name of their model. Of several with one name, the active one counts, or else the first by its profile's
    name. One that this version cannot read is left out. Raises msgspec.DecodeError."""
    found: dict[str, Startable] = {}
    written = msgspec.json.decode(content, type=list[Written])
    for each in sorted(written, key=lambda each: (not each.active, str(each.document.get("name")))):
        try:
            profile = documents.load(each.document)
        except ProfileError:
            continue
        startable = Startable(
            model=profile.served_model_name,
            profile=profile.name,
            revision=each.revision,
            engine=profile.engine,
            saved=each.saved,
            limits=profile.on_request,
            strict_requests=profile.strict_requests,
            document=each.document,
        )
        found.setdefault(startable.model, startable)
    return found
