"""A request of Anthropic's API as a chat request."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from msgspec import structs

from appliance.serving.answering import Ask
from appliance.serving.anthropic.conversation import Conversation
from appliance.serving.anthropic.fields import (
    JsonFormat,
    MessagesFields,
    OutputConfig,
    PromptFields,
    Thinking,
    ToolChoice,
    ToolFields,
)
from appliance.serving.chat_request import ChatFields, chat_ask, chat_prompt
from appliance.serving.errors import PromptTooLongError, bad_request, missing
from appliance.serving.field_origins import FieldOrigins
from appliance.serving.fields import Ignored, decode_part, shown
from appliance.serving.messages import check_count
from appliance.serving.served_model import ServedModel
from appliance.serving.structured import JsonSchema, ResponseFormat

ORIGINS: Final = {
    "stop": "stop_sequences",
    "tools": "tools",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "tool_choice.function": "tool_choice",
}
FUNCTION: Final = {"": "", ".parameters": ".input_schema"}
CUSTOM: Final = (None, "custom")
CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


class Translated(NamedTuple):
    """`origins` names a field of `chat` as the client did."""

    chat: ChatFields
    origins: FieldOrigins
    shows_thinking: bool


def translate(fields: PromptFields, ignored: Ignored) -> Translated:
    """Raises ApiError naming the field."""
    origins = FieldOrigins(ORIGINS)
    thinking = _thinking(fields, origins, ignored)
    config = decode_part(fields.output_config or {}, OutputConfig, "output_config", ignored)
    choice = _choice(fields, ignored)
    chat = ChatFields(
        messages=_messages(fields, origins, ignored),
        tools=_tools(fields.tools or [], origins, ignored),
        tool_choice=None if choice is None else _chat_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        enable_thinking=thinking is not None and thinking.type != "disabled",
        reasoning_effort=config.effort,
        thinking_token_budget=None if thinking is None else thinking.budget_tokens,
        response_format=None if config.format is None else _format(config.format, ignored),
    )
    if isinstance(fields, MessagesFields):
        chat = structs.replace(
            chat,
            max_tokens=fields.max_tokens,
            stop=fields.stop_sequences,
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=fields.top_k,
            min_p=fields.min_p,
            seed=fields.seed,
            cache_salt=fields.cache_salt,
            priority=fields.priority,
        )
    shows = thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"
    return Translated(chat, origins, shows)


async def messages_ask(translated: Translated, model: ServedModel, ignored: Ignored) -> Ask:
    """An answer for which the context has too little room is cut short, as Anthropic's are. Raises ApiError."""
    unused = Ignored(strict=False)
    chat = translated.chat
    if chat.thinking_token_budget is not None and model.formats.reasoning is None:
        # Claude Code sends a budget to every model.
        unused.add_unused("thinking_token_budget")
        chat = structs.replace(chat, thinking_token_budget=None)
    with translated.origins.in_errors():
        try:
            ask = await chat_ask(chat, model, unused, shorten=True)
        except PromptTooLongError as error:
            # In Anthropic's words and figures: Claude Code then compacts the conversation by itself.
            error.message = f"prompt is too long: {error.num_tokens} tokens > {model.max_model_len} maximum"
            await _name_system(chat, model, error)
            raise
    translated.origins.note(unused, ignored)
    return structs.replace(ask, form_param=ask.form_param and translated.origins.of(ask.form_param))


async def _name_system(chat: ChatFields, model: ServedModel, error: PromptTooLongError) -> None:
    """Where it alone is too long."""
    first = chat.messages[0]
    if first["role"] == "system" and isinstance(first["content"], str):
        try:
            await model.check_fits(first["content"], "system")
        except PromptTooLongError:
            error.param = "system"


async def count_prompt(translated: Translated, model: ServedModel, ignored: Ignored) -> int:
    unused = Ignored(strict=False)
    with translated.origins.in_errors():
        prompt = await chat_prompt(translated.chat, model, unused)
    translated.origins.note(unused, ignored)
    return len(prompt.token_ids)


def _messages(fields: PromptFields, origins: FieldOrigins, ignored: Ignored) -> list[dict[str, Any]]:
    if not fields.messages:
        raise bad_request("messages is empty; send at least one message.", "messages")
    check_count(fields.messages)
    conversation = Conversation(origins, ignored)
    conversation.add_system(fields.system)
    for index, message in enumerate(fields.messages):
        conversation.add(message, f"messages[{index}]")
    last = len(fields.messages) - 1
    if fields.messages[last].get("role") == "assistant":
        place = f"messages[{last}].role"
        raise bad_request(f"{place}: the engine does not continue a message; end with one of the user.", place)
    return conversation.messages


def _thinking(fields: PromptFields, origins: FieldOrigins, ignored: Ignored) -> Thinking | None:
    if fields.thinking is None:
        return None
    thinking = decode_part(fields.thinking, Thinking, "thinking", ignored)
    origins.add("enable_thinking", "thinking")
    budget = thinking.budget_tokens
    if budget is not None and isinstance(fields, MessagesFields) and budget >= fields.max_tokens:
        message = (
            f"thinking.budget_tokens: {budget:,} is not less than max_tokens ({fields.max_tokens:,}); lower it, or "
            "raise max_tokens."
        )
        raise bad_request(message, "thinking.budget_tokens")
    origins.add("thinking_token_budget", "thinking.budget_tokens")
    return thinking


def _format(given: dict[str, Any], ignored: Ignored) -> ResponseFormat:
    form = decode_part(given, JsonFormat, "output_config.format", ignored)
    return ResponseFormat(type=form.type, json_schema=JsonSchema(schema=form.schema))


def _tools(tools: list[dict[str, Any]], origins: FieldOrigins, ignored: Ignored) -> list[dict[str, Any]]:
    translated = []
    for index, given in enumerate(tools):
        param = f"tools[{index}]"
        tool = decode_part(given, ToolFields, param, ignored)
        if tool.type not in CUSTOM:
            message = (
                f"{param}.type: {shown(tool.type)} is not supported, as it belongs to Anthropic's own models and "
                "servers. Remove it, or describe your tool by an input_schema."
            )
            raise bad_request(message, f"{param}.type", "unsupported_field")
        if tool.input_schema is None:
            raise missing(f"{param}.input_schema")
        for ours, theirs in FUNCTION.items():
            origins.add(f"{param}.function{ours}", f"{param}{theirs}")
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        translated.append({"type": "function", "function": {**function, "strict": tool.strict}})
    return translated


def _choice(fields: PromptFields, ignored: Ignored) -> ToolChoice | None:
    if fields.tool_choice is None:
        return None
    choice = decode_part(fields.tool_choice, ToolChoice, "tool_choice", ignored)
    if choice.type == "tool" and choice.name is None:
        raise missing("tool_choice.name")
    if choice.type in ("any", "tool") and not fields.tools:
        raise bad_request(f"tool_choice: {shown(choice.type)} needs tools; send tools, too.", "tool_choice")
    return choice


def _chat_choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return CHOICES[choice.type]
