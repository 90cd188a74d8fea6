"""Fields that clients are known to send and that ask nothing of this engine: accepted without a word."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class DescriptiveFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of OpenAI's API that describe the request and do not change the answer."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    request_id: str | None = None


# Where a request does not have them by their types.
WITHOUT_EFFECT: Final = frozenset({*DescriptiveFields.__struct_fields__, "parallel_tool_calls"})

# Each with who sends it and where that can be read.
SENT_BY_CLIENTS: Final = frozenset({
    # Open WebUI: what its own server takes out before it passes a request on, and its pipes and filters do not
    # (open-webui, backend/open_webui/main.py, chat_completion).
    "chat_id", "id", "session_id", "filter_ids", "tool_ids", "tool_servers", "files", "features", "variables",
    "model_item", "background_tasks", "parent_id", "parent_message",
    # LiteLLM's SDK and the clients of its proxy (docs.litellm.ai/docs/completion/input, .../docs/proxy/cost_tracking).
    "litellm_metadata", "litellm_trace_id", "litellm_call_id", "tags", "drop_params", "mock_response", "num_retries",
    "timeout", "fallbacks", "caching", "cache",
    # Cline, through LiteLLM (cline/cline#4761).
    "litellm_session_id",
    # LangChain's agents, through LiteLLM (BerriAI/litellm#25198).
    "strict",
    # Codex (BerriAI/litellm#28539).
    "client_metadata",
    # Claude Code, through gateways that translate Anthropic's API (decolua/9router#1468).
    "context_management",
    # OpenRouter's clients, among them Cline, Continue and Zed (openrouter.ai/docs/api-reference/overview).
    "provider", "models", "route", "transforms", "plugins", "usage",
    # Ollama's clients on its OpenAI-compatible path (ollama, docs/openai.md).
    "keep_alive",
})  # fmt: skip
