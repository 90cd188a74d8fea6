"""The part of a launch's page that follows it, as a feed: rendered anew from its folder whenever that changes, until
the launch has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from jinja2 import Environment

from console.launches.catalogue import Catalogue
from console.launches.routes import engine_runs
from console.launches.service import Launches
from console.live.hub import Feed, Message
from console.live.view import EngineView

MOVING_S = 0.25
STANDING_S = 1.0


def feed(catalogue: Catalogue, templates: Environment, view: Callable[[], EngineView]) -> Feed:
    """`launch:<id>`. `view` gives the engine as last seen."""
    template = templates.get_template("launches/now.html")

    async def follow(launch_id: str, position: str) -> AsyncIterator[Message]:
        told = ""
        while (folder := catalogue.find(launch_id)) is not None:
            launches = await asyncio.to_thread(Launches, catalogue, {}, engine_runs=engine_runs(view()))
            story = await asyncio.to_thread(launches.story, folder)
            html = template.render(story=story, roll_back_to=view().roll_back_to, live=True)
            if html != told:
                yield Message("", html)
                told = html
            if not story.runs:
                return
            await asyncio.sleep(STANDING_S if story.record.state == "ready" else MOVING_S)

    return follow
