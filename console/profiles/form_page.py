"""What the form's page and its live part are given."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from litestar.response import Template

from appliance.checkpoint.folder import model_names
from appliance.home import Home
from appliance.profile.schema import BY_KEY, Problem, ProfileError
from console.error_answers import wants_page
from console.pages import fragment, page
from console.parts import PageRequest
from console.profiles.comparison import compare
from console.profiles.errors import InUse, NameTaken, ProfileRefusal
from console.profiles.form import Choice, Draft, elsewhere, groups
from console.profiles.inspection import Inspection, Inspector
from console.profiles.records import SavedRevision
from console.profiles.web import STATUS

UNNAMED = "new-profile"
"""Placeholder for a name that is not typed yet, so that the rest can be checked."""


@dataclass(frozen=True)
class FormPage:
    """Shows a draft of the profile `name`, or of a new one if None. What was typed is never lost."""

    request: PageRequest
    home: Home
    inspector: Inspector
    name: str | None

    async def show(
        self,
        draft: Draft,
        *,
        refusal: ProfileRefusal | None = None,
        theirs: SavedRevision | None = None,
        cannot_switch: bool = False,
        strict: bool = False,
    ) -> Template:
        """`refusal` explains why it was not saved and gives the status. `theirs` is the revision that somebody else
        saved meanwhile. `strict` also reports missing values, which a form that was just opened does not. Raises
        the refusal if a program sent the form: it gets JSON."""
        if refusal is not None and not wants_page(self.request):
            raise refusal
        inspection = await _inspect(draft, self.inspector, strict=strict or refusal is not None)
        if isinstance(refusal, NameTaken | InUse):
            said = Problem(field="name", value=refusal.value, message=refusal.message, remedy=refusal.remedy)
            inspection = replace(inspection, problems=[*inspection.problems, said])
        return page(
            self.request,
            "profiles/form.html",
            title=f"Edit {self.name}" if self.name else "New profile",
            name=self.name,
            refusal=refusal,
            theirs=theirs,
            rows=compare(theirs.document, draft.document()) if theirs else [],
            cannot_switch=cannot_switch,
            sent=self.request.method == "POST",
            status_code=STATUS[type(refusal)] if refusal else 200,
            **await _context(draft, inspection, self.inspector, self.home),
        )


async def live_part(draft: Draft, inspector: Inspector, home: Home) -> Template:
    """What is said beside the fields while somebody types."""
    inspection = await _inspect(draft, inspector, strict=False)
    return fragment("profiles/check.html", **await _context(draft, inspection, inspector, home))


async def _inspect(draft: Draft, inspector: Inspector, *, strict: bool) -> Inspection:
    try:
        document = draft.document()
    except ProfileError as error:
        return Inspection(problems=error.problems)
    missing = [key for key, setting in BY_KEY.items() if setting.required and _is_missing(document, key)]
    if strict or "model.path" in missing:
        inspection = await asyncio.to_thread(inspector.inspect, document)
    else:
        inspection = await asyncio.to_thread(inspector.inspect, {"name": UNNAMED, **document})
    if strict:
        return inspection
    return replace(inspection, problems=[p for p in inspection.problems if p.field not in missing])


def _is_missing(document: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    inner = document.get(section, {}) if section else document
    return not isinstance(inner, dict) or name not in inner


async def _context(draft: Draft, inspection: Inspection, inspector: Inspector, home: Home) -> dict[str, Any]:
    devices = [Choice(value, words) for value, words in await asyncio.to_thread(inspector.devices)]
    return {
        "draft": draft,
        "inspection": inspection,
        "groups": groups(draft.values, inspection.problems, model_names(home), devices),
        "elsewhere": elsewhere(inspection.problems) if draft.view == "fields" else inspection.problems,
    }
