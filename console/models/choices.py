"""What can be done with a model on the stick right now, and the order that does it."""

from __future__ import annotations

import os

from appliance.bundle.names import MODEL
from appliance.home import Home
from console.errors import Refusal
from console.formats import gib
from console.models.arrivals import Offer, Row, Stock
from console.models.imports import Imports
from console.models.orders import BundleOrder, Comparison, FolderOrder, Order

SPARE = 256 << 20
"""Bytes that an import leaves free: the state folder is often on the same disk."""


def choice(row: Row, offer: Offer, stock: Stock, imports: Imports) -> str:
    """`coming`: it is being imported. `here`, `alike`, `taken`: as `console.models.standing` has it. `locked`: the
    models folder cannot be written. `unsigned`, `untrusted`: a bundle whose signer is none, or is not trusted.
    `no-room`. `folder`: can be imported without a signature. `import`: can be imported."""
    if offer.name in imports.coming:
        return "coming"
    if offer.standing != "free":
        return offer.standing
    return hindrance(row, offer, stock, imports) or ("import" if row.found.is_bundle else "folder")


def importable(row: Row, stock: Stock, imports: Imports) -> list[str]:
    """The models of a bundle that can be imported together, as far as there is room for all of them."""
    offers = [offer for offer in row.offers if choice(row, offer, stock, imports) == "import"]
    together = sum(offer.bytes for offer in offers) <= room(stock, imports)
    return [offer.name for offer in offers] if together else []


def hindrance(row: Row, offer: Offer, stock: Stock, imports: Imports) -> str:
    """What keeps the model from being imported under any name; empty where nothing does."""
    if stock.trouble is not None:
        return "locked"
    if row.found.is_bundle and row.signer is None:
        return "unsigned"
    if row.found.is_bundle and not row.trusted:
        return "untrusted"
    return "" if offer.bytes <= room(stock, imports) + stock.left_of(offer.name) else "no-room"


def room(stock: Stock, imports: Imports) -> int:
    """Bytes that another import may take."""
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
    """The order for models `names` of what lies at `source`; one alone may get a `new_name`.

    Raises:
        Refusal: it cannot be done, or a folder that nobody signed was not asked for as such.
    """
    row = _usable(stock, source)
    offers = tuple(row.offer(name) for name in dict.fromkeys(names))
    if not offers:
        raise Refusal(422, "No model was named.", "Choose at least one.", field="model")
    called = (new_name.strip(),) if new_name.strip() else tuple(offer.name for offer in offers)
    if len(called) != len(offers):
        text = "One name was given for several models."
        raise Refusal(422, text, "Import them one by one.", field="name", value=new_name)
    for name in called:
        _check_name(home, imports, name)
    for offer in offers:
        _check(row, offer, stock, imports)
    needed = sum(max(0, offer.bytes - stock.left_of(offer.name)) for offer in offers)
    free = room(stock, imports)
    if needed > free:
        text = f"They need {gib(needed)}, and there is room for {gib(free)}."
        raise Refusal(507, text, "Import fewer, or make room.")
    if row.found.is_bundle:
        return BundleOrder(home, row, offers, called, author)
    if not unsigned:
        raise Refusal(
            422,
            f"Nobody has signed {row.found.title}.",
            "Import it from its own page, where you say that you know where it comes from.",
            field="unsigned",
        )
    return FolderOrder(home, row, offers, called, author)


def comparison(home: Home, stock: Stock, source: str, name: str, author: str) -> Order:
    row = _usable(stock, source)
    offer = row.offer(name)
    if offer.standing != "alike":
        raise Refusal(409, f"There is nothing to compare {name} with.", "Look at the Models page again.", value=name)
    if row.found.is_bundle and not row.trusted:
        raise Refusal(409, f"The key that signed {row.found.title} is not trusted here.", "Look at the key first.")
    return Comparison(home, row, (offer,), (name,), author, verb="comparison")


def _usable(stock: Stock, source: str) -> Row:
    row = stock.row(source)
    if row.problem:
        text = row.problem if row.told_whole else f"{row.found.title} {row.problem}."
        raise Refusal(409, text, "Nothing can be imported from it as it is.", value=source)
    return row


def _check_name(home: Home, imports: Imports, name: str) -> None:
    if MODEL.fullmatch(name) is None:
        raise Refusal(
            422,
            f"A model cannot be called {name!r}.",
            "Use letters, digits, dots, dashes and underscores, up to 100, with a letter or digit first.",
            field="name",
            value=name,
        )
    if os.path.lexists(home.models / name):
        raise Refusal(409, f"There is a model named {name} already.", "Give it another name.", field="name", value=name)
    if name in imports.coming:
        raise Refusal(409, f"{name} is being imported already.", "Look at its progress on the Models page.", value=name)


def _check(row: Row, offer: Offer, stock: Stock, imports: Imports) -> None:
    found = hindrance(row, offer, stock, imports)
    if found == "locked" and stock.trouble is not None:
        remedy = f"{stock.trouble.remedy} {stock.trouble.command}".strip()
        raise Refusal(503, stock.trouble.text, remedy)
    if found == "unsigned":
        raise Refusal(409, f"{row.found.title} is not signed.", "Ask who made it for a signed one.")
    if found == "untrusted" and row.signer is not None:
        raise Refusal(
            409,
            f"{row.found.title} is signed by the key {row.signer.id}, which is not trusted here.",
            "Compare the key with the one that its sender gave you, and trust it first.",
        )
    if found == "no-room":
        free = gib(room(stock, imports))
        raise Refusal(
            507,
            f"{offer.name} needs {gib(offer.bytes)}, and there is room for {free}.",
            "Delete a model that is not used any more, or give the models folder a larger disk.",
        )
