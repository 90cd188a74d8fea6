"""The fixes on a launch's page: what each would change, which can be applied together, and where to run a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from appliance.profile.schema import BY_KEY
from appliance.profile.validation import MISSING, get
from appliance.protocol import Fix, LaunchRecord, Severity

PLACES = {
    "ingot": "In a terminal where Ingot is installed. With containers: `docker compose exec console` and the command.",
    "docker": "On the machine that runs the containers.",
    "nvidia-smi": "On the machine that has the GPU, not in a container.",
    "systemctl": "On the machine that has the GPU, not in a container.",
    "modprobe": "On the machine that has the GPU, as root.",
    "apt": "On the machine that runs the engine, as root.",
}
"""Where to run a command, by its first word."""

PLACE = "In a terminal on the machine that runs the engine."


class Change(NamedTuple):
    """One setting of a patch, as written in a profile. `before` is None if unknown."""

    key: str
    before: str | None
    after: str


def changes(patch: Mapping[str, Any], document: Mapping[str, Any] | None = None) -> list[Change]:
    """What a patch does to a document, setting by setting, without those that are so already; without the document,
    what it sets."""
    rows = []
    for key, after in patch.items():
        before = None
        if document is not None:
            present = get(document, key)
            if _meant(key, None if present is MISSING else present) == _meant(key, after):
                continue
            before = _default(key) if present is MISSING else written(present)
        rows.append(Change(key, before, _default(key) if after is None else written(after)))
    return rows


def _meant(key: str, value: Any) -> Any:
    """A setting's value as text; None if it is not set."""
    setting = BY_KEY.get(key)
    return setting.default if value is None and setting is not None and not setting.required else value


def _default(key: str) -> str:
    setting = BY_KEY.get(key)
    if setting is None or setting.required:
        return "not set"
    return f"{written(setting.default)} (default)" if setting.default is not None else "not set"


def written(value: Any) -> str:
    """A value as a profile writes it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fixes(record: LaunchRecord) -> list[Fix]:
    """Of the diagnosis and of every error that preflight found."""
    found = [finding.fix for finding in record.findings if finding.severity is Severity.ERROR]
    return [fix for fix in (record.diagnosis.fix if record.diagnosis else None, *found) if fix is not None]


def together(record: LaunchRecord, document: Mapping[str, Any] | None = None) -> Fix | None:
    """One fix that combines all patches that change something in `document`. None if there are fewer than two, or if
    they conflict."""
    patches = [fix.patch for fix in fixes(record) if fix.patch and changes(fix.patch, document)]
    joined: dict[str, Any] = {}
    for patch in patches:
        for key, value in patch.items():
            if joined.get(key, value) != value or _overlaps(key, joined):
                return None
            joined[key] = value
    if len(patches) < 2:
        return None
    return Fix(text="Apply all of these changes.", patch=joined)


def _overlaps(key: str, patch: Mapping[str, Any]) -> bool:
    """Whether one sets a section of which the other sets a part."""
    return any(other.startswith(f"{key}.") or key.startswith(f"{other}.") for other in patch)


def place(command: str) -> str:
    """Where to run a command."""
    words = command.split()
    first = words[1] if words[:1] == ["sudo"] and len(words) > 1 else (words[0] if words else "")
    return PLACES.get(first, PLACE)
