"""What answers of Ollama's API look like. Nothing is encoded through these structs: tests hold answers against them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Answer(Struct, forbid_unknown_fields=True):
    """A field that is UNSET may be missing."""


class OllamaFunction(Answer):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Answer):
    function: OllamaFunction


class OllamaMessage(Answer):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(Answer, kw_only=True):
    """The reason comes with the last part, and the figures with that of an answer. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatAnswer(OllamaAnswer, kw_only=True):
    message: OllamaMessage


class OllamaGenerateAnswer(OllamaAnswer, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaDetails(Answer):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Answer):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: str


class OllamaModels(Answer):
    models: list[OllamaModel]


class OllamaRunningModel(Answer):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaRunningModels(Answer):
    models: list[OllamaRunningModel]


class OllamaShownModel(Answer):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Answer):
    version: str


class OllamaError(Answer):
    error: str


class OllamaEmbeddings(Answer):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(Answer):
    embedding: list[float]
