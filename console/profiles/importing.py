"""The import page: paste a text or choose files, see what would happen, then let it happen."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.datastructures import UploadFile
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from console.pages import go_to, page
from console.parts import PageRequest, Profiles
from console.profiles.comparison import compare
from console.profiles.transfer import carry_out, plan

PASTED = "the pasted text"
FILE_LIMIT = 32


@get("/profiles/-/import")
async def import_page(request: PageRequest) -> Template:
    return page(
        request, "profiles/import.html", title="Import profiles", planned=[], rows=[], texts=[], problem="", moved=False
    )


@post("/profiles/-/import", status_code=200)
async def import_profiles(request: PageRequest, profiles: Profiles) -> Response[Any] | Template:
    """A dry run, unless the form says with `confirmed` which dry run was looked at and nothing has moved since."""
    form = await request.form()
    texts = [
        (str(source), str(text))
        for source, text in zip(form.getall("source", []), form.getall("text", []), strict=False)
    ]
    if pasted := str(form.get("pasted", "")).strip():
        texts.append((PASTED, pasted))
    undecoded: list[tuple[str, str | bytes]] = [*texts]
    for file in form.getall("files", []):
        if isinstance(file, UploadFile) and file.filename:
            undecoded.append((file.filename[-120:], await file.read()))
    if not undecoded or len(undecoded) > FILE_LIMIT:
        problem = (
            f"{len(undecoded):,} profiles were sent; import at most {FILE_LIMIT} at once."
            if undecoded
            else ("Paste a profile or choose a file to import.")
        )
        return page(
            request,
            "profiles/import.html",
            title="Import profiles",
            planned=[],
            rows=[],
            texts=texts,
            problem=problem,
            moved=False,
            status_code=422,
        )
    planned = await plan(profiles, undecoded)
    refused = any(item.problems for item in planned)
    seen = [str(stamp) for stamp in form.getall("confirmed", [])]
    if seen and seen == [item.stamp for item in planned] and not refused:
        saved = await carry_out(profiles, planned, author=request.user.name)
        if not saved:
            return go_to(request, "/profiles", say="Nothing was changed: these profiles already exist here.")
        where = f"/profiles/{saved[0].profile}" if len(saved) == 1 else "/profiles"
        return go_to(request, where, say=f"Imported {', '.join(revision.what for revision in saved)}.")
    return page(
        request,
        "profiles/import.html",
        title="Import profiles",
        planned=planned,
        rows=[compare(item.before, item.document) if item.changes else [] for item in planned],
        texts=[
            (source, text if isinstance(text, str) else text.decode(errors="replace")) for source, text in undecoded
        ],
        problem="",
        moved=bool(seen) and not refused,
        status_code=422 if refused else 200,
    )


route_handlers: list[HTTPRouteHandler] = [import_page, import_profiles]
