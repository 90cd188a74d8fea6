"""Keeps the Hardware page up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from jinja2 import Environment

from appliance.hardware import words
from console.hardware.machines import Machines, Seen
from console.live.hub import Feed, Message

EVERY_S = 3.0


def context(seen: Seen) -> dict[str, Any]:
    """The context of the page's live part."""
    return {"seen": seen, "words": words}


def feed(machines: Machines, templates: Environment) -> Feed:
    """Its one argument is unused. However many pages are open, the machine is queried once."""
    template = templates.get_template("hardware/machine.html")

    async def follow(_argument: str, _position: str) -> AsyncIterator[Message]:
        told = ""
        while True:
            html = template.render(**context(await asyncio.to_thread(machines.look, EVERY_S)))
            if html != told:
                yield Message("", html)
                told = html
            await asyncio.sleep(EVERY_S)

    return follow
