"""The fields of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from appliance.core_protocol import SAMPLING_LIMITS
from appliance.serving.fields import Accepted, Vocabulary
from appliance.serving.messages import Messages
from appliance.serving.sampling import SEED, Positive, Stops

# Also Anthropic's; a client that asks for less may mean tokens of another kind.
LEAST_BUDGET: Final = 1024


class PromptFields(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is given. The parts of the objects are checked as they are translated."""

    model: str | None = None
    messages: Messages
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesFields(PromptFields, frozen=True, kw_only=True):
    """Those from `metadata` to `betas` have no effect here; Claude Code sends `context_management` to every server. The
    last four are Ingot's own, as in its other APIs."""

    max_tokens: Positive
    stop_sequences: Stops | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    inference_geo: str | None = None
    speed: str | None = None
    diagnostics: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    betas: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=SAMPLING_LIMITS["temperature"][1])] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, SEED] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=LEAST_BUDGET)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ToolFields(msgspec.Struct, frozen=True, kw_only=True):
    """Those from `cache_control` on have no effect here: prompts are cached as they come, every tool is shown from the
    start, and its arguments are streamed as the model writes them."""

    type: str | None = None
    name: Any = None
    description: Any = None
    input_schema: Any = None
    strict: Any = None
    cache_control: dict[str, Any] | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None


MESSAGES: Final = Vocabulary(
    {
        "container": Accepted((), "the engine runs no code"),
        "mcp_servers": Accepted(([],), "the engine calls no servers"),
        "output_format": Accepted((), "output_config.format has replaced it"),
    },
    frozenset(),
)
# Of a message that is to be counted, clients may send all fields.
COUNT: Final = MESSAGES._replace(
    without_effect=frozenset(MessagesFields.__struct_fields__) - set(PromptFields.__struct_fields__)
)
