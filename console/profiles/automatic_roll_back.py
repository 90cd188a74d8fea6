"""Rolls back by itself where the active profile says `on-failure: roll-back`: once for a failed launch, and never after
a launch that was itself such a roll-back, so that two bad revisions do not take turns."""

from __future__ import annotations

import asyncio
import logging

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.protocol import LaunchRecord, State
from console.launches.follow_up import write_follow_up
from console.launches.neighbours import came_from
from console.live.hub import Hub
from console.live.view import EngineView
from console.profiles.activator import Activated, Activator
from console.profiles.errors import NotFound, ProfileRefusal, UnderWay
from console.profiles.store import ProfileStore

log = logging.getLogger(__name__)

FAILED = frozenset({State.FAILED, State.HUNG})


class AutomaticRollBack:
    """A publisher of the follower: checks the engine after each poll. It handles a failed launch in `run`, its own
    task, so that the follower keeps updating pages meanwhile."""

    def __init__(self, home: Home, store: ProfileStore, activator: Activator) -> None:
        self._home = home
        self._store = store
        self._activator = activator
        self._judged: str | None = None
        self._own: set[str] = set()
        self._failed: asyncio.Queue[LaunchRecord] = asyncio.Queue()

    def __call__(self, view: EngineView, hub: Hub) -> None:
        launch = view.launch
        if launch is None or view.state not in FAILED or launch.id == self._judged:
            return
        self._judged = launch.id
        self._failed.put_nowait(launch)

    async def run(self) -> None:
        """Judge one failed launch after the other, until cancelled."""
        while True:
            launch = await self._failed.get()
            try:
                await self._roll_back(launch)
            except Exception:
                log.exception("Launch %s failed and could not be rolled back.", launch.id)
            finally:
                self._failed.task_done()

    async def settled(self) -> None:
        """Wait until every failed launch has been judged."""
        await self._failed.join()

    async def _roll_back(self, launch: LaunchRecord) -> None:
        active = await self._store.active()
        if active is None or (active.profile, active.label) != (launch.profile, launch.revision):
            return
        if active.document.get("on-failure") != "roll-back" or self._is_roll_back(launch.id):
            return
        try:
            back = await self._activator.roll_back()
        except (NotFound, UnderWay) as error:
            log.info("%s failed and was not rolled back: %s", active.what, error)
        except ProfileRefusal as error:
            log.warning("%s failed and could not be rolled back: %s", active.what, error)
        else:
            self._own.add(back.launch)
            await asyncio.to_thread(self._keep, launch.id, back)
            log.warning("%s failed: rolled back to %s, as the profile requests.", active.what, back.what)

    def _keep(self, failed: str, back: Activated) -> None:
        write_follow_up(
            self._home,
            failed,
            "automatic-roll-back",
            launch=back.launch,
            profile=back.profile,
            revision=f"r{back.revision}",
        )

    def _is_roll_back(self, launch_id: str) -> bool:
        """One of this console's, or of one before it."""
        if launch_id in self._own:
            return True
        before = came_from(Catalogue(self._home), launch_id)
        return before is not None and before[1].kind == "automatic-roll-back"
