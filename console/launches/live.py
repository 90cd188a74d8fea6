"""The parts of a launch's page that follow it, as feeds: rendered anew from its folder whenever that changes, until the
launch has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from jinja2 import Environment

from console.db.sessions import Database
from console.launches.catalogue import Catalogue
from console.launches.numbers import launch_numbers
from console.launches.pages import launch_context
from console.live.hub import Feed, Message
from console.live.view import EngineView

PARTS = {"launch": "launches/now.html", "launch-story": "launches/story.html"}
"""Feed -> template; its argument is a launch's id."""

MOVING_S = 0.25
STANDING_S = 1.0


def feeds(
    catalogue: Catalogue, database: Database, templates: Environment, view: Callable[[], EngineView]
) -> dict[str, Feed]:
    """`view` gives the engine as last seen."""

    def feed(template_name: str) -> Feed:
        template = templates.get_template(template_name)

        async def follow(launch_id: str, position: str) -> AsyncIterator[Message]:
            told = ""
            while (folder := catalogue.find(launch_id)) is not None:
                async with database.session() as session:
                    numbers = await launch_numbers(session)
                context = await asyncio.to_thread(launch_context, catalogue, folder, numbers, view())
                html = template.render(**context, live=True)
                if html != told:
                    yield Message("", html)
                    told = html
                if not context["story"].runs:
                    return
                await asyncio.sleep(STANDING_S if context["story"].record.state == "ready" else MOVING_S)

        return follow

    return {name: feed(template) for name, template in PARTS.items()}
