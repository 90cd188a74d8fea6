"""Importing as a part of the console: the drive's contents, the queue, and how pages show both."""

from __future__ import annotations

from jinja2 import Environment

from console.live.hub import Hub
from console.models import live
from console.models.arrivals import Arrivals
from console.models.imports import Imports
from console.models.service import InstalledModels
from console.models.troubles import Place
from console.profiles.store import ProfileStore
from console.settings import ConsoleConfig


class Importing:
    def __init__(
        self, config: ConsoleConfig, installed: InstalledModels, store: ProfileStore, hub: Hub, templates: Environment
    ) -> None:
        place = Place(config.home.models, in_container=config.engine_control == "docker")
        self.arrivals = Arrivals(config.home, config.media, place)
        self.imports = Imports(config.home, place)
        self.parts = live.Parts(installed, store, self.arrivals, self.imports)
        for name, feed in live.feeds(self.parts, templates).items():
            hub.add_feed(name, feed)
        self.imports.changed = live.publisher(self.parts, templates, hub)

    async def close(self) -> None:
        await self.imports.close()
        await self.arrivals.close()
