"""The console as an ASGI application: its parts, its routes, what surrounds every request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from litestar import Litestar, Request, Router, route
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.static_files import create_static_files_router
from litestar.types import Receive, Scope, Send
from litestar_htmx import HTMXPlugin
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.home import Home
from appliance.launches.catalogue import Catalogue
from appliance.serving.head import with_head
from console import pages
from console.access import routes as access
from console.access.client_address import ClientAddresses
from console.access.guard import Guard, add_security_headers
from console.access.new_keys import NewKeys
from console.access.throttle import Throttle
from console.after_post import Answers
from console.backups import routes as backups
from console.backups.jobs import BackupJobs
from console.benchmarks import routes as benchmarking
from console.benchmarks.service import Benchmarks
from console.dashboard import live_parts
from console.dashboard import routes as dashboard
from console.db.sessions import Database
from console.engine_control import routes as engine
from console.engine_control.base import EngineControl
from console.engine_control.operations import EngineOperations
from console.error_answers import EXCEPTION_HANDLERS, refuse_json_forms
from console.hardware import live as hardware_live
from console.hardware import routes as hardware
from console.hardware.machines import Machines
from console.launches import deletion
from console.launches import live as launch_live
from console.launches import routes as launches
from console.live import routes as live
from console.live.follower import Follower
from console.live.hub import Hub
from console.logs import routes as logs
from console.logs import stream as log_stream
from console.logs.store import LogStore
from console.models import import_routes as model_imports
from console.models import routes as models
from console.models.importing import Importing
from console.models.service import InstalledModels
from console.pages import Notes
from console.playground import routes as playground
from console.profiles import routes as profiles
from console.profiles.activator import Activator
from console.profiles.automatic_roll_back import AutomaticRollBack
from console.profiles.inspection import Inspector
from console.profiles.preflight import Preflight
from console.profiles.store import ProfileStore
from console.settings import REQUEST_BODY_LIMIT, ConsoleConfig

ROUTE_HANDLERS: tuple[Sequence[HTTPRouteHandler | Router], ...] = (
    access.route_handlers,
    dashboard.route_handlers,
    engine.route_handlers,
    profiles.route_handlers,
    launches.route_handlers,
    logs.route_handlers,
    models.route_handlers,
    model_imports.route_handlers,
    hardware.route_handlers,
    playground.route_handlers,
    benchmarking.route_handlers,
    backups.route_handlers,
    live.route_handlers,
)
"""A row for each subject; a new page is a handler in its subject's routes.py."""


@dataclass
class Console:
    """The parts that live as long as the application. Handlers ask for the one they need by its name."""

    config: ConsoleConfig
    database: Database
    control: EngineControl
    engine: EngineOperations
    hub: Hub
    follower: Follower
    notes: Notes
    throttle: Throttle
    catalogue: Catalogue
    log_store: LogStore

    @property
    def home(self) -> Home:
        return self.config.home


class App(Litestar):
    """Litestar, with HEAD wherever there is GET."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        await with_head(super().__call__)(scope, receive, send)


def create_app(config: ConsoleConfig, control: EngineControl, *, follow: bool = True) -> Litestar:
    """The application on a database that is already migrated. `follow=False` leaves looking at the engine to the
    caller (tests do so)."""
    database = Database(config.home.database)
    hub = Hub()
    catalogue, log_store = Catalogue(config.home), LogStore(config.home)
    follower = Follower(catalogue, database, control, hub, config.engine_url, config.published_engine_url)
    operations = EngineOperations(config.home, control, follower.front_door, follower.wake)
    follower.drain, follower.undone = lambda: operations.drain, lambda: operations.undone
    follower.acting = lambda: operations.acting
    console = Console(config, database, control, operations, hub, follower, Notes(), Throttle(), catalogue, log_store)
    hub.add_feed("log", log_stream.feed(catalogue, log_store))
    kept = config.home.engine_machine if config.engine_control == "docker" else None
    machines = Machines(config.home, lambda: str(follower.client.base_url), kept=kept)
    store, inspector = ProfileStore(database, config.home), Inspector(config.home, machines=machines)
    preflight = Preflight(config.home, inspector, lambda: str(follower.client.base_url))
    activator = Activator(config.home, database, preflight, operations)
    installed = InstalledModels(config.home)
    benchmarks = Benchmarks(config.home, database, follower)
    templates, answers = pages.environment(), Answers()
    backup_jobs = BackupJobs(config.home, database, operations, activator, follower, hub, templates)
    for name, feed in launch_live.feeds(catalogue, database, templates, follower).items():
        hub.add_feed(name, feed)
    importing = Importing(config, installed, store, hub, templates)
    hub.add_feed("hardware", hardware_live.feed(machines, templates))
    follower.publishers.append(lambda view, _: operations.seen(view.appliance, running=view.control.running))
    follower.publishers.append(live_parts.publisher(templates, catalogue))
    automatic = AutomaticRollBack(config.home, store, activator)
    follower.publishers.append(automatic)

    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        works = (follower.run(), automatic.run(), asyncio.to_thread(deletion.sweep, config.home)) if follow else ()
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await operations.close()
            await benchmarks.close()
            await backup_jobs.close()
            await importing.close()
            await follower.close()
            await database.close()

    return App(
        route_handlers=[handler for subject in ROUTE_HANDLERS for handler in subject]
        + [nothing_here, _static_files(pages.STATIC)],
        plugins=[HTMXPlugin()],
        state=State({"console": console}),
        dependencies={
            "session": Provide(provide_session),
            **_given(
                config=config,
                home=config.home,
                engine=operations,
                hub=hub,
                follower=follower,
                throttle=console.throttle,
                new_keys=NewKeys(),
                catalogue=catalogue,
                log_store=log_store,
                importing=importing,
                profiles=store,
                inspector=inspector,
                machines=machines,
                activator=activator,
                benchmarks=benchmarks,
                backup_jobs=backup_jobs,
            ),
        },
        middleware=[Guard(ClientAddresses(config.proxy), answers)],
        before_request=refuse_json_forms,
        before_send=[answers.redirect, add_security_headers],
        exception_handlers=EXCEPTION_HANDLERS,
        template_config=pages.template_config(templates),
        request_max_body_size=REQUEST_BODY_LIMIT,
        openapi_config=None,
        logging_config=None,
        lifespan=[lifespan],
    )


def _given(**parts: object) -> dict[str, Provide]:
    """Each part under its name, for the handlers that ask for it."""

    def provide(part: object) -> Provide:
        return Provide(lambda: part, sync_to_thread=False)

    return {name: provide(part) for name, part in parts.items()}


async def provide_session(request: Request) -> AsyncIterator[AsyncSession]:  # type: ignore[type-arg]
    """One transaction a request: committed when the handler returns, rolled back when it raises."""
    async with request.app.state.console.database.session() as session:
        yield session


@route("/{rest:path}", http_method=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def nothing_here(rest: FromPath[Path]) -> None:
    """Catches what no page has, so that the guard is passed first."""
    raise NotFoundException


def _static_files(folder: Path):  # type: ignore[no-untyped-def]
    return create_static_files_router(
        path="/static",
        directories=[folder],
        cache_control=None,
        opt={"public": True},
    )
