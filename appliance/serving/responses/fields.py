"""The fields of a request to /v1/responses."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from appliance.serving.errors import bad_request
from appliance.serving.fields import Accepted, Ignored, check_accepted, shown
from appliance.serving.sampling import Alternatives, Positive, SamplingFields, check_logprobs
from appliance.serving.thinking import BudgetTokens

LOGPROBS: Final = "message.output_text.logprobs"
# Parts of an answer that `include` may name. All but the first are of hosted tools, or encrypt what is plain here.
INCLUDABLE: Final = (
    LOGPROBS, "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url",
)  # fmt: skip
MAX_METADATA: Final = 16
MAX_KEY: Final = 64
MAX_VALUE: Final = 512

UNSUPPORTED: Final = {
    "background": Accepted((False,), "answers are generated while the client waits"),
    "conversation": Accepted((), "conversations are not kept; use previous_response_id"),
    "prompt": Accepted((), "prompt templates are not kept; use instructions and input"),
    "n": Accepted((1,), "each request has one answer, so send several requests"),
}
# Fields of the other APIs, and what this one calls them.
MISPLACED: Final = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    max_tokens: BudgetTokens | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseFields(SamplingFields, frozen=True, kw_only=True):
    input: str | list[Any]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None  # of hosted tools, of which there are none
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    top_logprobs: Alternatives | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)


def check_fields(fields: ResponseFields, ignored: Ignored) -> None:
    """Raises ApiError for what no type says. What has no effect is noted in `ignored`."""
    for name, row in UNSUPPORTED.items():
        check_accepted(name, getattr(fields, name), row)
    for name, ours in MISPLACED.items():
        if getattr(fields, name) is not None:
            raise bad_request(f"{name} is not a field of this API. Use {ours}.", name, "unknown_field")
    check_logprobs(fields.top_logprobs, "top_logprobs")
    for index, name in enumerate(fields.include or ()):
        if name not in INCLUDABLE:
            place = f"include[{index}]"
            raise bad_request(f"{place}: {shown(name)} is not known; use {' or '.join(INCLUDABLE)}.", place)
    _check_metadata(fields.metadata or {})
    if fields.text and fields.text.verbosity not in (None, "medium"):
        ignored.add_unused("text.verbosity")
    if fields.reasoning and (fields.reasoning.summary or fields.reasoning.generate_summary):
        ignored.add_unused("reasoning.summary")


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(metadata) > MAX_METADATA:
        many = f"metadata: {len(metadata):,} entries are too many; send {MAX_METADATA} or fewer."
        raise bad_request(many, "metadata")
    for key, value in metadata.items():
        place = f"metadata.{key[:MAX_KEY]}"
        if len(key) > MAX_KEY:
            long = f"{place}: the key has {len(key):,} characters; use {MAX_KEY} or fewer."
            raise bad_request(long, place)
        if not isinstance(value, str) or len(value) > MAX_VALUE:
            wrong = f"{place}: {shown(value)} is not valid; use a string of up to {MAX_VALUE} characters."
            raise bad_request(wrong, place)
