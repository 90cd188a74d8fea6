"""What is known of a site from its own machine: the profile, its model folder, its state folder, its processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import psutil

from appliance.checkpoint.digest import checkpoint_digest
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.folder import locate
from appliance.hardware.device import DeviceError
from appliance.home import Home
from appliance.home_lock import is_held, read_owner
from appliance.profile import document
from appliance.profile.active import read_active
from appliance.profile.chosen import chosen_document
from appliance.profile.document import Change
from appliance.profile.schema import Profile, ProfileError
from kernels.selection import AUTO


class OfProfile(NamedTuple):
    """`revision` is "" for a file; `digest` None where the model's folder cannot be read here. `precision` is the
    coarsest format that the document names, None if it leaves that to the model. `selection` has the backend of each op
    on this machine."""

    name: str
    served_model_name: str
    precision: str | None
    document: dict[str, object]
    revision: str
    digest: str | None
    why_no_digest: str
    selection: dict[str, str]
    home: Home


def read_profile(source: str | None, home: Home) -> OfProfile:
    """A profile's file, or the active profile's name; None for the active one. Raises NoSuchProfileError,
    ProfileError."""
    given = chosen_document(source, home)
    profile = document.load(given)
    active = read_active(home)
    is_active = active is not None and active.document == given
    try:
        digest, why = checkpoint_digest(locate(profile.model.path, home)), ""
    except (CheckpointError, OSError) as error:
        digest, why = None, f"the profile's model folder cannot be read here: {error}"
    return OfProfile(
        name=profile.name,
        served_model_name=profile.served_model_name,
        precision=_precision(profile),
        document=given,
        revision=active.revision if is_active and active is not None else "",
        digest=digest,
        why_no_digest=why,
        selection=_selection(given, home),
        home=home,
    )


def _precision(profile: Profile) -> str | None:
    if profile.kv_cache_dtype.startswith("fp8"):
        return "fp8"
    return None if profile.dtype == AUTO else profile.dtype


def recorded_settings(profile: OfProfile, launch: str) -> list[Change] | None:
    """In what the launch's document differs from the profile; None where the launch is not in this state folder."""
    path = profile.home.launch(launch) / "profile.yaml"
    try:
        recorded = document.load(document.parse(path.read_bytes()))
    except (OSError, ProfileError):
        return None
    wanted = document.load(profile.document)
    return document.diff(document.to_document(recorded), document.to_document(wanted))


def machine_here(home: Home) -> dict[str, Any]:
    """This machine, as the front door describes its own."""
    from appliance.hardware.engine_machine import this_machine  # late, as below

    found: dict[str, Any] = msgspec.to_builtins(this_machine(home=home))
    return found


def engine_memory(home: Home) -> int | None:
    """Bytes that the processes of this state folder's engine hold; None where none runs here, or they cannot be
    seen."""
    owner = read_owner(home.lock)
    if owner is None or not is_held(home.lock):
        return None
    total = 0
    try:
        front_door = psutil.Process(owner.pid)
        for process in (front_door, *front_door.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        return None
    return total


def _selection(given: dict[str, object], home: Home) -> dict[str, str]:
    from appliance.explain.report import report  # late: it imports every backend's declaration
    from appliance.hardware.engine_machine import this_machine

    try:
        explained = report(document.load(given), home, machine=this_machine(home=home))
    except (CheckpointError, DeviceError, OSError):
        return {}
    return {row.op: row.chosen for row in explained.rows if row.chosen is not None}
