"""The import page: paste a text or choose files, see what would happen, then let it happen."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import MediaType, Response, get, post
from litestar.datastructures import UploadFile
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from appliance.profile.document import Change
from console.error_answers import wants_page
from console.pages import go_to, page
from console.parts import PageRequest, Profiles
from console.profiles.comparison import compare
from console.profiles.errors import InvalidDocument
from console.profiles.transfer import Planned, carry_out, plan
from console.refusals import Refusal

PASTED = "the pasted text"
FILE_LIMIT = 32


class PlannedAnswer(msgspec.Struct, frozen=True):
    """What a program is told of one text. Sent back as `confirmed`, `stamp` says that this was agreed to."""

    source: str
    does: str
    name: str
    revision: int
    changes: list[Change]
    stamp: str


class DryRun(msgspec.Struct, frozen=True):
    """`moved`: the profiles have changed since what `confirmed` names."""

    planned: list[PlannedAnswer]
    moved: bool


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
            else "Paste a profile or choose a file to import."
        )
        if not wants_page(request):
            raise Refusal(422, problem, field="files")
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
    moved = bool(seen) and not refused
    if not wants_page(request):
        return _for_program(planned, moved=moved)
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
        moved=moved,
        status_code=422 if refused else 200,
    )


def _for_program(planned: list[Planned], *, moved: bool) -> Response[DryRun]:
    """Raises InvalidDocument with the problems of all texts."""
    if problems := [problem for item in planned for problem in item.problems]:
        raise InvalidDocument(problems)
    rows = [
        PlannedAnswer(item.source, item.does, item.name, item.revision, item.changes, item.stamp) for item in planned
    ]
    return Response(DryRun(rows, moved), media_type=MediaType.JSON, status_code=200)


route_handlers: list[HTTPRouteHandler] = [import_page, import_profiles]
