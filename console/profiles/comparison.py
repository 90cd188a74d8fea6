"""Settings in words: two documents side by side, and effective values with their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.plan.effective import EffectiveValue
from appliance.profile import document as documents
from appliance.profile.schema import BY_KEY, SETTINGS
from appliance.profile.validation import MISSING
from console.profiles.words import label, shown


@dataclass(frozen=True)
class Row:
    """One setting in both documents, in words."""

    key: str
    label: str
    before: str
    after: str
    changed: bool


@dataclass(frozen=True)
class EffectiveRow:
    """One setting as it would run, in words."""

    key: str
    label: str
    value: str
    source: str
    why: str


def compare(before: Mapping[str, Any], after: Mapping[str, Any], *, everything: bool = False) -> list[Row]:
    """What changes, in the order of the settings; with `everything`, also what stays."""
    changes = {change.key: change for change in documents.diff(before, after)}
    order = {setting.key: place for place, setting in enumerate(SETTINGS)}
    keys = sorted(changes, key=lambda key: (order.get(_row(key), len(order)), key))
    rows = [_shown(key, changes[key].before, changes[key].after, changed=True) for key in keys]
    if everything:
        changed = {_row(key) for key in changes}
        for setting in SETTINGS:
            if setting.key not in changed and setting.key != "schema":
                value = documents.get(before, setting.key)
                if value is MISSING:
                    value = None if setting.required else setting.default
                rows.append(_shown(setting.key, value, value, changed=False))
    return rows


def effective_rows(values: Mapping[str, EffectiveValue]) -> list[EffectiveRow]:
    """Every effective value, in the order of the settings."""
    return [
        EffectiveRow(
            setting.key, label(setting), shown(setting, values[setting.key].value), values[setting.key].source,
            values[setting.key].why,
        )
        for setting in SETTINGS
        if setting.key in values and setting.key not in ("schema", "name")
    ]  # fmt: skip


def _shown(key: str, before: Any, after: Any, *, changed: bool) -> Row:
    setting = BY_KEY.get(key)
    name = label(setting) if setting else key.rpartition(".")[2]
    return Row(key, name, shown(setting, before), shown(setting, after), changed)


def _row(key: str) -> str:
    """The setting that a key is part of: `vllm.extra-args.seed` is in `vllm.extra-args`."""
    while key and key not in BY_KEY:
        key = key.rpartition(".")[0]
    return key
