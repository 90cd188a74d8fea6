"""What can be done with a model on the drive now, and the order that does it."""

from __future__ import annotations

import os

from appliance.bundle.names import MODEL
from appliance.home import Home
from console.conflicts import Conflict
from console.formats import gib
from console.models.arrivals import Offer, Row, Stock
from console.models.imports import Imports
from console.models.orders import BundleOrder, Comparison, FolderOrder, Order
from console.refusals import Refusal

SPARE = 256 << 20
"""Bytes that an import leaves free, as the state folder is often on the same disk."""


def choice(row: Row, offer: Offer, stock: Stock, imports: Imports) -> str:
    """`coming`: it is being imported. `here`, `alike`, `taken`: see `console.models.standing`. `locked`: the models
    folder cannot be written. `unsigned`, `untrusted`: the bundle has no signature, or one by an untrusted key.
    `no-room`. `folder`: can be imported without a signature. `import`: can be imported."""
    if offer.name in imports.coming:
        return "coming"
    if offer.standing != "free":
        return offer.standing
    return hindrance(row, offer, stock, imports) or ("import" if row.found.is_bundle else "folder")


def importable(row: Row, stock: Stock, imports: Imports) -> list[str]:
    """The models of a bundle that can be imported together; empty unless there is room for all of them."""
    offers = [offer for offer in row.offers if choice(row, offer, stock, imports) == "import"]
    together = sum(offer.bytes for offer in offers) <= room(stock, imports)
    return [offer.name for offer in offers] if together else []


def hindrance(row: Row, offer: Offer, stock: Stock, imports: Imports) -> str:
    """What prevents importing the model under any name; empty if nothing does."""
    if stock.trouble is not None:
        return "locked"
    if row.found.is_bundle and row.signer is None:
        return "unsigned"
    if row.found.is_bundle and not row.trusted:
        return "untrusted"
    return "" if offer.bytes <= room(stock, imports) + stock.left_of(offer.name) else "no-room"


def room(stock: Stock, imports: Imports) -> int:
    """Bytes available to another import."""
    return max(0, stock.room - imports.reserved - SPARE)


def import_order(
    home: Home,
    stock: Stock,
    imports: Imports,
    *,
    source: str,
    names: list[str],
    new_name: str,
    unsigned: bool,
    author: str,
) -> Order:
    """The order to import models `names` from `source`; a single one may get a `new_name`.

    Raises:
        Refusal: it cannot be done, or an unsigned folder was not requested as `unsigned`.
    """
    row = _usable(stock, source)
    offers = tuple(row.offer(name) for name in dict.fromkeys(names))
    if not offers:
        raise Refusal(422, "No model was chosen.", "Choose at least one.", field="model")
    called = (new_name.strip(),) if new_name.strip() else tuple(offer.name for offer in offers)
    if len(called) != len(offers):
        text = f"One new name was given for {len(offers)} models."
        raise Refusal(422, text, "Import them one at a time.", field="name", value=new_name)
    for name in called:
        _check_name(home, imports, name)
    for offer in offers:
        _check(row, offer, stock, imports)
    needed = sum(max(0, offer.bytes - stock.left_of(offer.name)) for offer in offers)
    free = room(stock, imports)
    if needed > free:
        text = f"These models need {gib(needed)}; {gib(free)} is available."
        raise Refusal(507, text, "Import fewer models, or free some space.")
    if row.found.is_bundle:
        return BundleOrder(home, row, offers, called, author)
    if not unsigned:
        raise Refusal(
            422,
            f"{row.found.title} is not signed.",
            "Open its page and confirm that you know where it comes from.",
            field="unsigned",
        )
    return FolderOrder(home, row, offers, called, author)


def comparison(home: Home, stock: Stock, source: str, name: str, author: str) -> Order:
    row = _usable(stock, source)
    offer = row.offer(name)
    if offer.standing != "alike":
        message = f"There is no model to compare {name} with."
        raise Conflict("nothing-to-compare", message, "Reload the Models page.", value=name)
    if row.found.is_bundle and not row.trusted:
        raise _untrusted(row)
    return Comparison(home, row, (offer,), (name,), author, verb="comparison")


def _usable(stock: Stock, source: str) -> Row:
    row = stock.row(source)
    if row.problem:
        text = row.problem if row.told_whole else f"{row.found.title} {row.problem}."
        raise Conflict("cannot-import", text, "Fix that, or copy it to the USB drive again.", value=source)
    return row


def _check_name(home: Home, imports: Imports, name: str) -> None:
    if MODEL.fullmatch(name) is None:
        raise Refusal(
            422,
            f"{name!r} is not a valid model name.",
            "Use up to 100 letters, digits, dots, dashes and underscores, starting with a letter or digit.",
            field="name",
            value=name,
        )
    if os.path.lexists(home.models / name):
        message = f"There is already a model named {name}."
        raise Conflict("name-taken", message, "Choose another name.", field="name", value=name)
    if name in imports.coming:
        message = f"{name} is already being imported."
        raise Conflict("already-importing", message, "The Models page shows its progress.", value=name)


def _untrusted(row: Row) -> Conflict:
    return Conflict(
        "key-untrusted",
        f"{row.found.title} is signed by key {row.signer.id if row.signer else ''}, which is not trusted here.",
        "Compare the key with the one that the sender gave you, then trust it.",
    )


def _check(row: Row, offer: Offer, stock: Stock, imports: Imports) -> None:
    found = hindrance(row, offer, stock, imports)
    if found == "locked" and stock.trouble is not None:
        remedy = f"{stock.trouble.remedy} {stock.trouble.command}".strip()
        raise Refusal(503, stock.trouble.text, remedy)
    if found == "unsigned":
        raise Conflict("unsigned", f"{row.found.title} is not signed.", "Ask its creator for a signed bundle.")
    if found == "untrusted":
        raise _untrusted(row)
    if found == "no-room":
        free = gib(room(stock, imports))
        raise Refusal(
            507,
            f"{offer.name} needs {gib(offer.bytes)}; {free} is available.",
            "Delete a model that is no longer used, or move the models folder to a larger disk.",
        )
