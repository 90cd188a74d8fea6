"""What the templates of a launch's page are given."""

from __future__ import annotations

from typing import Any

from console.launches.catalogue import Catalogue
from console.launches.chronicle import chronicle
from console.launches.folder import LaunchFolder
from console.launches.service import Launches
from console.live.view import EngineView


def engine_runs(view: EngineView) -> bool:
    return view.reachable or view.control.running


def launch_context(
    catalogue: Catalogue, folder: LaunchFolder, numbers: dict[str, int], view: EngineView
) -> dict[str, Any]:
    """Reads the launch's folder: for a thread."""
    story = Launches(catalogue, numbers, engine_runs=engine_runs(view)).story(folder)
    return {
        "story": story,
        "happenings": chronicle(story.events, story.record.started),
        "sizes": folder.sizes(),
        "roll_back_to": view.roll_back_to,
    }
