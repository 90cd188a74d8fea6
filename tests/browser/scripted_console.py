"""A real console over a front door that says what a test tells it to, in a thread: for what depends on the state of the
engine and not on an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, BrowserContext

from appliance.home import Home
from console.access.sessions import COOKIE, hashed
from console.access.setup import make_administrator, new_code
from console.app import Console, create_app
from console.db import schema
from console.db.models import SignIn
from console.engine_control.base import EngineStatus
from console.settings import ConsoleConfig
from tests.console.conftest import PASSWORD, RememberingControl
from tests.console.draining_door import Door
from tests.running import free_port


class ScriptedConsole:
    """`door` is the front door, `control` what was asked of the process behind it."""

    def __init__(self, root: Path) -> None:
        self.home = Home.at(root).create()
        schema.migrate(self.home.database, root)
        self.door = Door()
        self.control = RememberingControl()
        self.control.present = EngineStatus(running=True, who="process 1")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.console: Console | None = None

    def start(self) -> None:
        config = ConsoleConfig(home=self.home, port=self.port, engine_port=self.door.port)
        app = create_app(config, self.control)
        self.console = app.state.console
        self._server = uvicorn.Server(
            uvicorn.Config(app, port=self.port, log_level="warning", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.02)

    def stop(self) -> None:
        assert self.console is not None
        assert self._server is not None
        assert self._thread is not None
        self.console.hub.close()
        self._server.should_exit = True
        self._thread.join(10)

    def signed_in(self, browser: Browser, **options: object) -> BrowserContext:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        context.add_cookies([{"name": COOKIE, "value": "test-token", "url": self.url}])
        return context

    async def make_account(self) -> None:
        from console.db.sessions import Database

        database = Database(self.home.database)
        async with database.session() as session:
            user = await make_administrator(session, "admin", PASSWORD, code=await new_code(session))
            session.add(SignIn(token_sha256=hashed("test-token"), user_id=user.id, expires=4e9))
        await database.close()


@contextmanager
def scripted_console(root: Path) -> Iterator[ScriptedConsole]:
    made = ScriptedConsole(root)
    # A thread of its own: Playwright keeps an event loop in this one.
    account = threading.Thread(target=lambda: asyncio.run(made.make_account()))
    account.start()
    account.join()
    made.start()
    try:
        yield made
    finally:
        made.stop()
        made.door.close()
