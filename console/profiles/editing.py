"""The form: a new profile, another revision of one, and what is said while somebody types."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Template

from appliance.profile import document as documents
from appliance.profile.schema import ProfileError
from console.engine_control.operations import EngineOperations, When
from console.pages import go_to
from console.parts import Folder, PageRequest, Profiles, TheActivator, TheEngine, TheInspector
from console.profiles.activation_routes import follow
from console.profiles.activator import Activator
from console.profiles.errors import InUse, InvalidDocument, NameTaken, Stale
from console.profiles.form import Draft
from console.profiles.form_page import FormPage, live_part
from console.profiles.patch import read_patch
from console.profiles.records import SavedRevision
from console.profiles.web import saved_cookie

Sent = URLEncodedBody[dict[str, str]]


@get("/profiles/-/new")
async def new(
    request: PageRequest,
    profiles: Profiles,
    inspector: TheInspector,
    home: Folder,
    copy: FromQuery[str] = "",
    model: FromQuery[str] = "",
) -> Template:
    """An empty form, or one that begins as a copy of the profile `copy`, or with a model chosen."""
    draft = Draft(values={"model.path": model})
    if copy:
        source = await profiles.revision(copy)
        draft = Draft.of({**source.to_run(), "name": f"{copy}-copy"}, base=0)
    return await FormPage(request, home, inspector, None).show(draft)


@post("/profiles/-/new")
async def create(
    request: PageRequest,
    data: Sent,
    profiles: Profiles,
    activator: TheActivator,
    engine: TheEngine,
    inspector: TheInspector,
    home: Folder,
) -> Response[Any] | Template:
    draft, form = Draft.sent(data), FormPage(request, home, inspector, None)
    if (shown := await _asked_to_change_the_form(data, draft, form)) is not None:
        return shown
    when = await _when_to_activate(data, engine)
    try:
        saved = await profiles.create(_document(draft), author=request.user.name, note=draft.note)
    except (InvalidDocument, NameTaken) as error:
        return await form.show(draft, refusal=error)
    return await _saved(request, data, "-", saved, f"Saved {saved.what}.", activator, when)


@get("/profiles/{name:str}/edit")
async def edit(
    request: PageRequest,
    name: FromPath[str],
    profiles: Profiles,
    inspector: TheInspector,
    home: Folder,
    revision: FromQuery[int | None] = None,
    patch: FromQuery[str] = "",
) -> Template:
    """The latest revision, or an older one's settings to be saved on top of it; `patch` is a fix to begin with."""
    latest = await profiles.revision(name)
    shown = latest if revision is None else await profiles.revision(name, revision)
    document = documents.apply_patch(shown.to_run(), read_patch(patch)) if patch else shown.to_run()
    note = "" if shown.number == latest.number else f"Copied from {shown.label}."
    draft = Draft.of(document, base=latest.number, note=note)
    return await FormPage(request, home, inspector, name).show(draft)


@post("/profiles/{name:str}/edit")
async def save(
    request: PageRequest,
    name: FromPath[str],
    data: Sent,
    profiles: Profiles,
    activator: TheActivator,
    engine: TheEngine,
    inspector: TheInspector,
    home: Folder,
) -> Response[Any] | Template:
    draft, form = Draft.sent(data), FormPage(request, home, inspector, name)
    if (shown := await _asked_to_change_the_form(data, draft, form)) is not None:
        return shown
    when = await _when_to_activate(data, engine)
    try:
        document = _document(draft)
        result = await profiles.save(name, document, base=draft.base, author=request.user.name, note=draft.note)
    except (InvalidDocument, NameTaken, InUse) as error:
        return await form.show(draft, refusal=error)
    except Stale as error:
        return await form.show(draft, refusal=error, theirs=await profiles.revision(name))
    saved = result.revision
    said = f"Saved {saved.what}." if result.new else f"No changes: {saved.what} is still the latest revision."
    return await _saved(request, data, name, saved, said, activator, when)


@post("/profiles/-/check", status_code=200)
async def check(data: Sent, inspector: TheInspector, home: Folder) -> Template:
    """What is said beside the form while somebody types; nothing is saved."""
    return await live_part(Draft.sent(data), inspector, home)


async def _when_to_activate(data: dict[str, str], engine: EngineOperations) -> When:
    """Checked before anything is saved: the form is sent again with the choice."""
    if data.get("do") != "activate":
        return When.NOW
    when = data.get("when", "")
    return When(when) if when in tuple(When) else await engine.choose("", "Save and activate")


async def _saved(
    request: PageRequest,
    data: dict[str, str],
    draft: str,
    saved: SavedRevision,
    said: str,
    activator: Activator,
    when: When,
) -> Response[Any] | Template:
    answer: Response[Any] | Template
    if data.get("do") == "activate":
        activation = activator.activate(saved.profile, saved.number, when=when, who=request.user.name)
        answer = await follow(request, activation)
    else:
        answer = go_to(request, f"/profiles/{saved.profile}", say=said)
    answer.cookies.append(saved_cookie(draft))
    return answer


async def _asked_to_change_the_form(data: dict[str, str], draft: Draft, form: FormPage) -> Template | None:
    """The form again, if a button requested its other view or a fix rather than saving."""
    try:
        if data.get("patch"):
            fixed = documents.apply_patch(draft.document(), read_patch(data["patch"]))
            return await form.show(Draft.of(fixed, base=draft.base, note=draft.note, view=draft.view))
        if data.get("show") in ("fields", "yaml"):
            other = draft.seen_as(data["show"])
            return await form.show(other or draft, cannot_switch=other is None)
    except ProfileError as error:
        return await form.show(draft, refusal=InvalidDocument(error.problems))
    return None


def _document(draft: Draft) -> dict[str, Any]:
    try:
        return draft.document()
    except ProfileError as error:
        raise InvalidDocument(error.problems) from error


route_handlers: list[HTTPRouteHandler] = [new, create, edit, save, check]
