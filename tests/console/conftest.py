"""A console on a fresh state folder, a signed-in client, a visitor, and an engine control that only remembers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from litestar import Litestar
from litestar.testing import AsyncTestClient
from litestar.utils.signature import ParsedSignature

from appliance.home import Home
from console import pages
from console.access import passwords
from console.access.sessions import COOKIE, hashed
from console.access.setup import make_administrator, new_code
from console.app import Console, create_app
from console.db import schema
from console.db.models import SignIn
from console.engine_control.base import EngineEvent, EngineStatus, OutputLine
from console.settings import ConsoleConfig

BASE_URL = "http://console.local:8080"
PASSWORD = "correct horse battery"
BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}


class RememberingControl:
    """Answers as an engine control does and keeps what was asked of it in `calls`."""

    kind = "process"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.present = EngineStatus(running=False)
        self.output: list[OutputLine] = []
        self.recent_events: list[EngineEvent] = []

    async def status(self) -> EngineStatus:
        return self.present

    async def start(self) -> None:
        self.calls.append("start")
        self.present = EngineStatus(running=True, who="process 1")

    async def stop(self) -> None:
        self.calls.append("stop")
        self.present = EngineStatus(running=False, ended="exit status 0", exit_code=0)

    async def restart(self) -> None:
        self.calls.append("restart")
        self.present = EngineStatus(running=True, who="process 1")

    async def follow(self, tail: int = 500) -> AsyncGenerator[OutputLine]:
        for line in self.output:
            yield line
        await asyncio.Event().wait()

    async def events(self) -> AsyncGenerator[EngineEvent]:
        for event in self.recent_events:
            yield event
        await asyncio.Event().wait()

    async def close(self, *, keep_engine: bool = False) -> None:
        return None


@pytest.fixture(scope="session", autouse=True)
def compiled_templates() -> Iterator[None]:
    """Consoles of tests share their templates: to compile all of them anew would be half of what a test costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "environment", cache(pages.environment))
        yield


@pytest.fixture(scope="session", autouse=True)
def parsed_routes() -> Iterator[None]:
    """Consoles of tests share what Litestar reads of each route's annotations: a third of what a console costs."""
    parse, parsed = ParsedSignature.from_fn, {}

    def from_fn(fn: Any, namespace: dict[str, Any]) -> ParsedSignature:
        if "<locals>" in fn.__qualname__:  # of one console alone
            return parse(fn, namespace)
        if fn not in parsed:
            parsed[fn] = parse(fn, namespace)
        return parsed[fn]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParsedSignature, "from_fn", from_fn)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Every `client` has an account made: a hash that takes long, as a real one must, would be most of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database, made once: each test gets a copy."""
    path = tmp_path_factory.mktemp("database") / "ingot.db"
    schema.migrate(path, path.parent)
    return path


@pytest.fixture
def config(home: Home, fresh_database: Path) -> ConsoleConfig:
    shutil.copy(fresh_database, home.database)
    return ConsoleConfig(home=home, engine_port=9, names=frozenset({"console.local"}))


@pytest.fixture
def control() -> RememberingControl:
    return RememberingControl()


@pytest.fixture
def app(config: ConsoleConfig, control: RememberingControl) -> Litestar:
    return create_app(config, control, follow=False)


@pytest.fixture
def console(app: Litestar) -> Console:
    """The parts of the running console: `database`, `hub`, `follower`, ..."""
    parts: Console = app.state.console
    return parts


@pytest.fixture
async def visitor(app: Litestar) -> AsyncIterator[AsyncTestClient[Litestar]]:
    """A browser that is not signed in. The server's faults come as answers, not as exceptions."""
    async with AsyncTestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:
        client.headers.update(BROWSER)
        yield client


@pytest.fixture
async def client(visitor: AsyncTestClient[Litestar], console: Console) -> AsyncTestClient[Litestar]:
    """A signed-in browser: the administrator's, named admin."""
    async with console.database.session() as session:
        user = await make_administrator(session, "admin", PASSWORD, code=await new_code(session))
        session.add(SignIn(token_sha256=hashed("test-token"), user_id=user.id, expires=4e9))
    visitor.cookies.set(COOKIE, "test-token")
    return visitor
