"""The settings as the tables of docs/profiles.md. `python -m console.profiles.reference` prints them; a test keeps the
document in step."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.profile.schema import SETTINGS, Setting, Type
from console.profiles.words import shown_default

KINDS = {
    Type.TEXT: "text",
    Type.INTEGER: "whole number",
    Type.NUMBER: "number",
    Type.BOOLEAN: "`true` or `false`",
    Type.SIZE: "bytes, or a size such as `2 GiB`",
    Type.OPTIONS: "mapping",
}


def tables() -> str:
    """One table a group, in the order of the rows."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for group in dict.fromkeys(setting.group for setting in SETTINGS):
        yield f"### {group}"
        yield ""
        yield "| setting | default | values | what it does |"
        yield "| --- | --- | --- | --- |"
        for setting in SETTINGS:
            if setting.group == group:
                cells = (f"`{setting.key}`", _default(setting), _values(setting), setting.help)
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _default(setting: Setting) -> str:
    if setting.required:
        return "none: required"
    if setting.default is None or setting.type is Type.OPTIONS:
        return shown_default(setting)
    return f"`{str(setting.default).lower() if isinstance(setting.default, bool) else setting.default}`"


def _values(setting: Setting) -> str:
    if setting.allowed:
        return ", ".join(f"`{value}`" for value in setting.allowed)
    if setting.pattern:
        return setting.pattern_help
    limits = setting.range_text() if setting.type is not Type.SIZE else ""
    unit = f" ({setting.unit})" if setting.unit and setting.type is not Type.SIZE else ""
    return f"{KINDS[setting.type]} {limits}".rstrip() + unit


if __name__ == "__main__":
    print(tables(), end="")
