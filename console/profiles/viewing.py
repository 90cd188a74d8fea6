"""The pages that show profiles: the list, one profile, one revision, two revisions side by side, export; and the end
of one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, Literal

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.response import Template

from appliance.explain.words import layers_label, op_label, source_label
from appliance.hardware.known import KNOWN_GPUS
from console.pages import go_to, page
from console.parts import PageRequest, Profiles, TheInspector
from console.profiles.comparison import compare, effective_rows
from console.profiles.transfer import exported
from console.profiles.words import plural
from console.refusals import Refusal

MEDIA_TYPE = {"yaml": "application/yaml", "json": "application/json"}


@get("/profiles")
async def profile_list(request: PageRequest, profiles: Profiles) -> Template:
    return page(request, "profiles/list.html", title="Profiles", profiles=await profiles.summaries())


@get("/profiles/{name:str}")
async def profile_page(
    request: PageRequest,
    name: FromPath[str],
    profiles: Profiles,
    inspector: TheInspector,
    gpu: FromQuery[str] = "",
) -> Template:
    """`gpu` asks which backends the model would get on another GPU."""
    profile = await profiles.history(name)
    inspection = await asyncio.to_thread(inspector.inspect, profile.latest.to_run())
    selection = await asyncio.to_thread(inspector.selection, profile.latest.to_run(), gpu)
    settings = {key: value for key, value in profile.latest.document.items() if key not in ("schema", "name")}
    changes = {
        revision.number: [row.label for row in compare(older.document, revision.document)]
        for revision, older in pairwise(profile.revisions)
    }
    return page(
        request,
        "profiles/profile.html",
        title=name,
        profile=profile,
        inspection=inspection,
        selection=selection,
        known_gpus=KNOWN_GPUS,
        op_label=op_label,
        layers_label=layers_label,
        plural=plural,
        source_label=source_label,
        settings=compare({}, settings),
        effective=effective_rows(inspection.effective),
        changes=changes,
    )


@get("/profiles/{name:str}/revisions/{number:int}")
async def revision_page(
    request: PageRequest, name: FromPath[str], number: FromPath[int], profiles: Profiles
) -> Template:
    revision = await profiles.revision(name, number)
    history = await profiles.history(name)
    older = next((other for other in history.revisions if other.number < number), None)
    return page(
        request,
        "profiles/revision.html",
        title=revision.what,
        revision=revision,
        latest=history.latest,
        active=history.active,
        older=older,
        rows=compare(older.document, revision.document) if older else [],
        outcomes=history.outcomes.get(number, []),
        text=exported(revision, "yaml"),
    )


@get("/profiles/{name:str}/compare")
async def compare_page(
    request: PageRequest,
    name: FromPath[str],
    profiles: Profiles,
    before: FromQuery[int | None] = None,
    after: FromQuery[int | None] = None,
    everything: FromQuery[bool] = False,
) -> Template:
    profile = await profiles.history(name)
    right = await profiles.revision(name, after)
    left = await profiles.revision(name, before if before is not None else max(1, right.number - 1))
    return page(
        request,
        "profiles/compare.html",
        title=f"{name} {left.label} and {right.label}",
        profile=profile,
        before=left,
        after=right,
        everything=everything,
        rows=compare(left.document, right.document, everything=everything),
    )


@get("/profiles/{name:str}/export")
async def export(
    request: PageRequest,
    name: FromPath[str],
    profiles: Profiles,
    kind: FromQuery[Literal["yaml", "json"]] = "yaml",
    revision: FromQuery[int | None] = None,
) -> Response[str]:
    if unknown := sorted({*request.query_params} - {"kind", "revision"}):
        raise Refusal(
            422,
            f"An export has no parameter {unknown[0]}.",
            "Use kind=yaml or kind=json, and revision with a number.",
            field=unknown[0],
        )
    found = await profiles.revision(name, revision)
    file = f"{name}.{kind}" if revision is None else f"{name}.{found.label}.{kind}"
    return Response(
        exported(found, kind),
        media_type=MEDIA_TYPE[kind],
        headers={"Content-Disposition": f'attachment; filename="{file}"'},
    )


@post("/profiles/{name:str}/delete")
async def delete(request: PageRequest, name: FromPath[str], profiles: Profiles) -> Response[Any]:
    count = await profiles.delete(name)
    revisions = "its only revision" if count == 1 else f"its {count} revisions"
    return go_to(request, "/profiles", say=f"Deleted {name} and {revisions}. Its launches are kept.")


route_handlers: list[HTTPRouteHandler] = [profile_list, profile_page, revision_page, compare_page, export, delete]
