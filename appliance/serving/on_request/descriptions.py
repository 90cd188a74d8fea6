"""What lists of models say of those that do not run: what they would be if they were started now."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from appliance.checkpoint.errors import CheckpointError
from appliance.engines import engine_named

if TYPE_CHECKING:
    from appliance.home import Home
    from appliance.plan.launch import LaunchPlan
    from appliance.profile.startable import Startable
    from appliance.serving.served_model import ServedModel

UNKNOWN_FOR_S: Final = 60.0
"""Before a model that preflight refuses is looked at again."""


class Description(NamedTuple):
    """Of a profile's revision: `told` in /v1/models, `tag` in /api/tags, `shown` by /api/show (empty: not known)."""

    revision: tuple[str, str]
    told: dict[str, Any]
    tag: dict[str, Any]
    shown: dict[str, Any]
    at: float


class Descriptions:
    """Made once for each revision, beside the event loop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, Description] = {}
        self._alone = asyncio.Lock()

    async def of(self, startable: Startable, running: LaunchPlan | None) -> Description:
        """`running` is the plan of what would make room. Where preflight refuses the start, or with vLLM, there is
        little to say."""
        async with self._alone:
            known = self._known.get(startable.model)
            revision = (startable.profile, startable.revision)
            stale = known is not None and not known.shown and time.monotonic() > known.at + UNKNOWN_FOR_S
            if known is None or known.revision != revision or stale:
                known = await asyncio.to_thread(_describe, self._home, startable, running)
                self._known[startable.model] = known
            return known


def _describe(home: Home, startable: Startable, running: LaunchPlan | None) -> Description:
    from appliance.serving import models  # late: both import this room
    from appliance.serving.ollama import models as ollama

    revision, created = (startable.profile, startable.revision), int(startable.saved)
    model = _load(home, startable, running, created)
    if model is None:
        told = {"id": startable.model, "object": "model", "created": created, "owned_by": "ingot", "running": False}
        return Description(revision, told, ollama.bare(startable.model, created), {}, time.monotonic())
    told = {**models.described(model), "running": False}
    return Description(revision, told, ollama.listed(model), ollama.shown_model(model), time.monotonic())


def _load(home: Home, startable: Startable, running: LaunchPlan | None, created: int) -> ServedModel | None:
    from appliance.plan.launch import NativePlan
    from appliance.serving.served_model import ServedModel
    from appliance.supervisor.preflight import run_preflight

    if engine_named(startable.engine).own_server:
        return None
    try:
        plan = run_preflight(home, startable.document, running=running).plan
        return ServedModel.load(plan, created) if isinstance(plan, NativePlan) else None
    except (CheckpointError, OSError):
        return None
