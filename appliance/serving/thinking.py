"""How much a model is to reason: what clients say of it, as the switch that the model's own template reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from appliance.serving.errors import bad_request
from appliance.serving.fields import Ignored, shown

if TYPE_CHECKING:
    from appliance.checkpoint.chat_template import ChatTemplate

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OFF: Final = frozenset({"none", "minimal"})
# What templates call the switch: Qwen3, GLM and MiniMax; DeepSeek, Granite and Kimi.
SWITCHES: Final = ("enable_thinking", "thinking")
# For templates that know three efforts only, as gpt-oss's does.
NEAREST: Final = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


def thinking_variables(
    effort: str | None, enabled: bool | None, given: Mapping[str, Any], template: ChatTemplate, ignored: Ignored
) -> dict[str, Any]:
    """Variables for the template, beside those that were `given` for it. Raises ApiError for an unknown effort.

    Clients send an effort to every model: where the template reads nothing of the kind, the field is ignored.
    """
    if effort is not None and effort not in EFFORTS:
        known = ", ".join(EFFORTS)
        raise bad_request(f"reasoning_effort: {shown(effort)} is not valid; use one of {known}.", "reasoning_effort")
    reads = template.variables
    on = _wanted(effort, enabled, given)
    variables: dict[str, Any] = {}
    if on is not None:
        variables = {switch: on for switch in SWITCHES if switch in reads}
    if effort is not None and "reasoning_effort" in reads and (on or not variables):
        variables["reasoning_effort"] = _level(effort, template.text)
    for field, value in (("reasoning_effort", effort), ("enable_thinking", enabled)):
        if value is not None and not variables:
            ignored.add_unused(field)
    return {**variables, **given}


def _wanted(effort: str | None, enabled: bool | None, given: Mapping[str, Any]) -> bool | None:
    """Whether the model is to reason; None where nothing says so."""
    for switch in SWITCHES:
        if isinstance(given.get(switch), bool):
            return bool(given[switch])
    if enabled is not None or effort is None:
        return enabled
    return effort not in OFF


def _level(effort: str, text: str) -> str:
    named = f"'{effort}'" in text or f'"{effort}"' in text
    return effort if named else NEAREST.get(effort, effort)
