"""What answers look like. Nothing is encoded through these structs: tests hold answers against them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Answer(Struct, forbid_unknown_fields=True):
    """A field that is UNSET may be missing."""


class ErrorContent(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    error: ErrorContent


class Health(Answer):
    state: str
    reason: str


class ServedModel(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    running: bool
    max_model_len: int | UnsetType = UNSET
    device: str | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET


class ModelList(Answer):
    object: Literal["list"]
    data: list[ServedModel]


class AnthropicModel(Answer):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int | None
    max_tokens: int | None
    running: bool


class AnthropicModelList(Answer):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str
    last_id: str


class CachedTokens(Answer):
    cached_tokens: int


class ReasoningTokens(Answer):
    reasoning_tokens: int


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TokenAlternative(Answer):
    token: str
    logprob: float
    bytes: list[int] | None
    token_id: int | UnsetType = UNSET


class TokenLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenAlternative]
    token_id: int | UnsetType = UNSET


class ChatLogprobs(Answer):
    content: list[TokenLogprob]


class CalledFunction(Answer):
    name: str
    arguments: str


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextCompletion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class OutputText(Answer, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class InputText(Answer, tag_field="type", tag="input_text"):
    text: str


class ReasoningText(Answer, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Answer, tag_field="type", tag="summary_text"):
    text: str


Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(Answer, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[OutputText | InputText]


class ReasoningItem(Answer, tag_field="type", tag="reasoning"):
    id: str
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: Status | UnsetType = UNSET


class CallItem(Answer, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Answer, tag_field="type", tag="function_call_output"):
    id: str
    status: Status
    call_id: str
    output: str


class ResponseError(Answer):
    code: str
    message: str


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class InputTokens(Answer):
    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseObject(Answer):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    output: list[MessageItem | ReasoningItem | CallItem]
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    user: str | None


class DeletedResponse(Answer):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Answer):
    object: Literal["list"]
    data: list[MessageItem | ReasoningItem | CallItem | CallOutputItem]
    first_id: str
    last_id: str
    has_more: bool


class EmbeddingsUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class Embedded(Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Answer):
    object: Literal["list"]
    data: list[Embedded]
    model: str
    usage: EmbeddingsUsage
