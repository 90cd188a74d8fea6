"""Importing models from a drive: the page of one bundle or folder, the queue, and the trusted keys."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Redirect, Template

from appliance.bundle import trust
from appliance.bundle.errors import BundleError
from appliance.bundle.signature import PublicKey
from appliance.bundle.telling import in_sentences
from console.conflicts import Conflict
from console.models import choices, leftovers
from console.models.arrivals import Stock
from console.models.importing import Importing
from console.models.in_thread import in_thread
from console.pages import go_to, page
from console.parts import Folder, PageRequest, TheImporting
from console.refusals import Refusal

PATIENCE_S = 8.0
"""An import waits longer for the drive than a page does."""


class ImportForm(msgspec.Struct):
    source: str
    model: list[str] | str = []
    name: str = ""
    unsigned: str = ""


class CompareForm(msgspec.Struct):
    source: str
    model: str


class LeftoverForm(msgspec.Struct):
    name: str


class KeyForm(msgspec.Struct):
    key: str
    source: str = ""


@get("/models/-/import")
async def import_page(
    request: PageRequest, importing: TheImporting, source: FromQuery[str] = ""
) -> Template | Redirect:
    """One bundle or folder of the drive: who signed it, what it holds, and what can be done with it. Without one, the
    list of them."""
    if not source:
        return Redirect(_back(source), status_code=303)
    stock = await _stock(importing)
    context = {**await importing.parts.media(), "stock": stock, "row": stock.row(source)}
    return page(request, "models/import.html", title="Import", hindrance=choices.hindrance, **context)


@post("/models/-/imports")
async def begin(
    request: PageRequest, home: Folder, importing: TheImporting, data: URLEncodedBody[ImportForm]
) -> Response[Any]:
    stock = await _stock(importing)
    names = data.model if isinstance(data.model, list) else [data.model]
    order = choices.import_order(
        home,
        stock,
        importing.imports,
        source=data.source,
        names=names,
        new_name=data.name,
        unsigned=data.unsigned == "yes",
        author=request.user.name,
    )
    importing.imports.ask(order, request.user.name)
    return go_to(request, "/models")


@post("/models/-/comparisons")
async def compare(
    request: PageRequest, home: Folder, importing: TheImporting, data: URLEncodedBody[CompareForm]
) -> Response[Any]:
    order = choices.comparison(home, await _stock(importing), data.source, data.model, request.user.name)
    importing.imports.ask(order, request.user.name)
    return go_to(request, "/models")


@post("/models/-/imports/{import_id:str}/cancel")
async def cancel(request: PageRequest, importing: TheImporting, import_id: FromPath[str]) -> Response[Any]:
    row = importing.imports.cancel(import_id)
    return go_to(request, "/models", say=f"Cancelled the {row.verb} of {row.title}.", tone="warn")


@post("/models/-/imports/{import_id:str}/forget")
async def forget(request: PageRequest, importing: TheImporting, import_id: FromPath[str]) -> Response[Any]:
    importing.imports.forget(import_id)
    return go_to(request, "/models")


@post("/models/-/leftovers/discard")
async def discard_leftover(
    request: PageRequest, home: Folder, importing: TheImporting, data: URLEncodedBody[LeftoverForm]
) -> Response[Any]:
    if data.name in importing.imports.coming:
        message = f"{data.name} is being imported."
        raise Conflict("already-importing", message, "Cancel the import first.", field="name", value=data.name)
    try:
        await in_thread(leftovers.discard, home.models, (data.name,))
    except (BundleError, OSError) as error:
        message = f"The partial import of {data.name} was not deleted: {error}."
        raise Conflict("leftover-busy", message, "Try again later.", value=data.name) from error
    return go_to(request, "/models", say=f"Deleted the partial import of {data.name}.")


@post("/models/-/keys")
async def trust_key(request: PageRequest, home: Folder, data: URLEncodedBody[KeyForm]) -> Response[Any]:
    """Trust exactly the key that was shown, whatever is on the drive by now."""
    _administrator(request)
    try:
        key = PublicKey.parse(data.key)
        await in_thread(trust.trust, home, key)
    except BundleError as error:
        message = in_sentences(f"the key was not added: {error}")
        raise Refusal(422, message, "Reload the page.", field="key") from error
    except OSError as error:
        where = trust.folder(home)
        remedy = "Free some space or fix its permissions, then try again."
        raise Refusal(507, f"{where} could not be written: {error.strerror}.", remedy) from error
    return go_to(request, _back(data.source), say=f"Bundles signed by {key.id} can now be imported.")


@post("/models/-/keys/{key_id:str}/distrust")
async def distrust_key(request: PageRequest, home: Folder, key_id: FromPath[str]) -> Response[Any]:
    _administrator(request)
    try:
        await in_thread(trust.distrust, home, key_id)
    except BundleError as error:
        message = in_sentences(f"the key was not removed: {error}")
        raise Conflict("key-unknown", message, "Reload the page.", value=key_id) from error
    return go_to(request, "/models#media", say=f"Bundles signed by {key_id} can no longer be imported.")


async def _stock(importing: Importing) -> Stock:
    """What is in the media folder now."""
    stock = await importing.arrivals.look(patience_s=PATIENCE_S)
    if stock is None or importing.arrivals.silent_s:
        raise Refusal(
            503,
            f"{importing.arrivals.folder} is not responding. The drive may be spinning up, or be faulty.",
            "Wait a moment and try again. If that does not help, unplug it and plug it in again.",
        )
    return stock


def _administrator(request: PageRequest) -> None:
    """Refuse programs: they use `ingot bundle trust`. Every signed-in person is an administrator."""
    if request.user.id == 0:
        raise Refusal(403, "Only a signed-in person can trust a key here.", "From a program, use `ingot bundle trust`.")


def _back(source: str) -> str:
    return f"/models/-/import?source={quote(source)}" if source else "/models#media"


route_handlers: list[HTTPRouteHandler] = [
    import_page,
    begin,
    compare,
    cancel,
    forget,
    discard_leftover,
    trust_key,
    distrust_key,
]
