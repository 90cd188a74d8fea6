"""The fields of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from appliance.core_protocol import SAMPLING_LIMITS
from appliance.serving.fields import Accepted, Vocabulary
from appliance.serving.sampling import SEED


def _limits(name: str) -> Meta:
    least, most = SAMPLING_LIMITS[name]
    return Meta(ge=least, le=most)


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """What /api/chat and /api/generate have in common."""

    model: str | None = None
    stream: bool | None = None
    format: Any = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)] | None = None


class OllamaChatFields(GenerationFields, frozen=True, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    tools: Any = None


class OllamaGenerateFields(GenerationFields, frozen=True, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class OllamaShowFields(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is what `model` was called before."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Those from `numa` on say how Ollama is to run the model: here the profile says it."""

    num_predict: Annotated[int, Meta(ge=-2, le=1 << 31)] | None = None
    num_ctx: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    temperature: Annotated[float, _limits("temperature")] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, _limits("min_p")] | None = None
    seed: Annotated[int, SEED] | None = None
    stop: str | list[str] | None = None
    repeat_penalty: Annotated[float, _limits("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, _limits("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _limits("frequency_penalty")] | None = None
    numa: bool | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Any = None
    content: Any = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    function: dict[str, Any]
    id: str | None = None
    type: Any = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """`index` is its place among the calls of the message."""

    name: str
    arguments: dict[str, Any] = {}
    index: Any = None
    description: Any = None


NO_LOGPROBS: Final = Accepted((False,), "this API has none here; use /v1/chat/completions")

OLLAMA: Final = Vocabulary(
    {
        "logprobs": NO_LOGPROBS,
        "top_logprobs": Accepted((0,), NO_LOGPROBS.why),
        "suffix": Accepted(("",), "the engine does not insert text before a suffix"),
        "template": Accepted(("",), "the engine always uses the model's own chat template"),
        "context": Accepted(([],), "conversations are sent as messages; use /api/chat"),
        "images": Accepted(([],), "the engine takes text only"),
    }
)
