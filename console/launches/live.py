"""The live parts of a launch's page, as feeds: rendered again whenever its folder changes, until another launch
replaces it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from jinja2 import Environment

from appliance.launches.catalogue import Catalogue
from console.db.sessions import Database
from console.launches.numbers import launch_numbers
from console.launches.pages import launch_context
from console.live.follower import Follower
from console.live.hub import Feed, Message

PARTS = {"launch": "launches/now.html", "launch-details": "launches/details.html"}
"""Feed -> template; its argument is a launch's id."""

WHOLE = "launch"
AWAITED = "launches/awaited.html"
"""Placeholder in the part WHOLE until the launch has begun."""

MOVING_S = 0.25
STANDING_S = 1.0
AWAITED_FOR_S = 180.0
"""How long a requested launch may take to begin, as a serving engine is drained and ended first."""

AFTERWARDS_S = 10.0
"""How long to keep following a launch that another has replaced, to show what was done about it."""


def feeds(catalogue: Catalogue, database: Database, templates: Environment, follower: Follower) -> dict[str, Feed]:
    def feed(name: str, template_name: str) -> Feed:
        template, awaited = templates.get_template(template_name), templates.get_template(AWAITED)

        async def follow(launch_id: str, position: str) -> AsyncIterator[Message]:
            told = ""
            patience = time.monotonic() + AWAITED_FOR_S
            while catalogue.find(launch_id) is None:
                over = time.monotonic() > patience
                html = awaited.render(strip=follower.view, over=over, live=True)
                if name == WHOLE and html != told:
                    yield Message("", html)
                    told = html
                if over:
                    return
                await asyncio.sleep(MOVING_S)
            replaced = 0.0
            while (folder := catalogue.find(launch_id)) is not None:
                async with database.session() as session:
                    numbers = await launch_numbers(session)
                context = await asyncio.to_thread(launch_context, catalogue, folder, numbers, follower)
                html = template.render(**context, live=True)
                if html != told:
                    yield Message("", html)
                    told = html
                details = context["details"]
                if not details.runs and not details.current:
                    replaced = replaced or time.monotonic()
                    if time.monotonic() - replaced > AFTERWARDS_S:
                        return
                moving = name == WHOLE and details.runs and details.record.state != "ready"
                await asyncio.sleep(MOVING_S if moving else STANDING_S)

        return follow

    return {name: feed(name, template) for name, template in PARTS.items()}
