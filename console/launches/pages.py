"""What the templates of a launch's page are given."""

from __future__ import annotations

from typing import Any

from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import LaunchFolder
from console.launches.service import Launches
from console.launches.timeline import timeline
from console.live.follower import Follower


def launches(catalogue: Catalogue, numbers: dict[str, int], follower: Follower) -> Launches:
    loads = [(point[0], point[2]) for point in follower.history]
    return Launches(catalogue, numbers, engine_runs=follower.view.runs, loads=loads)


def launch_context(
    catalogue: Catalogue, folder: LaunchFolder, numbers: dict[str, int], follower: Follower
) -> dict[str, Any]:
    """Reads the launch's folder: for a thread."""
    found = launches(catalogue, numbers, follower)
    details = found.details(folder)
    return {
        "details": details,
        "timeline": timeline(details.events, details.record.started),
        "sizes": folder.sizes(),
        "profile_text": folder.profile_text(),
        "roll_back_to": follower.view.roll_back_to,
        "name_of": lambda record: found.row(record).name,
    }
