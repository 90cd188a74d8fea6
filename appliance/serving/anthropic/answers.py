"""What answers of Anthropic's API look like. Nothing is encoded through these structs: tests hold answers against
them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Answer(Struct, forbid_unknown_fields=True):
    pass


class AnthropicText(Answer, tag_field="type", tag="text"):
    text: str


class AnthropicThinking(Answer, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class AnthropicToolUse(Answer, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class AnthropicOutputTokens(Answer):
    thinking_tokens: int


class AnthropicUsage(Answer):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: AnthropicOutputTokens


class AnthropicMessage(Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicText | AnthropicThinking | AnthropicToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicTokenCount(Answer):
    input_tokens: int


class AnthropicErrorContent(Answer):
    type: str
    message: str
    param: str | None
    code: str | None


class AnthropicError(Answer):
    type: Literal["error"]
    error: AnthropicErrorContent
    request_id: str
