"""Changes settings in a profile's text and leaves the rest as somebody wrote it: comments, order, spellings.

Each change is made where the YAML's nodes say that the setting stands. What comes out is read again: where it is not
exactly what was meant (as in unusual styles of YAML), the document is written anew, without its comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from appliance.profile import document
from appliance.profile.schema import ProfileError
from appliance.profile.spellings import kebab


class Edited(NamedTuple):
    text: str
    kept_comments: bool


class _Place(NamedTuple):
    """Where a setting stands: in which mapping, under which key, with which value."""

    mapping: yaml.MappingNode
    key: yaml.Node
    value: yaml.Node


def edit(text: str, patch: Mapping[str, Any]) -> Edited:
    """The text with a patch applied (see `protocol.Fix`). Raises ProfileError if `text` is not a document."""
    wanted = document.apply_patch(document.parse(text), patch)
    if text.lstrip().startswith("{"):
        return Edited(json.dumps(wanted, indent=2, ensure_ascii=False) + "\n", kept_comments=True)
    edited = text
    try:
        for key, value in patch.items():
            edited = _removed(edited, key) if value is None else _set(edited, key, value)
        same = document.parse(edited) == wanted
    except (ProfileError, yaml.YAMLError):
        same = False
    return Edited(edited, kept_comments=True) if same else Edited(document.write(wanted), kept_comments="#" not in text)


def _set(text: str, dotted: str, value: Any) -> str:
    place = _find(text, dotted)
    if place is not None:
        start, end = place.value.start_mark.index, place.value.end_mark.index
        return text[:start] + _inline(value) + text[end:]
    section, _, name = dotted.rpartition(".")
    if section and (parent := _find(text, section)) and isinstance(parent.value, yaml.MappingNode):
        return _added(text, parent.value, name, value)
    nested: Any = value
    for part in reversed(dotted.split(".")[1:]):
        nested = {part: nested}
    return f"{text.rstrip()}\n{document.write({dotted.split('.')[0]: nested})}"


def _added(text: str, mapping: yaml.MappingNode, name: str, value: Any) -> str:
    """Another line below the mapping's last one, or another entry within its braces."""
    first = mapping.value[0][0] if mapping.value else None
    if mapping.flow_style or first is None:
        end = text.rindex("}", 0, mapping.end_mark.index)
        comma = ", " if mapping.value else ""
        return f"{text[:end]}{comma}{name}: {_inline(value)}{text[end:]}"
    end = _end_of_line(text, mapping.value[-1][1].end_mark.index)
    return f"{text[:end].rstrip()}\n{' ' * first.start_mark.column}{name}: {_inline(value)}\n{text[end:]}"


def _removed(text: str, dotted: str) -> str:
    place = _find(text, dotted)
    if place is None:
        return text
    section = dotted.rpartition(".")[0]
    if section and len(place.mapping.value) == 1:
        return _removed(text, section)  # an empty section says nothing
    if place.mapping.flow_style:
        left = {key.value: value for key, value in place.mapping.value if key is not place.key}
        inner = ", ".join(
            f"{key}: {text[value.start_mark.index : value.end_mark.index]}" for key, value in left.items()
        )
        return f"{text[: place.mapping.start_mark.index]}{{{inner}}}{text[place.mapping.end_mark.index :]}"
    start = text.rfind("\n", 0, place.key.start_mark.index) + 1
    return text[:start] + text[_end_of_line(text, place.value.end_mark.index) :]


def _find(text: str, dotted: str) -> _Place | None:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    found = None
    for part in dotted.split("."):
        if not isinstance(node, yaml.MappingNode):
            return None
        found = next(
            (_Place(node, key, value) for key, value in node.value if part in (key.value, kebab(str(key.value)))), None
        )
        if found is None:
            return None
        node = found.value
    return found


def _inline(value: Any) -> str:
    """A value as it stands behind its key, on one line."""
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return document.write({"k": value}).removeprefix("k: ").rstrip("\n")


def _end_of_line(text: str, index: int) -> int:
    """Behind the line that ends at, or goes on after, `index`: blocks end at the beginning of the next line."""
    if index > 0 and text[index - 1 : index] == "\n":
        return index
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1
