"""What the dashboard's first card knows beyond the engine's state: the profiles that its fixes would change, and the
launch that the present one was started instead of."""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.launches.catalogue import Catalogue
from appliance.protocol import LaunchRecord
from console.launches.follow_up import FollowUp, is_dismissed
from console.launches.neighbours import came_from, document
from console.live.view import FAILED, EngineView


class Now(NamedTuple):
    """`document` is the profile that failed, `attempt_document` the one that preflight refused. `attempt` is that
    refusal until somebody has dismissed it."""

    document: dict[str, Any] | None = None
    attempt: LaunchRecord | None = None
    attempt_document: dict[str, Any] | None = None
    came_from: tuple[LaunchRecord, FollowUp] | None = None


def now(view: EngineView, catalogue: Catalogue) -> Now:
    """Reads a few small files."""
    launch, attempt = view.launch, view.attempt
    if attempt is not None and is_dismissed(catalogue.home.launch(attempt.id)):
        attempt = None
    failed = launch is not None and view.state in FAILED
    return Now(
        document=document(catalogue, launch.id) if launch is not None and failed else None,
        attempt=attempt,
        attempt_document=document(catalogue, attempt.id) if attempt is not None else None,
        came_from=came_from(catalogue, launch.id) if launch is not None and not failed else None,
    )
