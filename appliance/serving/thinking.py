"""How much a model is to reason: what clients say of it, as the switch that the model's own template reads, and as the
budget that the engine keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from appliance.serving.asked import Asked, contradiction, only
from appliance.serving.errors import bad_request
from appliance.serving.fields import Ignored, shown
from appliance.thinking_budget import ThinkingBudget, ThinkingSection

if TYPE_CHECKING:
    from appliance.checkpoint.chat_format import ChatFormat
    from appliance.checkpoint.tokenizer import Tokenizer
    from appliance.serving.parsers.base import ReasoningFormat, Section

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OFF: Final = frozenset({"none", "minimal"})
# What templates call the switch: Qwen3, GLM and MiniMax; DeepSeek, Granite and Kimi.
SWITCHES: Final = ("enable_thinking", "thinking")

# Of a budget, as vLLM and llama.cpp have it.
UNBOUNDED: Final = -1
BudgetTokens = Annotated[int, Meta(ge=UNBOUNDED, le=1 << 31)]
# vLLM (vllm-project/vllm#20859); Qwen's and other clouds (alibabacloud.com/help/en/model-studio/deep-thinking,
# docs.siliconflow.cn/cn/userguide/capabilities/reasoning); llama.cpp's server (ggml-org/llama.cpp#23673).
BUDGETS: Final = ("thinking_token_budget", "thinking_budget", "thinking_budget_tokens")


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """OpenRouter's, which its clients send (openrouter.ai/docs/use-cases/reasoning-tokens)."""

    effort: str | None = None
    max_tokens: BudgetTokens | None = None
    exclude: bool | None = None
    enabled: bool | None = None


def check_effort(effort: str | None, param: str) -> None:
    """Raises ApiError for an unknown one."""
    if effort is not None and effort not in EFFORTS:
        known = ", ".join(EFFORTS)
        raise bad_request(f"{param}: {shown(effort)} is not valid; use one of {known}.", param)


def thinking_variables(
    effort: Asked[str] | None,
    enabled: Asked[bool] | None,
    given: Mapping[str, Any],
    template: ChatFormat,
    ignored: Ignored,
) -> dict[str, Any]:
    """Variables for the template, beside those that were `given` for it.

    Clients send an effort to every model: where the template reads nothing of the kind, or the model is not to reason,
    the field is ignored. Raises ApiError where it is to reason without any effort.
    """
    if effort is not None and enabled is not None and enabled.value and effort.value in OFF:
        raise contradiction(effort, enabled)
    reads = template.variables
    on = _wanted(effort, enabled)
    variables: dict[str, Any] = {}
    if on is not None:
        variables = {switch: on for switch in SWITCHES if switch in reads}
    if effort is not None and "reasoning_effort" in reads and (on or not variables):
        variables["reasoning_effort"] = template.nearest_effort(effort.value)
    off = enabled is not None and not enabled.value
    if effort is not None and (not variables or (off and effort.value not in OFF)):
        ignored.add_unused(effort.param)
    if enabled is not None and not variables:
        ignored.add_unused(enabled.param)
    return {**variables, **given}


def unread_variables(given: Mapping[str, Any], template: ChatFormat) -> list[str]:
    """Those that say nothing to the template. A switch does, under whatever name it has one."""
    reads = template.variables
    known = reads | set(SWITCHES) if not reads.isdisjoint(SWITCHES) else reads
    return [name for name in given if name not in known]


def asked_switch(fields: Mapping[str, bool | None], given: Mapping[str, Any]) -> Asked[bool] | None:
    """Of the fields that say whether the model is to reason, by their paths, and of the template's own switches among
    the variables `given` for it. Raises ApiError where two of them differ, and for one that is neither true nor false:
    any text is true to a template, "no" too."""
    switches = {f"chat_template_kwargs.{name}": given.get(name) for name in SWITCHES}
    for path, on in switches.items():
        if on is not None and not isinstance(on, bool):
            raise bad_request(f"{path}: {shown(on)} is not valid; use true or false.", path)
    return only({**fields, **switches})


def _wanted(effort: Asked[str] | None, enabled: Asked[bool] | None) -> bool | None:
    """Whether the model is to reason; None where nothing says so."""
    if enabled is not None:
        return enabled.value
    return None if effort is None else effort.value not in OFF


def asked_budget(given: Mapping[str, int | None]) -> Asked[int] | None:
    """Of the fields that may set it, by their paths; None for reasoning without bounds. Raises ApiError where two of
    them differ."""
    asked = only(given)
    return None if asked is None or asked.value == UNBOUNDED else asked


def thinking_budget(
    asked: Asked[int], reasoning: ReasoningFormat | None, prompt: str, tokenizer: Tokenizer
) -> ThinkingBudget:
    """Raises ApiError if the model has no reasoning that could be bounded."""
    if reasoning is None:
        message = (
            f"{asked.param}: this model does not reason in a format that Ingot knows. Remove the field, or set "
            "reasoning-parser in the profile."
        )
        raise bad_request(message, asked.param, "unsupported_field")

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def section(found: Section) -> ThinkingSection:
        closing, final = tokens(found.closing), tokens(found.final)
        return ThinkingSection(begin=found.begin, ends=found.ends, forced=closing, forced_again=final)

    return ThinkingBudget(
        tokens=asked.value,
        sections=tuple(map(section, reasoning.sections)),
        opened=reasoning.opened_by(prompt),
        recurs=reasoning.interleaved,
        stops=reasoning.calls_within,
    )
