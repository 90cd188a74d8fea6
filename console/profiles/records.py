"""Profiles and revisions as they are read from the database: plain values, which pages show and `--json` writes."""

from __future__ import annotations

from typing import Any

import msgspec

from console.profiles.history import Outcome


class SavedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision. `document` is canonical: sorted, and only what differs from the defaults."""

    id: int
    profile: str
    number: int
    document: dict[str, Any]
    content_hash: str
    note: str
    author: str
    created: float
    active: bool = False

    @property
    def label(self) -> str:
        return f"r{self.number}"

    @property
    def what(self) -> str:
        """How messages call it: `qwen3-8b r7`."""
        return f"{self.profile} {self.label}"

    def to_run(self) -> dict[str, Any]:
        """The document as it is run: under the name that the profile has today, whatever it was called then."""
        return {**self.document, "name": self.profile}


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """`new` is False when the document said what the latest revision says already."""

    revision: SavedRevision
    new: bool


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. `active` is the number of the active revision, if it is of this profile."""

    name: str
    latest: SavedRevision
    active: int | None
    last_launch: Outcome | None

    @property
    def model(self) -> str:
        """The path of its model; empty in a damaged document."""
        model = self.latest.document.get("model")
        return str(model.get("path", "")) if isinstance(model, dict) else ""

    @property
    def engine(self) -> str:
        return str(self.latest.document.get("engine", "native"))


class ProfileHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with all its revisions, newest first, and the launches of each, newest first."""

    name: str
    revisions: list[SavedRevision]
    outcomes: dict[int, list[Outcome]]

    @property
    def latest(self) -> SavedRevision:
        return self.revisions[0]

    @property
    def active(self) -> SavedRevision | None:
        return next((revision for revision in self.revisions if revision.active), None)
