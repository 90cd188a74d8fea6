"""The Models page."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from console.pages import page
from console.parts import Folder, PageRequest, TheImporting


@get("/models")
async def model_list(request: PageRequest, home: Folder, importing: TheImporting) -> Template:
    parts = importing.parts
    context = {**await parts.models(), **await parts.media(max_age_s=0.0), **parts.imports()}
    return page(request, "models/list.html", title="Models", folder=home.models, **context)


route_handlers: list[HTTPRouteHandler] = [model_list]
