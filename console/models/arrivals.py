"""What can be imported from the media folder: bundles with their signers, and unsigned model folders; each model with
what the models folder has under its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from appliance.bundle.errors import BundleError
from appliance.bundle.names import MODEL
from appliance.bundle.outline import Outline, read_outline
from appliance.bundle.signature import PublicKey
from appliance.bundle.telling import in_sentences
from appliance.bundle.trust import trusted_keys
from appliance.home import Home
from console.models import media, plain
from console.models.in_thread import in_thread
from console.models.leftovers import Leftover, leftovers
from console.models.standing import free_name, standing
from console.models.troubles import Place, Trouble
from console.refusals import Refusal

READ_SECONDS = 4.0
"""How long one look reads bundle heads; the next look continues."""
FILES_KEPT = 100_000
"""Of all bundles together, since their file lists stay in memory while the drive is plugged in."""
PATIENCE_S = 1.5
"""How long a page waits for a look; a drive that is spinning up is shown as soon as it responds."""


@dataclass(frozen=True)
class Offer:
    """A model on the drive. `standing` is from `console.models.standing`; `free_name` is a name that it could have if
    its own is taken; `digests` is empty if they are not known."""

    name: str
    bytes: int
    sizes: dict[str, int]
    digests: dict[str, str]
    standing: str
    free_name: str


@dataclass(frozen=True)
class Row:
    """A bundle or folder that was found. `problem` is why nothing can be imported from it: a predicate that follows
    its name, or, if `told_whole`, a complete sentence."""

    found: media.Found
    problem: str = ""
    told_whole: bool = False
    outline: Outline | None = None
    offers: tuple[Offer, ...] = ()

    @property
    def signer(self) -> PublicKey | None:
        return self.outline.signer if self.outline else None

    @property
    def trusted(self) -> bool:
        return self.outline is not None and self.outline.trusted

    @property
    def is_appliance(self) -> bool:
        return self.outline is not None and self.outline.manifest.kind == "appliance"

    def offer(self, name: str) -> Offer:
        found = next((offer for offer in self.offers if offer.name == name), None)
        if found is None:
            text = f"{self.found.title} contains no model named {name}."
            raise Refusal(404, text, "Reload the Models page.", value=name)
        return found


@dataclass(frozen=True)
class Stock:
    """The result of one look. `room` is the free space in the models folder, `left` are partial imports there, and
    `trouble` is why the folder cannot be written."""

    sight: media.Sight
    rows: tuple[Row, ...]
    keys: tuple[PublicKey, ...]
    keys_problem: str
    room: int
    left: tuple[Leftover, ...]
    trouble: Trouble | None

    def left_of(self, name: str) -> int:
        """Bytes of a partial import, which are not copied again."""
        return sum(leftover.bytes for leftover in self.left if leftover.name == name)

    def row(self, source: str) -> Row:
        """Look up by name in the listing: a path sent by a browser is never opened."""
        found = next((row for row in self.rows if row.found.name == source), None)
        if found is None:
            raise Refusal(
                404,
                f"{source} was not found in {self.sight.folder}.",
                "If the USB drive was unplugged, plug it in again and reload the Models page.",
                field="source",
                value=source,
            )
        return found


class Arrivals:
    """Scans the media folder, once at a time however many pages ask. `stock` is the last result."""

    def __init__(self, home: Home, folder: Path, place: Place) -> None:
        self.folder = folder
        self.stock: Stock | None = None
        self._home = home
        self._place = place
        self._heads: dict[str, tuple[object, Row]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._began = 0.0
        self._of = 0.0

    @property
    def silent_s(self) -> float:
        """How long the current look has been waiting for the medium."""
        waits = self._looking is not None and not self._looking.done()
        return time.monotonic() - self._began if waits else 0.0

    async def look(self, max_age_s: float = 0.0, patience_s: float = PATIENCE_S) -> Stock | None:
        """The stock, no older than `max_age_s` if the medium responds within `patience_s`; None before the first look
        has ended."""
        now = time.monotonic()
        while self.stock is None or self._of < now - max_age_s:
            if self._looking is None or self._looking.done():
                self._began = time.monotonic()
                self._looking = asyncio.create_task(self._look())
            await asyncio.wait({self._looking}, timeout=now + patience_s - time.monotonic())
            if not self._looking.done():
                break
            self._looking.result()
        return self.stock

    async def close(self) -> None:
        if self._looking is not None and not self._looking.done():
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        self.stock, self._of = await in_thread(self._take_stock), self._began

    def _take_stock(self) -> Stock:
        keys: tuple[PublicKey, ...] = ()
        keys_problem = ""
        try:
            keys = trusted_keys(self._home)
        except BundleError as error:
            keys_problem = in_sentences(str(error))
        sight = media.look(self.folder)
        until = time.monotonic() + READ_SECONDS
        heads: dict[str, tuple[object, Row]] = {}
        kept = 0
        for found in sight.found:
            heads[found.name] = head = self._head(found, keys, until, kept)
            kept += sum(len(offer.sizes) for offer in head[1].offers)
        self._heads = heads
        rows = tuple(self._with_standing(row) for _, row in heads.values() if not row.problem)
        rows += tuple(row for _, row in heads.values() if row.problem)  # after the usable ones
        left = tuple(leftovers(self._place.models))
        return Stock(sight, rows, keys, keys_problem, self._place.free, left, self._place.trouble())

    def _head(self, found: media.Found, keys: Sequence[PublicKey], until: float, kept: int) -> tuple[object, Row]:
        """Read a bundle's head, once per state of the file and the trusted keys; again if the medium failed. `kept`
        files of other bundles are in memory."""
        if kept > FILES_KEPT:
            problem = f"was not read, as the bundles before it list more than {FILES_KEPT:,} files. Remove some of them"
            return None, Row(found, problem=problem)
        stamp = (found.stamp, found.problem, keys)
        known = self._heads.get(found.name)
        if known is not None and known[0] == stamp:
            return known
        if found.problem:
            return stamp, Row(found, problem=found.problem)
        if time.monotonic() > until:
            return None, Row(found, problem="has not been read yet")
        try:
            return stamp, _bundle(found, keys) if found.is_bundle else _folder(found)
        except BundleError as error:
            passing = isinstance(error.__cause__, OSError)
            return None if passing else stamp, Row(found, problem=in_sentences(str(error)), told_whole=True)
        except OSError as error:
            return None, Row(found, problem=f"cannot be read: {error.strerror or error}")

    def _with_standing(self, row: Row) -> Row:
        models = self._place.models
        offers = tuple(
            replace(
                offer,
                standing=standing(models, offer.name, offer.sizes, offer.digests),
                free_name=free_name(models, offer.name),
            )
            for offer in row.offers
        )
        return replace(row, offers=offers)


def _bundle(found: media.Found, keys: Sequence[PublicKey]) -> Row:
    outline = read_outline(found.path, keys)
    offers = tuple(_offer(outline, model.name) for model in outline.models)
    slim = replace(outline, manifest=msgspec.structs.replace(outline.manifest, files=()))
    return Row(found, outline=slim, offers=offers)


def _offer(outline: Outline, name: str) -> Offer:
    prefix = f"models/{name}/"
    files = outline.manifest.below(prefix)
    sizes = {file.path.removeprefix(prefix): file.size for file in files}
    digests = {file.path.removeprefix(prefix): file.sha256 for file in files}
    return Offer(name, sum(sizes.values()), sizes, digests, "free", "")


def _folder(found: media.Found) -> Row:
    content = plain.content(found.path)
    problem = ""
    if MODEL.fullmatch(found.title) is None:
        problem = "has a name that a model cannot have. Use only letters, digits, dots, dashes and underscores"
    elif content.odd:
        problem = f"contains {content.odd[0]}, which is not a regular file. Copy the file itself there"
    offer = Offer(found.title, content.bytes, dict(content.files), {}, "free", "")
    return Row(replace(found, bytes=content.bytes), problem=problem, offers=() if problem else (offer,))
