"""The list of launches, one launch, its files, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.response import Stream, Template
from sqlalchemy import delete, select

from appliance.launches.catalogue import Catalogue
from appliance.launches.folder import EVENTS, LOG, PROFILE, STACKS, LaunchFolder
from console.conflicts import Conflict
from console.db.models import ActiveRevision, Launch
from console.launches.deletion import delete_folder
from console.launches.export import export, file_name
from console.launches.numbers import launch_numbers
from console.launches.outcome import GROUPS
from console.launches.pages import launch_context, launches
from console.logs.routes import download
from console.pages import go_to, page
from console.parts import Folder, PageRequest, Session, TheCatalogue, TheFollower, TheInspector, TheMachines
from console.refusals import Refusal

FILES = {
    "log": (LOG, "text/plain", "log"),
    "events": (EVENTS, "application/jsonl", EVENTS),
    "profile": (PROFILE, "application/yaml", "profile.yaml"),
    "stacks": (STACKS, "text/plain", STACKS),
}
"""What can be downloaded: file, media type, and how its name ends there."""


@get("/launches")
async def launch_list(
    request: PageRequest,
    session: Session,
    catalogue: TheCatalogue,
    follower: TheFollower,
    outcome: FromQuery[str] = "",
    profile: FromQuery[str] = "",
    number: FromQuery[int] = 1,
) -> Template:
    """`number` is the page's."""
    numbers = await launch_numbers(session)
    group = outcome if outcome in GROUPS else ""

    def read() -> Any:
        return launches(catalogue, numbers, follower).listing(group=group, profile=profile, page=number)

    return page(
        request,
        "launches/list.html",
        title="Launches",
        listing=await asyncio.to_thread(read),
        problem=await asyncio.to_thread(catalogue.problem),
        groups=GROUPS,
        group=group,
        profile=profile,
    )


@get("/launches/{launch_id:str}")
async def launch_page(
    request: PageRequest,
    session: Session,
    catalogue: TheCatalogue,
    follower: TheFollower,
    launch_id: FromPath[str],
) -> Template:
    """Also for a requested launch that has not begun yet: the page fills once it does."""
    if catalogue.find(launch_id) is None and await session.scalar(select(ActiveRevision.launch)) == launch_id:
        return page(request, "launches/launch.html", title="A new launch", launch_id=launch_id, details=None)
    folder = existing(catalogue, launch_id)
    numbers = await launch_numbers(session)
    context = await asyncio.to_thread(launch_context, catalogue, folder, numbers, follower)
    return page(request, "launches/launch.html", title=context["details"].row.name, launch_id=launch_id, **context)


@get("/launches/{launch_id:str}/{file:str}")
async def launch_file(catalogue: TheCatalogue, launch_id: FromPath[str], file: FromPath[str]) -> Stream:
    folder = existing(catalogue, launch_id)
    if file not in FILES:
        raise Refusal(
            404,
            f"A launch has no file {file[:100]!r}.",
            f"Use {', '.join(list(FILES)[:-1])} or {list(FILES)[-1]}.",
            field="file",
            value=file[:100],
        )
    name, media_type, ending = FILES[file]
    return download(folder.path / name, f"{folder.id}.{ending}", media_type)


@get("/launches/{launch_id:str}/export")
async def launch_export(
    catalogue: TheCatalogue, machines: TheMachines, inspector: TheInspector, home: Folder, launch_id: FromPath[str]
) -> Stream:
    """One file to send to support, without secrets."""
    folder = existing(catalogue, launch_id)
    return Stream(
        export(home, folder, machines, inspector),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{file_name(folder.id)}"', "Cache-Control": "no-store"},
    )


@post("/launches/{launch_id:str}/delete", status_code=200)
async def launch_delete(
    request: PageRequest,
    session: Session,
    catalogue: TheCatalogue,
    follower: TheFollower,
    launch_id: FromPath[str],
) -> Response[Any]:
    """The row first: if that fails, the folder is still complete."""
    folder = existing(catalogue, launch_id)
    numbers = await launch_numbers(session)
    details = await asyncio.to_thread(lambda: launches(catalogue, numbers, follower).details(folder))
    name = details.row.name
    if details.runs or (details.current and follower.view.reachable):
        raise Conflict(
            "launch-current",
            f"{name} is the engine's current launch and cannot be deleted while the engine is running.",
            "Stop the engine or activate another profile, then delete it.",
            field="launch",
            value=launch_id,
        )
    await session.execute(delete(Launch).where(Launch.launch_id == folder.id))
    try:
        left = await asyncio.to_thread(delete_folder, catalogue.home, folder)
    except OSError as error:
        raise Refusal(
            503,
            f"{name} could not be deleted: {error.strerror} ({error.filename}).",
            f"Make {folder.path.parent} and its contents writable for the user that runs the console.",
        ) from error
    said = f"Deleted {name[0].lower()}{name[1:]} with its log."
    if left is not None:
        said += (
            f" Some of its files could not be removed and are in {left}; the console tries again when it next starts."
        )
    return go_to(request, "/launches", say=said, tone="good" if left is None else "warn")


def existing(catalogue: Catalogue, launch_id: str) -> LaunchFolder:
    folder = catalogue.find(launch_id)
    if folder is None:
        raise Refusal(
            404,
            f"There is no launch {launch_id!r}.",
            "It may have been deleted. The Launches page lists all of them.",
            field="launch",
            value=launch_id,
        )
    return folder


route_handlers: list[HTTPRouteHandler] = [launch_list, launch_page, launch_file, launch_export, launch_delete]
