"""The Backups page."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import File, Template

from console.backups import service
from console.formats import gib
from console.pages import go_to, page
from console.parts import Folder, PageRequest


@get("/backups")
async def backups(request: PageRequest, home: Folder) -> Template:
    return page(
        request,
        "backups/backups.html",
        title="Backups",
        backups=service.list_backups(home),
        home=home,
        folder=service.folder(home),
    )


@post("/backups")
async def make_backup(request: PageRequest, home: Folder) -> Response[Any]:
    backup = await service.make_backup(home)
    return go_to(request, "/backups", say=f"Made {backup.name} ({gib(backup.size)}).")


@get("/backups/{name:str}")
async def download(name: FromPath[str], home: Folder) -> File:
    return File(
        path=service.find(home, name),
        filename=name,
        media_type="application/vnd.sqlite3",
        content_disposition_type="attachment",
    )


@post("/backups/{name:str}/delete")
async def delete(request: PageRequest, name: FromPath[str], home: Folder) -> Response[Any]:
    service.find(home, name).unlink()
    return go_to(request, "/backups", say=f"Deleted {name}.")


route_handlers: list[HTTPRouteHandler] = [backups, make_backup, download, delete]
