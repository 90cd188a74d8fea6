"""The live parts of the Models page: the models, the drive's contents, and running imports."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from jinja2 import Environment

from console.live.hub import Feed, Hub, Message
from console.models import choices
from console.models.arrivals import Arrivals
from console.models.imports import Imports
from console.models.service import InstalledModels, Model
from console.profiles.store import ProfileStore

EVERY_S = 1.0
LOOK_EVERY_S = 3.0

TOPIC = "imports"
Context = dict[str, Any]


class Parts:
    """The context of each part, on the page and live."""

    def __init__(self, installed: InstalledModels, store: ProfileStore, arrivals: Arrivals, imports: Imports) -> None:
        self._installed = installed
        self._store = store
        self._arrivals = arrivals
        self._imports = imports
        self._states: list[tuple[str, str]] = []

    async def models(self) -> Context:
        used_by: dict[str, list[str]] = {}
        for summary in await self._store.summaries():
            used_by.setdefault(summary.model, []).append(summary.name)
        models = await asyncio.to_thread(self._installed.models)
        return {"models": [_with_users(model, used_by) for model in models]}

    async def media(self, max_age_s: float = LOOK_EVERY_S) -> Context:
        """An import that began or ended since the last look changes what can be done with the rest."""
        states = [(row.id, row.state) for row in self._imports.rows]
        stock = await self._arrivals.look(max_age_s if states == self._states else 0.0)
        self._states = states
        return {
            "stock": stock,
            "silent_s": int(self._arrivals.silent_s) // 10 * 10,
            "media": self._arrivals.folder,
            "imports": self._imports,
            "in_container": self._imports.place.in_container,
            "choice": choices.choice,
            "importable": choices.importable,
            "room": choices.room,
            "uid": os.geteuid(),
        }

    def imports(self) -> Context:
        return {"imports": self._imports}


def _with_users(model: Model, used_by: dict[str, list[str]]) -> Model:
    return replace(model, used_by=tuple(used_by.get(model.name, ())))


def feeds(parts: Parts, templates: Environment) -> dict[str, Feed]:
    """Their arguments are unused. However many pages are open, the drive is read once."""

    def feed(template_name: str, context: Callable[[], Awaitable[Context]]) -> Feed:
        template = templates.get_template(template_name)

        async def follow(_argument: str, _position: str) -> AsyncIterator[Message]:
            told = ""
            while True:
                html = template.render(**await context(), live=True)
                if html != told:
                    yield Message("", html)
                    told = html
                await asyncio.sleep(EVERY_S)

        return follow

    return {"models": feed("models/installed.html", parts.models), "media": feed("models/media.html", parts.media)}


def publisher(parts: Parts, templates: Environment, hub: Hub) -> Callable[[], None]:
    """Called whenever an import makes progress."""
    template = templates.get_template("models/imports.html")
    return lambda: hub.publish(TOPIC, template.render(**parts.imports(), live=True))
