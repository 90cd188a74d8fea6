"""Whether a request could be answered at all, before the model it names replaces the running one: what its route says
of it before any model is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from appliance.serving.anthropic.fields import MESSAGES, MessagesFields
from appliance.serving.anthropic.request import translate as translate_anthropic
from appliance.serving.body import beside_others
from appliance.serving.chat_request import ChatFields, check_chat
from appliance.serving.completions import CompletionFields, check_completion
from appliance.serving.embeddings import VOCABULARY, EmbeddingFields, check_input
from appliance.serving.fields import OPENAI, Ignored, Vocabulary, decode_request
from appliance.serving.messages import check_messages
from appliance.serving.ollama.embed import OllamaEmbeddingsFields, OllamaEmbedFields, check_embed
from appliance.serving.ollama.fields import OLLAMA, OllamaChatFields, OllamaGenerateFields
from appliance.serving.ollama.request import check_load, translate_chat, translate_generate
from appliance.serving.responses.fields import ResponseFields
from appliance.serving.responses.request import check_response
from appliance.serving.responses.store import ResponseStore, StoredItems


class Asker(NamedTuple):
    """What a request may refer to: the answers kept for the API key with this id."""

    store: ResponseStore
    key_id: str


class Route(NamedTuple):
    fields: type[Any]
    vocabulary: Vocabulary
    check: Callable[[Any, Ignored, Asker], object]
    """Raises ApiError as the route does."""


async def check_readable(path: str, body: bytes, asker: Asker, *, strict: bool) -> None:
    """Raises ApiError as the route will. `strict`: whether the model's profile refuses unknown fields. What only the
    model's own tokenizer or template can tell is left to them."""
    route = ROUTES[path]

    def check() -> None:
        fields, ignored = decode_request(body, route.fields, strict=strict, api=route.vocabulary)
        route.check(fields, ignored, asker)

    await beside_others(body, check)


def _check_chat(fields: ChatFields, ignored: Ignored, _asker: Asker) -> None:
    from appliance.checkpoint.encoders import known_message_fields  # late: the first answer does not wait for it

    check_chat(fields, ignored)
    check_messages(fields.messages, ignored, known_message_fields())


def _check_anthropic(fields: MessagesFields, ignored: Ignored, asker: Asker) -> None:
    translated = translate_anthropic(fields, ignored)
    with translated.origins.in_errors():
        _check_chat(translated.chat, ignored, asker)


def _check_ollama(fields: OllamaChatFields | OllamaGenerateFields, ignored: Ignored, asker: Asker) -> None:
    if isinstance(fields, OllamaChatFields):
        translated, asks = translate_chat(fields, None, ignored), bool(fields.messages)
    else:
        translated, asks = translate_generate(fields, None, ignored), bool(fields.prompt)
    if not asks:
        check_load(fields)
        return
    with translated.origins.in_errors():
        _check_chat(translated.chat, ignored, asker)


def _check_response(fields: ResponseFields, ignored: Ignored, asker: Asker) -> None:
    check_response(fields, StoredItems(asker.store, asker.key_id), ignored)


ROUTES: Final[dict[str, Route]] = {
    "/v1/chat/completions": Route(ChatFields, OPENAI, _check_chat),
    "/v1/completions": Route(CompletionFields, OPENAI, lambda fields, *_: check_completion(fields)),
    "/v1/responses": Route(ResponseFields, OPENAI, _check_response),
    "/v1/messages": Route(MessagesFields, MESSAGES, _check_anthropic),
    "/v1/embeddings": Route(EmbeddingFields, VOCABULARY, lambda fields, *_: check_input(fields.input)),
    "/api/chat": Route(OllamaChatFields, OLLAMA, _check_ollama),
    "/api/generate": Route(OllamaGenerateFields, OLLAMA, _check_ollama),
    "/api/embed": Route(OllamaEmbedFields, OLLAMA, lambda fields, ignored, _: check_embed(fields, ignored)),
    "/api/embeddings": Route(OllamaEmbeddingsFields, OLLAMA, lambda fields, ignored, _: check_embed(fields, ignored)),
}
