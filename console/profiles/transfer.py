"""Profiles in and out as text. An import is planned first: what each text would do, without doing it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from appliance.profile import document as documents
from appliance.profile.document import Change
from appliance.profile.schema import Problem, ProfileError
from console.profiles.errors import InvalidDocument, NotFound
from console.profiles.records import SavedRevision
from console.profiles.store import ProfileStore, load


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """What importing one text would do. `revision` is the number that it would get; `changes` are against the latest
    revision, or against the defaults for a new profile."""

    source: str
    does: Literal["create", "revise", "nothing", "refuse"]
    name: str = ""
    revision: int = 0
    changes: list[Change] = []
    problems: list[Problem] = []
    before: dict[str, Any] = {}
    document: dict[str, Any] = {}

    @property
    def stamp(self) -> str:
        """The same as long as importing would do the same."""
        return f"{self.does} {self.name} {self.revision}"


async def plan(store: ProfileStore, texts: Iterable[tuple[str, str | bytes]]) -> list[Planned]:
    """What importing (source, text) pairs would do, in order; a duplicate name is refused."""
    planned: list[Planned] = []
    for source, text in texts:
        item = await _plan(store, source, text)
        if item.name and item.name in {other.name for other in planned}:
            twice = Problem(
                field="name",
                value=item.name,
                message=f"{source} is the second profile named {item.name} in this import.",
                remedy="Rename it, or import only one of them.",
            )
            item = Planned(source=source, does="refuse", name=item.name, problems=[twice])
        planned.append(item)
    return planned


async def carry_out(store: ProfileStore, planned: Iterable[Planned], *, author: str) -> list[SavedRevision]:
    """Do what was planned; the answer is what was saved. Nothing is done when one of the texts is refused."""
    planned = list(planned)
    if problems := [problem for item in planned for problem in item.problems]:
        raise InvalidDocument(problems)
    saved = []
    for item in planned:
        note = f"Imported from {item.source}."
        if item.does == "create":
            saved.append(await store.create(item.document, author=author, note=note))
        elif item.does == "revise":
            base = item.revision - 1
            saved.append((await store.save(item.name, item.document, base=base, author=author, note=note)).revision)
    return saved


def exported(revision: SavedRevision, kind: Literal["yaml", "json"]) -> str:
    """The revision under the profile's present name, only what differs from the defaults."""
    if kind == "yaml":
        return documents.export(load(revision.to_run()))
    return json.dumps(revision.to_run(), indent=2, ensure_ascii=False) + "\n"


async def _plan(store: ProfileStore, source: str, text: str | bytes) -> Planned:
    try:
        document = documents.parse(text)
        loaded = documents.load(document)
    except ProfileError as error:
        return Planned(source=source, does="refuse", problems=error.problems)
    canonical = documents.to_document(loaded)
    try:
        latest = await store.revision(loaded.name)
    except NotFound:
        changes = documents.diff({}, {key: value for key, value in canonical.items() if key != "schema"})
        return Planned(source=source, does="create", name=loaded.name, revision=1, changes=changes, document=canonical)
    changes = documents.diff(latest.document, canonical)
    if documents.content_hash(loaded) == latest.content_hash:
        return Planned(source=source, does="nothing", name=loaded.name, revision=latest.number, document=canonical)
    return Planned(
        source=source,
        does="revise",
        name=loaded.name,
        revision=latest.number + 1,
        changes=changes,
        before=latest.document,
        document=canonical,
    )
