"""What holds where neither a request nor the profile's sampling-defaults say it. To the structs that decode requests,
None is a field that was not given."""

from __future__ import annotations

from typing import Any, Final

from appliance.core_protocol import SamplingParams
from appliance.serving.anthropic.fields import MessagesFields
from appliance.serving.chat_request import ChatFields
from appliance.serving.completions import DEFAULT_MAX_TOKENS, CompletionFields
from appliance.serving.ollama.fields import OllamaChatFields, OllamaGenerateFields
from appliance.serving.responses.fields import ResponseFields
from appliance.serving.sampling import PARAMETERS
from appliance.serving.tokenize import TokenizeFields

_SAMPLING: Final = {name: getattr(SamplingParams(), name) for name in (*PARAMETERS, "min_tokens", "ignore_eos")}
_SHARED: Final = {**_SAMPLING, "stream": False, "priority": 0, "skip_special_tokens": True, "return_token_ids": False}
_CALLS: Final = {"tool_choice": "auto", "parallel_tool_calls": True}

DEFAULTS: Final[dict[type, dict[str, Any]]] = {
    ChatFields: {
        **_SHARED, **_CALLS, "n": 1, "logprobs": False, "top_logprobs": 0, "include_reasoning": True,
        "add_generation_prompt": True,
    },
    CompletionFields: {
        **_SHARED, "n": 1, "max_tokens": DEFAULT_MAX_TOKENS, "echo": False, "add_special_tokens": True,
        "return_tokens_as_token_ids": False,
    },
    ResponseFields: {**_SHARED, **_CALLS, "store": True, "truncation": "disabled", "top_logprobs": 0},
    MessagesFields: {name: _SHARED[name] for name in MessagesFields.__struct_fields__ if name in _SHARED},
    OllamaChatFields: {"stream": True, "priority": 0},
    OllamaGenerateFields: {"stream": True, "priority": 0, "raw": False},
    TokenizeFields: {"add_generation_prompt": True, "return_token_strs": False},
}  # fmt: skip
